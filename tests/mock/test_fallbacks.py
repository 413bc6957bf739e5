"""Models on a device that lacks ops on the KV cache: other backends run these on copies of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from ggmlpy.backends.base import Backend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.errors import KernelError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.describe import summary
from tests.models.tiny import Tiny, write_model


class Lacking(MockBackend):
    """Supports all ops but some."""

    def __init__(self, lacks: Iterable[str], seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._lacks = frozenset(lacks)

    def supports(self, node: Tensor) -> bool:
        assert node.op is not None
        return node.op.name not in self._lacks and super().supports(node)


class Lookups(ReferenceBackend):
    """Has what the host's part of a model needs, and nothing more."""

    name = "lookups"

    def supports(self, node: Tensor) -> bool:
        return node.op is not None and node.op.name == "get_rows"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny())


def opened(path: Path, *backends: Backend) -> Context:
    return Context.open(path, backend=list(backends), n_ctx=64, n_seq_max=2)


@pytest.mark.parametrize("seed", range(2))
def test_attention_and_lookups_fall_back(path: Path, seed: int) -> None:
    device = Lacking(["flash_attn_ext", "get_rows"], seed)
    context = opened(path, device, Lookups(), ReferenceBackend())
    alone = opened(path, ReferenceBackend())
    for tokens in ([1, 5, 9], [4], [7]):
        got, want = context.decode(tokens)[0], alone.decode(tokens)[0]
        np.testing.assert_array_equal(got, want)
    counts = context.ops_by_backend()
    n_layer = context.model.hparams.n_layer
    assert counts["reference"]["flash_attn_ext"] == n_layer
    assert counts["mock"]["set_rows"] == 2 * n_layer
    described = summary(GGUFFile.open(path), context, 64, 0.0)
    assert f"reference, runs {n_layer} of 44 nodes ({n_layer} flash_attn_ext)" in described
    for c in (context, alone):  # a shift reads and writes the keys
        c.seq_add(0, 3, 4, 5)
    got, want = context.decode([2])[0], alone.decode([2])[0]
    np.testing.assert_array_equal(got, want)


def test_a_device_that_cannot_write_its_cache_is_an_error_that_names_node_and_op(
    path: Path,
) -> None:
    context = opened(path, Lacking(["set_rows"]), ReferenceBackend())
    with pytest.raises(KernelError, match=r"\(set_rows\) writes cache_k_l0, .* on reference"):
        context.decode([1])
