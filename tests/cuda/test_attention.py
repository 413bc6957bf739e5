"""Attention on the emulated device: one order of sums, however queries are cut into blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends import get_backend
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.backends.cuda.kernels import attention as kernels
from ggmlpy.backends.cuda.source import Form
from ggmlpy.conformance.bounds import expect
from ggmlpy.conformance.cases.attention import attention
from ggmlpy.conformance.checks import check_case
from ggmlpy.conformance.judge import judge
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.arrays import read_array
from ggmlpy.graph.count import Symbol
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor, from_numpy, zeros
from ggmlpy.sched.executable import Executable

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def device(n_sm: int = 4) -> CudaBackend:
    driver = EmulatedDriver()
    driver.info = replace(driver.info, n_sm=n_sm)
    return CudaBackend(driver)


def quantised(values: F32, type: str) -> Tensor:
    """A leaf of that type, [heads, cells, size] in numpy order, rows of cells apart."""
    heads, n_cells, size = values.shape
    leaf = zeros(type, (size, heads, n_cells))  # as rows of a cache lie: heads inside tokens
    by_token = from_numpy(np.ascontiguousarray(values.transpose(1, 0, 2)))
    copied = ops.cpy(by_token, leaf)
    Executable(Graph(copied), [get_backend("cpu")]).run()
    return ops.permute(leaf, 0, 2, 1, 3)


@dataclass
class Problem:
    """Queries over lists of the cells of a cache."""

    q: F32  # [heads, queries, size]
    k: Tensor  # [size, cells, heads of K]
    v: Tensor
    cells: I32  # [lists, entries]
    seen: I32  # [queries, 3]
    scale: float = 0.3
    softcap: float = 0.0
    mask: NDArray[np.float16] | None = None  # [1, 1, queries, entries]

    @staticmethod
    def random(
        seen: list[tuple[int, int, int]], n_entries: int, type: str, size: int, size_v: int = 0,
        heads: tuple[int, int] = (4, 2), n_cells: int = 0, n_lists: int = 2,
    ) -> Problem:  # fmt: skip
        rng = np.random.default_rng(len(seen))
        n_cells = n_cells or n_entries
        n_heads, n_kv_heads = heads

        def leaf(n: int) -> Tensor:
            values = rng.standard_normal((n_kv_heads, n_cells, n)).astype(np.float32)
            return quantised(values, type)

        cells = np.stack(
            [np.resize(rng.permutation(n_cells), n_entries) for _ in range(n_lists)]
        ).astype(np.int32)
        q = rng.standard_normal((n_heads, len(seen), size)).astype(np.float32)
        return Problem(q, leaf(size), leaf(size_v or size), cells, np.array(seen, np.int32))

    def node(self, queries: list[int] | slice, by_stream: bool = False) -> Tensor:
        """Attention of some queries, in one stream or each its own."""
        q, seen = self.q[:, queries], self.seen[queries]
        if by_stream:
            q, seen = q.transpose(1, 0, 2)[:, :, None], seen[:, None]  # [queries, heads, 1, size]
        else:
            q, seen = q[None], seen[None]
        return ops.flash_attn_ext(
            from_numpy(np.ascontiguousarray(q)), self.k, self.v,
            None if self.mask is None else from_numpy(self.mask), self.scale, 0.0, self.softcap,
            cells=from_numpy(self.cells), seen=from_numpy(np.ascontiguousarray(seen)),
        )  # fmt: skip

    def run(
        self, queries: list[int] | slice = slice(None), by_stream: bool = False, n_sm: int = 4
    ) -> F32:
        """[queries, heads, size of V]"""
        y = self.node(queries, by_stream)
        executable = Executable(Graph(y), [device(n_sm)])
        executable.run()
        values: F32 = read_array(executable.raw(y), y.spec)
        return values[:, 0] if by_stream else values[0]


def raw(values: F32) -> bytes:
    return values.tobytes()


# Types that are read in different ways, with the sizes that kernels are made for and others.
KINDS = [
    ("f32", 40, 0), ("bf16", 160, 40), ("f16", 64, 0), ("f16", 24, 0), ("q8_0", 64, 0),
    ("f16", 96, 160), ("f16", 128, 0),
]  # fmt: skip


def check(problem: Problem) -> None:
    """Values are within their bounds, and the same bits alone, together, split and unsplit."""
    y = problem.node(slice(None))
    backend = device()
    executable = Executable(Graph(y), [backend])
    executable.run()
    values = read_array(executable.raw(y), y.spec)
    sources = [executable_value(source) for source in y.src]
    assert judge(y, values, expect(y, sources, backend.rounding(y))) == ""
    whole: F32 = values[0]
    for n_sm in (1, 1000):  # a block walks all chunks, or each chunk is a block's
        assert raw(problem.run(n_sm=n_sm)) == raw(whole), n_sm
    assert raw(problem.run(by_stream=True)) == raw(whole)
    n = len(problem.seen)
    for some in ([0], [n - 1], list(range(n // 2, n)), list(range(n))[::-1]):
        assert raw(problem.run(some)) == raw(whole[some]), some


def executable_value(source: Tensor) -> NDArray[Any]:
    root = source.root
    assert root.place is not None
    data = root.place.buffer.read(root.place.offset, root.spec.n_bytes)
    return read_array(data, source.spec, source.view_offs)


@pytest.mark.parametrize(("type", "size", "size_v"), KINDS)
def test_a_prompt_has_the_bits_of_its_tokens_one_by_one(type: str, size: int, size_v: int) -> None:
    seen = [(0, 0, n + 1) for n in range(500, 520)]
    check(Problem.random(seen, 600, type, size, size_v))


@pytest.mark.parametrize(("type", "size", "size_v"), KINDS)
def test_queries_of_any_lists_and_windows(type: str, size: int, size_v: int) -> None:
    seen = [(1, 0, 700), (1, 3, 690), (1, 400, 64), (0, 0, 700), (1, 699, 1), (0, 5, 0),
            (0, 256, 256), (0, 255, 3), (1, 130, 500)]  # fmt: skip
    check(Problem.random(seen, 700, type, size, size_v, heads=(6, 2), n_cells=100))


@pytest.mark.parametrize("heads", [(1, 1), (7, 1), (20, 1), (9, 3), (64, 2)])
@pytest.mark.parametrize(("type", "size"), [("f32", 32), ("q4_0", 32), ("f16", 64)])
def test_any_number_of_heads(type: str, size: int, heads: tuple[int, int]) -> None:
    seen = [(0, 0, n + 1) for n in range(265, 271)]
    check(Problem.random(seen, 280, type, size, heads=heads))


@pytest.mark.parametrize(("type", "size"), [("f32", 16), ("f16", 16)])
def test_chunks_grow_with_the_length(type: str, size: int) -> None:
    seen = [(0, 0, 132_000), (0, 65_000, 900), (0, 130_000, 1900), (0, 65_535, 2)]
    check(Problem.random(seen, 132_000, type, size, heads=(1, 1), n_lists=1))


@pytest.mark.parametrize(("type", "size", "size_v"), KINDS)
def test_what_is_not_finite_stays_with_those_who_see_it(type: str, size: int, size_v: int) -> None:
    seen = [(0, 0, n + 1) for n in range(300, 310)]
    problem = Problem.random(seen, 320, type, size, size_v)
    want = problem.run()
    at = int(problem.cells[0, 305])
    for cache in (problem.k, problem.v):
        root = cache.root
        assert root.place is not None
        rows = root.place.host_bytes.reshape(320, -1)
        rows[at] = 0xFF  # NaN in f32 and f16, and in the scale of q8_0
    got = problem.run()
    assert raw(got[:5]) == raw(want[:5])
    assert np.isnan(got[5:]).all()


@pytest.mark.parametrize("n_tokens", [1, 3, 17, 40])
@pytest.mark.parametrize(("type", "size"), [("f32", 32), ("q8_0", 32), ("f16", 64)])
def test_fewer_queries_than_there_is_room_for(type: str, size: int, n_tokens: int) -> None:
    seen = [(i % 3 // 2, 0, 200 + i) for i in range(40)]
    problem = Problem.random(seen, 300, type, size)
    T = Symbol("T", 40)
    q = zeros("f32", (size, 4, T.count))
    q.array()[:] = problem.q.transpose(1, 0, 2).reshape(q.array().shape)
    visible = zeros("i32", (3, T.count))
    visible.array()[:] = problem.seen.reshape(visible.array().shape)
    y = ops.flash_attn_ext(
        ops.permute(q, 0, 2, 1, 3), problem.k, problem.v, None, problem.scale, 0.0, 0.0,
        cells=from_numpy(problem.cells), seen=visible,
    )  # fmt: skip
    executable = Executable(Graph(y), [device()])
    for n in (40, n_tokens):
        executable.set_counts({T: n})
        executable.run()
    rows = executable.raw(y).view(np.float32).reshape(n_tokens, 4, size)
    assert raw(rows) == raw(problem.run(slice(0, n_tokens)))


@pytest.mark.parametrize("wrong", [(2, 0, 5), (-1, 0, 5), (0, -1, 5), (0, 301, 0), (0, 0, -1),
                                   (0, 290, 11), (0, 2**31 - 1, 2**31 - 1)])  # fmt: skip
@pytest.mark.parametrize(("type", "size"), [("f32", 32), ("q8_0", 32), ("f16", 64)])
def test_lists_that_do_not_exist_are_errors(
    type: str, size: int, wrong: tuple[int, int, int]
) -> None:
    problem = Problem.random([(0, 0, 300), wrong, (1, 0, 300)], 300, type, size)
    with pytest.raises(IndexOutOfRange):
        problem.run()


@pytest.mark.parametrize("cell", [-1, 300, 2**31 - 1])
@pytest.mark.parametrize(("type", "size"), [("f32", 32), ("q8_0", 32), ("f16", 64)])
def test_only_cells_that_are_seen_must_exist(type: str, size: int, cell: int) -> None:
    problem = Problem.random([(0, 10, 280), (0, 20, 200)], 300, type, size)
    problem.cells[0, :10] = problem.cells[0, 290:] = problem.cells[1] = cell
    problem.run()
    problem.cells[0, 12] = cell
    with pytest.raises(IndexOutOfRange, match=str(cell)):
        problem.run()


@pytest.mark.parametrize("size", [40, 64, 96, 128, 200, 256])
def test_large_scores(size: int) -> None:
    """Of which the rounding of q is what results are wrong by."""
    backend = device()
    for case in (
        attention(size, n, (6, 2), 113, mask=mask, scale=scale, softcap=softcap)
        for n in (1, 9)
        for mask in ("random", "causal")
        for scale, softcap in ((3.0, 0.0), (100.0, 0.0), (3.0, 30.0))
    ):
        assert check_case(case, backend) == "", case.id


@pytest.mark.parametrize("magnitude", [1e-30, 1e-10, 1e10, 1e30])
def test_queries_of_any_magnitude(magnitude: float) -> None:
    problem = Problem.random([(0, 0, 100), (0, 0, 70)], 100, "f16", 64)
    want = problem.run()
    power = 2.0 ** round(math.log2(magnitude))
    problem.q = (problem.q * power).astype(np.float32)
    problem.scale /= power
    assert np.abs(problem.run() - want).max() < 1e-5


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("masked", [False, True])
def test_blocks_of_prompts_have_the_bits_of_blocks_of_decoding(
    size: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tiles of rows for a warp and two groups of warps, or one: more queries than a block has,
    which see chunks in part, none of some, and the next sequence's list."""
    forms: list[tuple[int, ...]] = []
    mma = kernels._mma

    def chosen(n: int, padded: bool, converted: bool, row_tiles: int = 1) -> Form:
        forms.append((n, row_tiles))
        return mma(n, padded, converted, row_tiles)

    monkeypatch.setattr(kernels, "_mma", chosen)
    ends = [*range(650, 710), 0, 300, *range(20, 40)]
    seen = [(0, 0, n) for n in ends[:70]] + [(1, max(0, n - 10), min(n, 10)) for n in ends[70:]]
    problem = Problem.random(seen, 720, "f16", size, heads=(4, 1), n_lists=2)
    if masked:
        hidden = np.zeros((1, 1, len(seen), 720), np.float16)
        hidden[..., 5::97] = -np.inf
        problem.mask = hidden
    large, small = problem.run(n_sm=1), problem.run(n_sm=1000)
    assert forms == [(size, 2), (size, 1)]
    assert raw(large) == raw(small)
    problem.mask = None
    problem.run(by_stream=True, n_sm=1)
    assert forms[2:] == [(size, 1)]  # a stream of one query leaves most rows of a large block idle
