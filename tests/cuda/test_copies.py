"""Copies and rows on the emulated device: counts that vary, many indices, random layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.base import Backend
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.backends.cuda.kernels.copy_loops import Loop, dims_of, together
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.buffer import Place
from ggmlpy.graph.count import Symbol
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_numpy, zeros
from ggmlpy.sched.executable import Executable

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

RNG = np.random.default_rng(0)
DEVICE, CPU = CudaBackend(EmulatedDriver()), CpuBackend()
T = Symbol("T", 9)
D, H = 64, 3


def values(*shape: int) -> NDArray[Any]:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def input_like(array: NDArray[Any], ne: tuple[int, ...]) -> Tensor:
    """An input whose memory holds the array; ne may have counts."""
    type = {"float32": "f32", "int32": "i32"}[array.dtype.name]
    leaf = zeros(type, ne, flags=Flag.INPUT)
    leaf.array().reshape(-1)[:] = array.reshape(-1)
    return leaf


# --- loops ----------------------------------------------------------------------------------------


def loops(y: Tensor, x: Tensor) -> list[Loop] | None:
    return together(dims_of(y), dims_of(x))


def test_a_reshaped_copy_is_one_loop() -> None:
    assert loops(zeros("f32", (64, 18)), zeros("f32", (64, 6, 3))) == [Loop(64 * 18, 4, 4)]


def test_a_permuted_copy_keeps_the_loops_whose_strides_differ() -> None:
    x = ops.permute(zeros("f32", (4, 5, 6)), 0, 2, 1, 3)  # [4, 6, 5]
    got = loops(zeros("f32", (4, 6, 5)), x)
    assert got == [Loop(4, 4, 4), Loop(6, 16, 80), Loop(5, 96, 16)]


def test_a_count_that_varies_leaves_a_gap_behind_it() -> None:
    x = zeros("f32", (4, T.count, 5))
    got = loops(zeros("f32", (4, T.count, 5)), x)
    assert got == [Loop(4 * T.count, 4, 4), Loop(5, 144, 144)]


def test_shapes_without_a_common_cut_have_no_loops() -> None:
    x = ops.view_2d(zeros("f32", (16, 3)), 10, 3, 64, 0)
    y = ops.view_2d(zeros("f32", (8, 5)), 6, 5, 32, 0)
    assert loops(y, x) is None


# --- counts ---------------------------------------------------------------------------------------

_T = T.count
Build = Callable[[], Tensor]


def heads() -> Tensor:
    return input_like(values(9, H, D), (D, H, _T))


def tokens() -> Tensor:
    return input_like(values(9, D), (D, _T))


def ids(limit: int, n: int = 9) -> Tensor:
    return input_like(RNG.permutation(limit)[:n].astype(np.int32), (_T,))


def state(type: str, *ne: int) -> Tensor:
    return zeros(type, ne, flags=Flag.STATE)


BUILDS: dict[str, Build] = {
    "cont of permuted": lambda: ops.cont(ops.permute(heads(), 0, 2, 1, 3)),
    "cont of transposed": lambda: ops.cont(ops.transpose(tokens())),
    "cont to other shape": lambda: ops.cont_2d(ops.permute(heads(), 1, 0, 2, 3), D * H, _T),
    "cont with gaps": lambda: ops.cont_3d(
        ops.permute(ops.cont(ops.permute(heads(), 0, 2, 1, 3)), 0, 2, 1, 3), H, D, _T
    ),
    "cast": lambda: ops.cast(ops.permute(heads(), 0, 2, 1, 3), "f16"),
    "cast of transposed": lambda: ops.cast(ops.transpose(tokens()), "bf16"),
    "cast to blocks": lambda: ops.cast(ops.permute(heads(), 0, 2, 1, 3), "q8_0"),
    "concat along tokens": lambda: ops.concat(tokens(), input_like(values(2, D), (D, 2)), 1),
    "concat along features": lambda: ops.concat(tokens(), tokens(), 0),
    "concat of transposed": lambda: ops.concat(
        ops.cont(ops.transpose(tokens())), input_like(values(D, 3), (3, D)), 0
    ),
    "repeat": lambda: ops.repeat_4d(input_like(values(1, D), (D, 1)), D, _T, 2, 1),
    "repeat of tokens": lambda: ops.repeat_4d(tokens(), 2 * D, _T, 3, 1),
    "get_rows": lambda: ops.get_rows(from_numpy(values(20, D)), ids(20)),
    "set_rows": lambda: ops.set_rows(state("f16", D, 20), tokens(), ids(20)),
    "set_rows of blocks": lambda: ops.set_rows(state("q4_0", D, 20), tokens(), ids(20)),
}


def on(backend: Backend, y: Tensor) -> Executable:
    """A graph for a backend, which has empty states in its memory."""
    graph = Graph(y)
    for leaf in graph.leafs:
        if Flag.STATE in leaf.flags:
            leaf.place = Place(backend.buffer_type.allocate(leaf.spec.n_bytes))
    return Executable(graph, [backend])


def run(backend: Backend, y: Tensor, n: int) -> bytes:
    executable = on(backend, y)
    for count in (T.bound, n):
        executable.set_counts({T: count})
        executable.run()
    return executable.read(y).tobytes()


@pytest.mark.parametrize("name", BUILDS)
def test_counts_of_a_run(name: str) -> None:
    y = BUILDS[name]()
    for n in (1, 5, 9):
        assert run(DEVICE, y, n) == run(CPU, y, n), f"{n} of {T.bound} tokens"


# --- many indices ---------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["f16", "q8_0"])
@pytest.mark.parametrize("n_lists", [1, 2])
def test_of_many_rows_with_one_index_the_last_counts(type: str, n_lists: int) -> None:
    n, n_rows = 1500 // n_lists, 40
    rows = RNG.integers(0, n_rows, (n_lists, n), dtype=np.int64)
    x = from_numpy(values(2, n, 32))  # [32, n, 2]
    y = ops.set_rows(state(type, 32, n_rows, 2), x, from_numpy(rows))
    assert run_once(DEVICE, y) == run_once(CPU, y)


def test_one_bad_index_of_many_leaves_every_row() -> None:
    rows = RNG.integers(0, 40, 1500, dtype=np.int64)
    rows[1234] = 40
    cache = state("f16", 32, 40)
    executable = on(DEVICE, ops.set_rows(cache, from_numpy(values(1500, 32)), from_numpy(rows)))
    with pytest.raises(IndexOutOfRange, match="40"):
        executable.run()
    assert not np.frombuffer(cache.tobytes(), np.uint8).any()


def run_once(backend: Backend, y: Tensor) -> bytes:
    executable = on(backend, y)
    executable.run()
    return executable.raw(y).tobytes()
