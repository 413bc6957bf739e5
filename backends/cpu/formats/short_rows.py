"""The product of float weights of short rows, such as B of a LoRA adapter, with many rows of x.

To sum the 16 lanes of a dot product of 16 elements costs more than its multiplications. Here the 16
rows of a group are transposed, once for all rows of x of a unit: lane i works for weight row i, and
no sum crosses lanes.

    columns   element j of 16 weight rows, or zeros
    result    x[j] * column j, added by the tree of simd/reduce.py

Sums are built in the order of dots.py, so the bits are the same. One core of an EPYC with AVX512
multiplies 2048 weight rows of 16 elements with 512 rows of x in 0.34 ms, as dots in 0.85
(2026-11-26); with rows of 32, dots are as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ggmlpy.backends.cpu.formats.columns import GROUP
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd.arith import zero_f32x16
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Intrinsic,
    f32,
    f32x16,
    i64,
    intrinsic,
    typed,
    void,
)
from ggmlpy.backends.cpu.simd.memory import load_f32x16_part
from ggmlpy.backends.cpu.simd.product import (
    add_to_each,
    after,
    expect,
    load_rows,
    parts,
    store_sums,
    tile_of,
)
from ggmlpy.backends.cpu.simd.tile import tile_f32x16
from ggmlpy.backends.cpu.simd.transpose import row_addresses, transposed

MOST = 16  # elements of a row
LEAST_ROWS = 8  # of x, for which transposing weights pays
_SIDE_BY_SIDE = 4  # rows of x
_BYTES = 4 * 16  # of a column, and of a row of x
WORK_BYTES = (MOST + _SIDE_BY_SIDE) * _BYTES  # columns, then rows of x with zeros behind them


@typed(expect([f32x16], [i64], i64, result=[f32x16]))
def _products(b: Emitter, zeros: Any, rows: Any, columns: Any) -> Any:
    """The 16 elements of each row times the 16 columns, added by the tree of `sum_lanes`."""
    addresses = parts(b, rows)

    def tree(j: int, step: int) -> list[Any]:
        """What products j, j + step, ... are together, for each row."""
        if step == MOST:
            column = b.load_from(after(b, columns, _BYTES * j), f32x16)
            elements = (b.load_from(after(b, row, 4 * j), f32) for row in addresses)
            return [b.fmul(b.splat(element, GROUP), column) for element in elements]
        pairs = zip(tree(j, 2 * step), tree(j + step, 2 * step), strict=True)
        return [b.fadd(low, high) for low, high in pairs]

    return tile_of(b, tree(0, 1))


@typed(expect([f32x16], [i64], i64, i64, result=[i64]))
def _padded(b: Emitter, zeros: Any, rows: Any, n: Any, memory: Any) -> Any:
    """The addresses of copies of the first `n` elements of rows, with zeros behind them."""
    found = []
    for t, row in enumerate(parts(b, rows)):
        found.append(after(b, memory, _BYTES * t))
        b.store_to(found[-1], load_f32x16_part(b, row, n))
    return tile_of(b, found)


def _transpose(n_bytes: int, load_part: Intrinsic) -> Callable[..., Any]:
    @intrinsic(void, i64, i64, i64, i64)
    def transpose(b: Emitter, w: Any, k: Any, n_rows: Any, columns: Any) -> None:
        """`n_rows` rows of `k` elements as columns."""
        row_bytes = b.mul(k, b.const(i64.ir, n_bytes))
        rows = [load_part(b, row, k) for row in row_addresses(b, w, row_bytes, n_rows)]
        for j, column in enumerate(transposed(b, rows)):
            b.store_to(after(b, columns, _BYTES * j), column)

    return transpose


def short_rows(n_bytes: int, load_part: Intrinsic) -> Inline:
    """The function that multiplies one group (matmul_units.py), of rows of at most MOST weights of
    `n_bytes`."""
    transpose = _transpose(n_bytes, load_part)

    @inline
    def tile(
        zeros: Any, k: Int, xs: Int, ys: Int, at: Int, n_lanes: Int, bias: Int, work: Int
    ) -> None:
        """The columns times as many rows of x as `zeros` is wide."""
        rows = load_rows(zeros, xs)
        if k < MOST:
            rows = _padded(zeros, rows, k, work + _BYTES * MOST)
        # dots add zeros for the elements that a block of 32 lacks: no sum is -0
        sums = add_to_each(_products(zeros, rows, work), zero_f32x16())
        if bias != 0:
            sums = add_to_each(sums, load_f32x16_part(bias, n_lanes))
        store_sums(sums, load_rows(zeros, ys), at, n_lanes)

    @inline
    def multiply(
        w: Int, k: Int, xs: Int, ys: Int, n: Int, at: Int, n_lanes: Int, bias: Int, work: Int
    ) -> None:
        transpose(w, k, min(GROUP, n_lanes), work)
        end = xs + 8 * n
        while xs + 8 * _SIDE_BY_SIDE <= end:
            tile(tile_f32x16(4), k, xs, ys, at, n_lanes, bias, work)
            xs += 8 * _SIDE_BY_SIDE
            ys += 8 * _SIDE_BY_SIDE
        while xs < end:
            tile(tile_f32x16(1), k, xs, ys, at, n_lanes, bias, work)
            xs += 8
            ys += 8

    return multiply
