"""Fused kernels of rows on the emulated device: the same bits as the nodes one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.base import Places
from ggmlpy.backends.base import Plan as BackendPlan
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, zeros
from ggmlpy.ops.rope import RopeMode
from ggmlpy.sched.executable import Executable

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
RNG = np.random.default_rng(0)
# Rows of a warp, of a block, and longer than what a block keeps in registers; odd and even ones.
SHAPES = [(1,), (5, 7), (33, 1, 4), (300, 5, 2, 3), (512, 2), (516, 2), (4096, 2), (8194, 3)]


class Recording(CudaBackend):
    """Remembers the ops of its steps."""

    def __init__(self) -> None:
        super().__init__(EmulatedDriver())
        self.ops: list[str] = []

    def plan(self, steps: Sequence[Step], places: Places) -> BackendPlan:
        self.ops += [step.op for step in steps]
        return super().plan(steps, places)


DEVICE = Recording()


def run(outputs: Sequence[Tensor], passes: str) -> tuple[list[bytes], list[str]]:
    """The bytes of the outputs, and the ops that the device ran. State is empty before."""
    graph = Graph(*outputs)
    for leaf in graph.leafs:
        if Flag.STATE in leaf.flags:
            assert leaf.place is not None
            leaf.place.buffer.clear(leaf.place.offset, leaf.spec.n_bytes)
    DEVICE.ops.clear()
    executable = Executable(graph, [DEVICE, ReferenceBackend()], passes=passes)
    for _ in range(2):  # what the first run left in memory must not matter
        executable.run()
    return [executable.raw(y).tobytes() for y in outputs], list(DEVICE.ops)


def check(outputs: Sequence[Tensor], fused: str) -> None:
    want, plain = run(outputs, "none")
    got, ran = run(outputs, "all")
    assert fused in ran and fused not in plain
    assert got == want


def on_device(array: NDArray[Any]) -> Tensor:
    """A leaf in memory of the device."""
    type = {"float32": "f32", "int32": "i32", "int64": "i64"}[array.dtype.name]
    leaf = zeros(type, array.shape[::-1], buffer_type=DEVICE.buffer_type, flags=Flag.WEIGHT)
    assert leaf.place is not None
    leaf.place.buffer.write(leaf.place.offset, array.reshape(-1).view(np.uint8))
    return leaf


def floats(*ne: int) -> Tensor:
    return on_device(RNG.standard_normal(ne[::-1]).astype(np.float32))


def computed(*ne: int) -> Tensor:
    """A node: its memory is given to others after its last use."""
    return ops.neg(floats(*ne))


@pytest.mark.parametrize("ne", SHAPES)
@pytest.mark.parametrize("norm", ["rms_norm", "norm"])
def test_a_norm_its_weight_and_its_bias(norm: str, ne: tuple[int, ...]) -> None:
    weighed = ops.mul(getattr(ops, norm)(computed(*ne), 1e-5), floats(ne[0]))
    check([weighed], f"{norm}+mul")
    check([ops.add(weighed, floats(*ne))], f"{norm}+mul+add")


def test_a_norm_with_what_is_repeated_and_what_is_strided() -> None:
    rows = ops.view_3d(floats(40, 6, 5), 33, 3, 5, 2 * 160, 6 * 160, 12)
    y = ops.mul(ops.rms_norm(rows, 1e-5), floats(33, 3))
    y = ops.add(y, ops.view_3d(floats(40, 3, 5), 33, 3, 5, 160, 480, 4))
    check([y], "rms_norm+mul+add")


@pytest.mark.parametrize("ne", SHAPES)
def test_a_sum_its_norm_and_its_weight(ne: tuple[int, ...]) -> None:
    total = ops.add(computed(*ne), computed(*ne))
    y = ops.mul(ops.rms_norm(total, 1e-5), floats(ne[0]))
    check([y], "add+rms_norm+mul")
    check([ops.add(total, y)], "add+rms_norm+mul")
    check([total, y], "add+rms_norm+mul")


@pytest.mark.parametrize("ne", SHAPES)
def test_a_norm_after_a_block_and_the_one_before_the_next(ne: tuple[int, ...]) -> None:
    b = computed(*ne)
    total = ops.add(ops.mul(ops.rms_norm(ops.sqr(b), 1e-6), floats(ne[0])), b)
    y = ops.mul(ops.rms_norm(total, 1e-5), floats(ne[0]))
    for outputs in ([total, y], [y], [y, b]):
        check(outputs, "rms_norm+mul+add+rms_norm+mul")


def stored(
    mode: RopeMode,
    cache_type: str,
    *,
    D: int = 32,
    Hk: int = 3,
    n_dims: int = 32,
    ids: Sequence[int] = (5, 0, 11, 2),
    ids_type: str = "int64",
    factors: bool = False,
) -> Tensor:
    T = len(ids)
    cache = zeros(cache_type, (D * Hk, 12), buffer_type=DEVICE.buffer_type, flags=Flag.STATE)
    positions = on_device(RNG.integers(0, 5000, T).astype(np.int32))
    freq_factors = on_device(RNG.uniform(1, 8, n_dims // 2).astype(np.float32))
    keys = ops.rope_ext(
        computed(D, Hk, T), positions, freq_factors if factors else None, n_dims, mode, 0,
        10_000.0, 1.0, 0.0, 1.0, 0.0, 0.0,
    )  # fmt: skip
    rows = on_device(np.array(ids, ids_type))
    return ops.set_rows(cache, ops.reshape_2d(keys, D * Hk, T), rows)


@pytest.mark.parametrize("type", CACHE_TYPES)
@pytest.mark.parametrize("mode", [RopeMode.NORMAL, RopeMode.NEOX])
def test_keys_turned_and_stored(mode: RopeMode, type: str) -> None:
    check([stored(mode, type)], "rope+set_rows")
    check([stored(mode, type, n_dims=16, factors=True, ids_type="int32")], "rope+set_rows")
    check([stored(mode, type, ids=(3, 3, 3))], "rope+set_rows")  # the last one wins
    check([stored(mode, type, D=80, Hk=2, n_dims=64)], "rope+set_rows")


@pytest.mark.parametrize("mode", [RopeMode.NORMAL, RopeMode.NEOX])
def test_odd_heads(mode: RopeMode) -> None:
    for D, n_dims in ((2, 2), (10, 6), (34, 34)):
        check([stored(mode, "f16", D=D, n_dims=n_dims)], "rope+set_rows")


@pytest.mark.parametrize("bad", [-1, 12])
def test_a_bad_row_stores_nothing_and_names_the_write(bad: int) -> None:
    y = stored(RopeMode.NEOX, "f16", ids=(1, bad, 2)).named("k_stored")
    with pytest.raises(IndexOutOfRange, match=rf"k_stored .*index {bad} "):
        run([y], "all")
    place = y.root.place
    assert place is not None
    assert not place.buffer.read(place.offset, y.root.spec.n_bytes).any()


def test_ropes_of_the_same_positions_share_a_table() -> None:
    """Unless their parameters differ."""
    positions = on_device(np.arange(4, dtype=np.int32))
    y = computed(32, 3, 4)
    for base in (1e4, 1e4, 1e6, 1e4):
        y = ops.rope_ext(y, positions, None, 32, 2, 0, base, 1.0, 0.0, 1.0, 0.0, 0.0)
    run = Executable(Graph(y), [DEVICE], passes="none")
    run.submit()
    assert DEVICE._last is not None
    names = [launch.form.name for launch in DEVICE._last.launches]
    run.synchronize()
    assert names.count("rope_f32") == 4
    assert names.count("rope_table") == 2


# --- queries, keys and values of a layer ----------------------------------------------------------

STORES = "rope+rope+set_rows+set_rows"


def attended(
    mode: RopeMode,
    k_type: str,
    v_type: str,
    *,
    D: int = 32,
    H: int = 6,
    Hk: int = 3,
    n_dims: int = 32,
    ids: Sequence[int] = (5, 0, 11, 2),
    ids_type: str = "int64",
    factors: bool = False,
) -> list[Tensor]:
    """Rotated queries, stored keys and stored values, of products of one x as in a model."""
    T = len(ids)
    x = computed(64, T)
    positions = on_device(RNG.integers(0, 5000, T).astype(np.int32))
    freq_factors = on_device(RNG.uniform(1, 8, n_dims // 2).astype(np.float32)) if factors else None
    rows = on_device(np.array(ids, ids_type))

    def rotated(n_heads: int) -> Tensor:
        heads = ops.reshape_3d(ops.mul_mat(floats(64, D * n_heads), x), D, n_heads, T)
        return ops.rope_ext(
            heads, positions, freq_factors, n_dims, mode, 0, 10_000.0, 1.0, 0.0, 1.0, 0.0, 0.0
        )

    def written(type: str, y: Tensor) -> Tensor:
        cache = zeros(type, (D * Hk, 12), buffer_type=DEVICE.buffer_type, flags=Flag.STATE)
        return ops.set_rows(cache, ops.reshape_2d(y, D * Hk, T), rows)

    query = rotated(H)
    keys = written(k_type, rotated(Hk)).named("k_stored")
    return [query, keys, written(v_type, ops.mul_mat(floats(64, D * Hk), x))]


@pytest.mark.parametrize(
    ("k_type", "v_type"),
    [("f16", "f16"), ("f32", "bf16"), ("bf16", "f32"), ("q8_0", "q8_0"), ("q4_0", "iq4_nl")],
)
@pytest.mark.parametrize("mode", [RopeMode.NORMAL, RopeMode.NEOX])
def test_queries_keys_and_values_in_one_launch(mode: RopeMode, k_type: str, v_type: str) -> None:
    check(attended(mode, k_type, v_type), STORES)
    check(attended(mode, k_type, v_type, D=80, Hk=2, n_dims=64, ids=(7,)), STORES)
    check(attended(mode, k_type, v_type, factors=True, ids_type="int32", ids=(3, 3, 3)), STORES)


def test_a_cache_of_two_kinds_takes_two_launches() -> None:
    _, ran = run(attended(RopeMode.NEOX, "q8_0", "f16"), "all")
    assert STORES not in ran and "rope+set_rows" in ran


@pytest.mark.parametrize("bad", [-1, 12])
def test_a_bad_row_stores_neither_keys_nor_values(bad: int) -> None:
    outputs = attended(RopeMode.NEOX, "f16", "f16", ids=(1, bad, 2))
    with pytest.raises(IndexOutOfRange, match=rf"k_stored .*index {bad} "):
        run(outputs, "all")
    assert STORES in DEVICE.ops
    for y in outputs[1:]:
        place = y.root.place
        assert place is not None
        assert not place.buffer.read(place.offset, y.root.spec.n_bytes).any()
