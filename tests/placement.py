"""`pytest --placement mock:half tests/engine` runs models with layers on the device for tests.

mock        everything on the mock device, without any other backend
mock:N      the last N layers on it, "half" or "all" of them; the rest on the test's backends
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from ggmlpy.backends.base import Backend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.models import Model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.placement import ALL


def install(placement: str) -> None:
    """Insert the device before the backends of every context."""
    name, _, n_layers = placement.partition(":")
    if name != "mock" or n_layers not in ("", "half", "all", *map(str, range(1000))):
        raise pytest.UsageError(f"--placement is {placement}: it must be mock, mock:N, half or all")
    seeds = itertools.count()
    devices: WeakKeyDictionary[Model, MockBackend] = WeakKeyDictionary()  # that have its weights
    init = Context.__init__

    @functools.wraps(init)
    def on_mock(self: Context, model: Model, backends: Sequence[Backend], **options: Any) -> None:
        device = devices.get(model)
        if device is None:
            device = devices[model] = MockBackend(seed=next(seeds), inner=backends[0])
        n_all = model.hparams.n_layer + 1
        counts = {"": ALL, "all": ALL, "half": n_all // 2}
        options["n_gpu_layers"] = counts[n_layers] if n_layers in counts else int(n_layers)
        chain = [device, *backends] if n_layers else [device]
        init(self, model, chain, **options)

    Context.__init__ = on_mock  # type: ignore[method-assign]
