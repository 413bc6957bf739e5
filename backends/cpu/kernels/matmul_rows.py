"""mul_mat and mul_mat_id where the first factor is not a weight of a format (matmul.py): views of a
KV cache, results, types without a format of their own; its rows must be contiguous.

Each of its rows is converted to f32 once, in memory of the thread, for all rows of x that need it.
A dot product keeps 2 x 16 lanes, element i in lane i % 32, which are summed by one fixed tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.builder import PlanBuilder
from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Kernel, Record, inline, kernel
from ggmlpy.backends.cpu.kernels import matmul_lists
from ggmlpy.backends.cpu.kernels.dequantize_k import READERS
from ggmlpy.backends.cpu.kernels.matmul_lists import (
    bind_float_rows,
    clear_rows_without_matrix,
    list_addresses,
    list_bytes,
    make_lists,
)
from ggmlpy.backends.cpu.kernels.types import FLOATS, rows_ok
from ggmlpy.backends.cpu.rows import row_ptr, share
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.memory import load_f32x16, load_f32x16_part, load_i64
from ggmlpy.backends.cpu.simd.product import (
    add_lanes,
    add_lanes_part,
    add_tiles,
    load_rows,
    store_lane_sums,
)
from ggmlpy.backends.cpu.simd.tile import tile_f32x16
from ggmlpy.graph.tensor import Tensor

ARGS = np.dtype([*matmul_lists.FIELDS, ("weight", TENSOR)], align=True)
_CACHE_BYTES = 1 << 15  # rows read ahead of their products, half of an L1 cache or more
_LINE_BYTES = 64


def requires(node: Tensor) -> bool:
    return rows_ok(node.src[0])


def _row_bytes(k: int) -> int:
    """A row as f32, up to the next cache line."""
    return -(-4 * k // _LINE_BYTES) * _LINE_BYTES


def _stride(node: Tensor) -> int:
    """Bytes of scratch memory for a thread: its lists, then rows as f32."""
    lists = -(-list_bytes(node) // _LINE_BYTES) * _LINE_BYTES
    return lists + max(_CACHE_BYTES, _row_bytes(node.src[0].ne[0]))


def scratch_bytes(node: Tensor, n_threads: int) -> int:
    return n_threads * _stride(node)


def bind(node: Tensor, builder: PlanBuilder) -> dict[str, Any]:
    return bind_float_rows(node, builder) | {"scratch_stride": _stride(node)}


@inline
def _dot(zeros: Any, w: Int, k: Int, xs: Int, ys: Int, at: Int) -> None:
    """The row of f32 at `w` times as many rows of x as `zeros` is wide."""
    rows = load_rows(zeros, xs)
    even = zeros
    odd = zeros
    whole = k & -32
    for i in range(0, 4 * whole, 128):
        even = add_lanes(even, load_f32x16(w + i), rows, i)
        odd = add_lanes(odd, load_f32x16(w + i + 64), rows, i + 64)
    if whole < k:
        i, rest = 4 * whole, k - whole
        even = add_lanes_part(even, load_f32x16_part(w + i, rest), rows, i, rest)
        i, rest = i + 64, rest - 16
        odd = add_lanes_part(odd, load_f32x16_part(w + i, rest), rows, i, rest)
    store_lane_sums(add_tiles(even, odd), load_rows(zeros, ys), at)


@inline
def _products(
    buffer: Int, row_bytes: Int, n: Int, k: Int, xs: Int, ys: Int, end: Int, at: Int
) -> None:
    """`n` rows of f32 at `buffer` times the rows of x in the list from `xs` to `end`."""
    while xs + 32 <= end:
        for i in range(n):
            _dot(tile_f32x16(4), buffer + i * row_bytes, k, xs, ys, at + 4 * i)
        xs += 32
        ys += 32
    while xs < end:
        for i in range(n):
            _dot(tile_f32x16(1), buffer + i * row_bytes, k, xs, ys, at + 4 * i)
        xs += 8
        ys += 8


@inline
def _n_used(starts: Int, n_matrices: Int) -> Int:
    """How many matrices have any row of x."""
    n = 0
    for j in range(n_matrices):
        n += load_i64(starts + 8 * j) < load_i64(starts + 8 * j + 8)
    return n


def declare(type_name: str, read: Inline) -> Kernel:
    """The kernel for a first factor of one type."""

    @inline
    def some_rows(
        p: Record, row: Int, n: Int, buffer: Int, xs: Int, ys: Int, end: Int, at: Int
    ) -> None:
        """`n` rows of one matrix, from row `row` on of all, times the rows of x in its list."""
        k = p.weight.ne0
        row_bytes = (4 * k + 63) & -64
        step = max(1, quotient(_CACHE_BYTES, row_bytes))
        for done in range(0, n, step):
            n_here = min(step, n - done)
            for r in range(n_here):
                read(row_ptr(p.weight, row + done + r), buffer + r * row_bytes, k)
            _products(buffer, row_bytes, n_here, k, xs, ys, end, 4 * (at + done))

    @kernel(
        "mul_mat",
        (type_name, "f32"),
        args=ARGS,
        requires=requires,
        scratch_bytes=scratch_bytes,
        bind=bind,
        name=f"matmul_rows_{type_name}",
        also=[
            *(("mul_mat", (type_name, x)) for x in FLOATS if x != "f32"),
            *(("mul_mat_id", (type_name, x, "i32")) for x in FLOATS),
        ],
    )
    def matmul_rows(p: Record, ith: Int, nth: Int) -> None:
        """Threads share the rows of the matrices that any row of x needs."""
        starts, xs, ys, buffer = list_addresses(p, p.scratch + ith * p.scratch_stride)
        make_lists(p, starts, xs, ys)
        m, n_matrices = p.weight.ne1, p.a2 * p.a3
        n_rows = m * _n_used(starts, n_matrices)
        row, end = share(n_rows, ith, nth), share(n_rows, ith + 1, nth)
        matrix_end = 0
        for j in range(n_matrices):
            first, last = load_i64(starts + 8 * j), load_i64(starts + 8 * j + 8)
            if first == last:
                continue
            matrix_end += m
            if row < min(end, matrix_end):
                i, n = row + m - matrix_end, min(end, matrix_end) - row
                some_rows(p, j * m + i, n, buffer, xs + 8 * first, ys + 8 * first, xs + 8 * last, i)
                row += n
        clear_rows_without_matrix(p, starts, ys, ith, nth)

    return matmul_rows


KERNELS = {type_name: declare(type_name, read) for type_name, read in READERS.items()}
