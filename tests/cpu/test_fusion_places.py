"""Where values lie: results on what their record still reads, activations that are overwritten."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.builder import PlanBuilder, ScratchPool
from ggmlpy.backends.cpu.fusion import NAMES, fuse
from ggmlpy.backends.cpu.isa import select
from ggmlpy.backends.cpu.kernels.matmul_activations import QUANTIZE
from ggmlpy.graph.buffer import HostBuffer, Place, aligned_bytes
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_numpy, zeros
from ggmlpy.ops.rope import RopeMode
from tests.cpu.conftest import ISAS
from tests.cpu.fused import computed, floats, kernels, run, weight

Pattern = Callable[[], tuple[Tensor, ...]]  # a result that one record computes, and its sources
APART = 4096  # bytes from one tensor to the next
Shift = tuple[Tensor, Tensor, int]  # a result, and how many bytes behind a source's first it lies


def n_steps(*outputs: Tensor, shift: Shift | None = None) -> int:
    """Of the graph's plan, with every root in a place of its own but for one."""
    nodes = [n for n in Graph(*outputs).nodes if n.op is not None and n.op.computes]
    tensors = [t for node in nodes for t in (*node.src, node)]
    roots = list(dict.fromkeys(t.root for t in tensors))
    buffer = HostBuffer(aligned_bytes(APART * len(roots)))
    starts = {root: APART * i for i, root in enumerate(roots)}
    if shift is not None:
        result, source, behind = shift
        starts[result.root] = starts[source.root] + behind
    places = {t: Place(buffer, starts[t.root] + t.view_offs) for t in tensors}
    backend = CpuBackend(1, "generic")
    steps = [backend._step(node) for node in nodes]
    return len(fuse(steps, frozenset(NAMES), places, set(outputs)))


def norm() -> tuple[Tensor, ...]:
    x, w, b = floats(24, 3), floats(24), floats(24)
    return ops.add(ops.mul(ops.rms_norm(x, 1e-5), w), b), x, w, b


def residual() -> tuple[Tensor, ...]:
    a, b, w = floats(24, 3), floats(24, 3), floats(24)
    return ops.mul(ops.rms_norm(ops.add(a, b), 1e-5), w), a, b, w


def residual_of_norm() -> tuple[Tensor, ...]:
    a, b, w, inner = floats(24, 3), floats(24, 3), floats(24), floats(24)
    total = ops.add(ops.mul(ops.rms_norm(a, 1e-5), inner), b)
    return ops.mul(ops.rms_norm(total, 1e-5), w), a, b, w, inner


def glu() -> tuple[Tensor, ...]:
    x, gate, up = floats(24, 3), weight("f32", 24, 5), weight("f32", 24, 5)
    return ops.swiglu_split(ops.mul_mat(gate, x), ops.mul_mat(up, x)), x, gate, up


def rope() -> tuple[Tensor, ...]:
    x, pos = floats(32, 3, 4), from_numpy(np.arange(4, dtype=np.int32))
    turned = ops.rope(x, pos, 32, RopeMode.NORMAL)
    rows = from_numpy(np.arange(4, dtype=np.int64))
    cache = zeros("f32", (96, 5), flags=Flag.STATE)
    return ops.set_rows(cache, ops.reshape_2d(turned, 96, 4), rows), x, pos, rows


def bias() -> tuple[Tensor, ...]:
    x, w, vector = floats(24, 3), weight("f32", 24, 5), floats(5)
    return ops.add(ops.mul_mat(w, x), vector), x, w, vector


@pytest.mark.parametrize("pattern", [norm, residual, residual_of_norm, glu, rope, bias])
def test_a_result_that_lies_on_a_source_is_computed_after_it(pattern: Pattern) -> None:
    y, *sources = pattern()
    assert n_steps(y) == 1
    for source in sources:
        assert n_steps(y, shift=(y, source, 4)) > 1
        assert n_steps(y, shift=(y, source, 4 - y.spec.n_bytes)) > 1
        assert n_steps(y, shift=(y, source, -y.spec.n_bytes)) == 1


@pytest.mark.parametrize("pattern", [residual, residual_of_norm])
def test_a_sum_lies_on_no_weight_and_stays_while_it_is_wanted(pattern: Pattern) -> None:
    y, _, _, *weights = pattern()
    total = y.src[0].src[0]
    for source in weights:
        assert n_steps(y, total, shift=(total, source, 4)) > 1
    assert n_steps(y, total) == n_steps(y, shift=(y, total, 0)) == 1
    assert n_steps(y, total, shift=(y, total, 0)) > 1


# --- activations that are quantised once ---------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "is_stale"),
    [(0, False), (64, False), (68, True), (128, True), (252, True), (256, False)],
)
def test_quantised_activations_last_until_x_is_overwritten(begin: int, is_stale: bool) -> None:
    """x at bytes 128 to 256; 64 bytes are written."""
    x, written, later = floats(32), floats(16), HostBuffer(aligned_bytes(512))
    places = {x: Place(later, 128), written: Place(later, begin)}
    builder = PlanBuilder(places, 1, ScratchPool(), select("generic"))
    quantize = QUANTIZE["f32"]
    first = builder.activations(x, quantize, 256)
    builder._forget_overwritten(written)
    assert builder.activations(x, quantize, 256) == first
    assert len(builder.records) == 1 + is_stale


def test_the_same_bytes_in_other_rows_are_quantised_again() -> None:
    x = floats(64, 2)
    y = ops.mul_mat(weight("q8_0", 64, 5), x)
    z = ops.mul_mat(weight("q8_0", 32, 5), ops.reshape_2d(x, 32, 4))
    assert kernels([y, z]).count("quantize_f32") == 2


def test_a_fused_result_where_the_last_x_was_is_quantised() -> None:
    """The weighed norm of a sum, whose record has two results, in the place of the one before."""
    w, rows = floats(64), weight("q8_0", 64, 64)
    first = ops.mul(ops.rms_norm(computed(64, 3), 1e-5), w)
    total = ops.add(ops.mul_mat(rows, first), floats(64, 3))
    second = ops.mul(ops.rms_norm(total, 1e-5), w)
    y = ops.add(ops.mul_mat(rows, second), total)
    want, _ = run([y], "none", ISAS[0], 1)
    got, names = run([y], "all", ISAS[0], 1)
    assert names.count("add_rms_norm_mul_f32") == 1
    assert names.count("quantize_f32") == 2
    assert got == want
