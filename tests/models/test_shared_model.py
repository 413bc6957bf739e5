"""Contexts of one model share its weights, which lie in one place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ggmlpy.backends.base import Backend, Weight
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.errors import ArgumentError
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import Model, load_model
from ggmlpy.runtime.context import Context
from tests.models.tiny import Tiny, write_model

pytestmark = pytest.mark.placed

TOKENS = [1, 2, 3, 4]


class Counting(MockBackend):
    """Counts the weights that it is given to load."""

    n_loaded = 0

    def load_weights(self, weights: Sequence[Weight]) -> None:
        self.n_loaded += len(weights)
        super().load_weights(weights)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return load_model(GGUFFile.open(write_model(tmp_path / "tiny.gguf", Tiny())))


def context(model: Model, *backends: Backend, n_gpu_layers: int = -1) -> Context:
    return Context(model, backends, n_ctx=32, n_gpu_layers=n_gpu_layers)


def test_a_second_context_uses_the_weights_of_the_first(model: Model) -> None:
    device, host = Counting(), ReferenceBackend()
    first = context(model, device, host)
    want = first.decode(TOKENS).copy()
    places = [leaf.place for leaf in model.weights.leaves.values()]
    n_loaded = device.n_loaded
    assert n_loaded > 0
    second = context(model, device, host)
    assert np.array_equal(second.decode(TOKENS), want)
    assert device.n_loaded == n_loaded
    assert [leaf.place for leaf in model.weights.leaves.values()] == places


@pytest.mark.parametrize("on_device_first", [True, False])
def test_another_placement_is_refused(model: Model, on_device_first: bool) -> None:
    """Its weights would be moved away from the first context, which would copy them in each run."""
    device, host = MockBackend(), ReferenceBackend()
    layers = (-1, 0) if on_device_first else (0, -1)
    late = context(model, device, host, n_gpu_layers=layers[1])  # before any weight is loaded
    first = context(model, device, host, n_gpu_layers=layers[0])
    want = first.decode(TOKENS).copy()
    places = [leaf.place for leaf in model.weights.leaves.values()]
    names = (host.name, device.name) if on_device_first else (device.name, host.name)
    message = f"is to lie on {names[0]}, but another context .* loaded it onto {names[1]}: .* one"
    with pytest.raises(ArgumentError, match=message):
        late.decode(TOKENS)
    with pytest.raises(ArgumentError, match=message):
        context(model, device, host, n_gpu_layers=layers[1])
    assert [leaf.place for leaf in model.weights.leaves.values()] == places
    first.clear()
    assert np.array_equal(first.decode(TOKENS), want)


def test_another_device_of_a_kind_is_another_placement(model: Model) -> None:
    context(model, MockBackend(), ReferenceBackend()).decode(TOKENS)
    with pytest.raises(ArgumentError, match="the same backend objects"):
        context(model, MockBackend(), ReferenceBackend())
