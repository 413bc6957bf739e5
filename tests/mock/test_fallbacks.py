"""Models on a device that lacks ops on the KV cache: other backends run these on copies of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from ggmlpy.backends.base import Backend
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.errors import KernelError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.describe import summary
from ggmlpy.sched.compute import compute
from tests.models.tiny import Tiny, write_model


class Lacking(MockBackend):
    """Supports all ops but some."""

    def __init__(self, lacks: Iterable[str], seed: int = 0, inner: Backend | None = None) -> None:
        super().__init__(seed=seed, inner=inner)
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
    described = summary(GGUFFile.open(path), context, 64, 128, "off", 0.0)
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


@pytest.mark.parametrize("type", ["q8_0", "q4_0", "f16"])
def test_a_product_that_falls_back_to_the_cpu_has_the_weights_of_the_device(
    tmp_path: Path, type: str
) -> None:
    """Which the CPU packs when it plans, before any run has copied anything."""
    path = write_model(tmp_path / "m.gguf", Tiny(n_embd=256, n_ff=256, weight_type=type))
    devices = [Lacking(["mul_mat"], inner=CpuBackend(1)), CpuBackend(1), ReferenceBackend()]
    got = Context.open(path, backend=devices, n_ctx=32)
    want = Context.open(path, backend=[CpuBackend(1), ReferenceBackend()], n_ctx=32)
    for tokens in ([1, 5, 9, 2], [7], [8, 8]):
        logits = want.decode(tokens, all_logits=True)
        assert logits.any()
        np.testing.assert_array_equal(got.decode(tokens, all_logits=True), logits)


def test_a_node_of_a_device_is_computed_on_the_host(tmp_path: Path) -> None:
    """Where it needs weights of the device, and nothing that is written there."""
    path = write_model(tmp_path / "m.gguf", Tiny(n_embd=256, n_ff=256, weight_type="q8_0"))
    contexts = [
        Context.open(path, backend=backends, n_ctx=32)
        for backends in ([MockBackend(inner=CpuBackend(1))], [CpuBackend(1), ReferenceBackend()])
    ]
    for context in contexts:
        context.decode([1, 5, 9])
    got, want = (compute(context.last_graph.find("Qcur-0"), backend="cpu") for context in contexts)
    assert want.any()
    np.testing.assert_array_equal(got, want)
    (device, *_), graph = contexts[0].backends, contexts[0].last_graph
    assert compute(graph.nodes[-1], backend=device).any()
    with pytest.raises(KernelError, match="runs on cpu, which cannot write there"):
        compute(graph.nodes[-1], backend="cpu")
