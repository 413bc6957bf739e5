"""Products on the emulated device: fused with what follows, with counts that vary, of many shapes.

The conformance table has their values and types; here are the bits of fused steps and of parts.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.base import Places
from ggmlpy.backends.base import Plan as BackendPlan
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.backends.cuda.kernels import products
from ggmlpy.backends.cuda.kernels.glu import GLUS
from ggmlpy.backends.cuda.kernels.quants import QUANTS
from ggmlpy.backends.cuda.plan import CudaPlan
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.conformance.blocks import random_rows
from ggmlpy.graph.arrays import element_view
from ggmlpy.graph.count import Symbol
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, zeros
from ggmlpy.graph.types import type_of
from ggmlpy.sched.executable import Executable

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

WIDE = products.WIDE.name
RNG = np.random.default_rng(0)
COLUMNS = (1, 8, 9, 40, 150)  # few; a block of many, and two
TYPES = ("q4_0", "q4_K", "q6_K", "f16", "f32")


class Recording(CudaBackend):
    """Remembers the ops of its steps."""

    def __init__(self) -> None:
        super().__init__(EmulatedDriver())
        self.ops: list[str] = []

    def plan(self, steps: Sequence[Step], places: Places) -> BackendPlan:
        self.ops += [step.op for step in steps]
        return super().plan(steps, places)


DEVICE = Recording()


def run(y: Tensor, passes: str) -> tuple[bytes, list[str]]:
    DEVICE.ops.clear()
    executable = Executable(Graph(y), [DEVICE, ReferenceBackend()], passes=passes)
    for _ in range(2):
        executable.run()
    return executable.raw(y).tobytes(), list(DEVICE.ops)


def check(y: Tensor, fused: str) -> None:
    """The fused step has the bits of its nodes."""
    want, plain = run(y, "none")
    got, ran = run(y, "all")
    assert fused in ran and fused not in plain
    assert got == want


def on_device(raw: NDArray[Any], type: str, ne: Sequence[int]) -> Tensor:
    """A leaf in memory of the device."""
    leaf = zeros(type, ne, buffer_type=DEVICE.buffer_type, flags=Flag.WEIGHT)
    assert leaf.place is not None
    leaf.place.buffer.write(leaf.place.offset, raw.reshape(-1).view(np.uint8))
    return leaf


def weight(type: str, *ne: int) -> Tensor:
    return on_device(random_rows(RNG, type_of(type), int(np.prod(ne[1:])), ne[0]), type, ne)


def floats(*ne: int) -> Tensor:
    return on_device(RNG.standard_normal(ne[::-1]).astype(np.float32), "f32", ne)


def experts(chosen: Sequence[Sequence[int]]) -> Tensor:
    return on_device(np.array(chosen, np.int32), "i32", (len(chosen[0]), len(chosen)))


def some_experts(n_experts: int, n_used: int, n_tokens: int) -> list[list[int]]:
    return [RNG.permutation(n_experts)[:n_used].tolist() for _ in range(n_tokens)]


@pytest.mark.parametrize("n", COLUMNS)
@pytest.mark.parametrize("type", TYPES)
def test_a_gated_unit(type: str, n: int) -> None:
    x = ops.neg(floats(512, n))
    gate, up = (ops.mul_mat(weight(type, 512, 200), x) for _ in range(2))
    check(ops.swiglu_split(gate, up), "mul_mat+mul_mat+swiglu")


@pytest.mark.parametrize("glu", [name for name in GLUS if name != "swiglu_clamp"])
def test_gated_units_of_all_kinds(glu: str) -> None:
    x = ops.neg(floats(256, 3))
    gate, up = (ops.mul_mat(weight("q8_0", 256, 33), x) for _ in range(2))
    more = (1.7, 7.0) if glu == "swiglu_oai" else ()
    name = glu if glu == "swiglu_oai" else f"{glu}_split"
    check(getattr(ops, name)(gate, up, *more), f"mul_mat+mul_mat+{glu}")


@pytest.mark.parametrize("n", COLUMNS)
@pytest.mark.parametrize("type", TYPES)
def test_a_bias(type: str, n: int) -> None:
    product = ops.mul_mat(weight(type, 256, 100), ops.neg(floats(256, n)))
    check(ops.add(product, weight("f32", 100)), "mul_mat+add")


@pytest.mark.parametrize("n", COLUMNS)
@pytest.mark.parametrize("type", TYPES)
def test_products_of_one_x(type: str, n: int) -> None:
    """Those of few columns are one launch, whose parts have numbers of rows of their own."""
    x = ops.neg(floats(512, n))
    parts = [ops.mul_mat(weight(type, 512, m), x) for m in (100, 16, 33)]
    biased = [ops.add(ops.mul_mat(weight(type, 512, m), x), weight("f32", m)) for m in (16, 50)]
    check(joined(*parts), "mul_mat+mul_mat+mul_mat")
    check(joined(*biased), "mul_mat+add+mul_mat+add")
    check(joined(*parts[1:]), "mul_mat+mul_mat")
    executable = Executable(Graph(joined(*parts)), [DEVICE])
    executable.submit()
    assert DEVICE._last is not None
    names = [launch.form.name for launch in DEVICE._last.launches]
    executable.synchronize()
    assert sum(name.startswith("multiply_") for name in names) == (1 if n <= 8 else 3)


@pytest.mark.parametrize("type", ["f32", "f16", "bf16", *QUANTS])
def test_a_column_has_the_bits_that_it_has_among_others(type: str) -> None:
    """By kernels that share no arithmetic; of rows that end within a chunk, too."""
    for k in (1024, 96) if type_of(type).block_size <= 32 else (1024, 768):
        w, x = weight(type, k, 50), floats(k, 3)
        together, _ = run(ops.mul_mat(w, x), "none")
        columns = [ops.view_2d(x, k, 1, x.nb[1], i * x.nb[1]) for i in range(3)]
        alone = [run(ops.mul_mat(w, column), "none")[0] for column in columns]
        assert b"".join(alone) == together


def test_a_long_column_is_rounded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a launch of its own, where blocks have no room for it; the bits are the same."""
    y = ops.mul_mat(weight("q4_K", 1024, 300), floats(1024))
    itself, _ = run(y, "none")
    monkeypatch.setattr(products, "_MOST_ROUNDED_BYTES", 0)
    before, _ = run(y, "none")
    assert before == itself


def test_blocks_take_groups_of_rows_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    x = floats(512)
    y = joined(*(ops.mul_mat(weight("q4_0", 512, m), x) for m in (100, 20, 333)))
    apart, _ = run(y, "none")
    monkeypatch.setattr(products, "_ONE_BLOCKS", 1)
    info = replace(DEVICE.driver.info, n_sm=5)
    monkeypatch.setattr(DEVICE.driver, "info", info)
    in_turns, ran = run(y, "all")
    assert "mul_mat+mul_mat+mul_mat" in ran
    assert in_turns == apart


def kernels_of(y: Tensor) -> list[str]:
    plans = cast(list[CudaPlan], Executable(Graph(y), [DEVICE])._plans)
    return [launch.form.name for plan in plans for launch in plan.launches]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide blocks are free, so that they are taken wherever they can be."""
    for name in ("_WIDE_CLOCKS", "_WIDE_SLICE_CLOCKS"):
        monkeypatch.setattr(products, name, -1000)


def narrow(y: Tensor, monkeypatch: pytest.MonkeyPatch) -> bytes:
    with monkeypatch.context() as patched:
        patched.setattr(products, "_WIDE_CLOCKS", 10**6)
        assert WIDE not in kernels_of(y)
        return run(y, "all")[0]


@pytest.mark.parametrize(
    ("k", "m", "n"), [(64, 128, 256), (640, 130, 300), (1024, 50, 9), (576, 256, 40)]
)
@pytest.mark.parametrize("kind", ["plain", "gated", "biased", "stored"])
@pytest.mark.usefixtures("wide")
def test_wide_blocks(kind: str, k: int, m: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the bits of others: with parts of blocks, fewer chunks than slices, x of f16."""
    x = weight("f16", k, n) if kind == "stored" else ops.neg(floats(k, n))
    y = ops.mul_mat(weight("f16", k, m), x)
    if kind == "gated":
        y = ops.swiglu_split(y, ops.mul_mat(weight("f16", k, m), x))
    elif kind == "biased":
        y = ops.add(y, weight("f32", m))
    assert WIDE in kernels_of(y)
    assert run(y, "all")[0] == narrow(y, monkeypatch)


@pytest.mark.usefixtures("wide")
def test_wide_blocks_of_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that several matrices share, and columns of which a run has a part."""
    y = ops.mul_mat(weight("f16", 128, 70, 2), floats(128, 20, 4))
    assert WIDE in kernels_of(y)
    assert run(y, "none")[0] == narrow(y, monkeypatch)
    test_numbers_of_columns_that_vary("f16")


@pytest.mark.usefixtures("wide")
def test_wide_blocks_take_whole_chunks_of_rows_that_are_aligned() -> None:
    N = Symbol("N", 128)
    rows, x = weight("f16", 256, 40), floats(256, 20)
    part = ops.view_2d(rows, N.count, 40, rows.nb[1], 0)
    of_x = ops.view_2d(x, N.count, 20, x.nb[1], 0)
    shifted = ops.view_2d(rows, 128, 40, rows.nb[1], 2)
    others = [
        ops.mul_mat(weight("f16", 96, 40), floats(96, 20)),
        ops.mul_mat(part, of_x),
        ops.mul_mat(shifted, floats(128, 20)),
        ops.mul_mat(weight("bf16", 128, 40), floats(128, 20)),
    ]
    assert all(WIDE not in kernels_of(y) for y in others)


def test_wide_blocks_are_for_products_that_fill_multiprocessors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where smaller blocks do too, and there is shared memory."""
    x = zeros("f32", (2048, 512), buffer_type=DEVICE.buffer_type)
    large, small = (
        ops.mul_mat(zeros("f16", (2048, m), buffer_type=DEVICE.buffer_type), x) for m in (1024, 128)
    )
    assert (
        DEVICE.driver.info.n_sm == 4
    )  # of large 32 smaller blocks or 16 wide ones, of small 4 or 2
    assert WIDE in kernels_of(large) and WIDE not in kernels_of(small)
    info = replace(DEVICE.driver.info, shared_bytes=163 << 10)
    monkeypatch.setattr(DEVICE.driver, "info", info)
    assert WIDE not in kernels_of(large)


@pytest.mark.parametrize("n", [9, 260])
@pytest.mark.parametrize("rows", [(130, 40, 20), (16, 100)])
@pytest.mark.parametrize("biased", [False, True])
def test_wide_blocks_of_products_of_one_x(
    biased: bool, rows: tuple[int, ...], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch, whose parts have blocks of rows of their own, and the bits of several."""
    for name in ("_WIDE_CLOCKS", "_WIDE_SLICE_CLOCKS"):
        monkeypatch.setattr(products, name, 0)
    x = ops.neg(floats(640, n))
    parts = [ops.mul_mat(weight("f16", 640, m), x) for m in rows]
    if biased:
        parts = [ops.add(y, weight("f32", m)) for y, m in zip(parts, rows, strict=True)]
    kernels = kernels_of(joined(*parts))
    assert kernels.count(WIDE) == 1
    assert sum(name.startswith("multiply_") for name in kernels) == 1
    assert run(joined(*parts), "all")[0] == narrow(joined(*parts), monkeypatch)


def joined(*results: Tensor) -> Tensor:
    return functools.reduce(lambda a, b: ops.concat(a, b, 0), results)


@pytest.mark.parametrize("n_tokens", [1, 5, 6, 70])
@pytest.mark.parametrize("type", TYPES)
def test_experts(type: str, n_tokens: int) -> None:
    ids, x = experts(some_experts(7, 3, n_tokens)), ops.neg(floats(256, 1, n_tokens))
    gate, up = (ops.mul_mat_id(weight(type, 256, 72, 7), x, ids) for _ in range(2))
    check(ops.swiglu_split(gate, up), "mul_mat_id+mul_mat_id+swiglu")
    check(ops.add(gate, weight("f32", 72)), "mul_mat_id+add")


@pytest.mark.parametrize("type", TYPES)
def test_an_expert_has_the_bits_of_its_matrix(type: str) -> None:
    T, E = 40, 5
    stored, x = weight(type, 512, 48, E), floats(512, 2, T)
    chosen = some_experts(E, 2, T)
    ids = experts(chosen)
    raw, _ = run(ops.mul_mat_id(stored, x, ids), "none")
    got = np.frombuffer(raw, np.float32).reshape(T, 2, 48)
    for t, u in ((0, 0), (3, 1), (T - 1, 1)):
        matrix = ops.view_2d(stored, 512, 48, stored.nb[1], chosen[t][u] * stored.nb[2])
        row = ops.view_2d(x, 512, 1, x.nb[1], t * x.nb[2] + u * x.nb[1])
        assert run(ops.mul_mat(matrix, row), "none")[0] == got[t, u].tobytes()


@pytest.mark.parametrize("type", TYPES)
def test_numbers_of_columns_that_vary(type: str) -> None:
    T = Symbol("T", 40)
    x = floats(512, 40)
    counted = ops.view_2d(x, 512, T.count, x.nb[1], 0)
    stored = [weight(type, 512, 50) for _ in range(2)]
    gate, up = (ops.mul_mat(w, counted) for w in stored)
    y = ops.swiglu_split(gate, up)
    executable = Executable(Graph(y), [DEVICE, ReferenceBackend()])
    for n in (40, 1, 17, 40):
        executable.set_counts({T: n})
        executable.run()
        got = executable.raw(y)[: 4 * 50 * n].tobytes()
        part = ops.view_2d(x, 512, n, x.nb[1], 0)
        gate, up = (ops.mul_mat(w, part) for w in stored)
        assert got == run(ops.swiglu_split(gate, up), "all")[0]


@pytest.mark.parametrize("type", ["f16", "f32"])
def test_lengths_and_rows_that_vary(type: str) -> None:
    """Attention without a kernel of its own: as many keys as a run has."""
    N, D, H, T = Symbol("N", 300), 64, 2, 3
    keys, values = weight(type, D, 300, H), weight(type, 300, D, H)
    q = floats(D, T, 2 * H)
    n = N.count
    scores = ops.mul_mat(ops.view_3d(keys, D, n, H, keys.nb[1], keys.nb[2], 0), q)
    part = ops.view_3d(values, n, D, H, values.nb[1], values.nb[2], 0)
    y = ops.mul_mat(part, ops.soft_max(scores))
    executable = Executable(Graph(y), [DEVICE, ReferenceBackend()])
    for count in (300, 1, 31, 129):
        executable.set_counts({N: count})
        executable.run()
        got: Any = np.array(element_view(executable.raw(y), y.spec))
        scores_alone = ops.mul_mat(ops.view_3d(keys, D, count, H, keys.nb[1], keys.nb[2], 0), q)
        part_alone = ops.view_3d(values, count, D, H, values.nb[1], values.nb[2], 0)
        alone = ops.mul_mat(part_alone, ops.soft_max(scores_alone))
        assert run(alone, "none")[0] == got.tobytes()
