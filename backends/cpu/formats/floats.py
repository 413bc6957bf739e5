"""f32, f16, bf16: rows are multiplied as they are stored. x stays f32.

A sum keeps 16 lanes, element i of k in lane i % 16, which are added by the tree of simd/reduce.py.
Nothing is packed: a file's weights are read where it is mapped. This is the code for few rows of x;
many (many_rows.py) and short rows (short_rows.py) are summed in the same order.

bf16 goes through AMX tiles where there are some (bf16_tiles.py), in another order. f16 and f32 do
not: their weights would have to be split as well, into two and three bf16 with five and six
products, and a single row of x, which must have the same bits as among many, would be slower.
"""

from __future__ import annotations

from typing import Any

from ggmlpy.backends.cpu.formats.base import GROUP, StoredFormat
from ggmlpy.backends.cpu.formats.bf16_tiles import BF16_TILES, WholeUnits
from ggmlpy.backends.cpu.formats.many_rows import many_rows
from ggmlpy.backends.cpu.formats.short_rows import short_rows
from ggmlpy.backends.cpu.kernel import Choice, Inline, Int, inline
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.dots import (
    BF16,
    F16,
    F32,
    Weights,
    add_dots,
    n_rows_of,
    prefetch_rows,
    put_sums,
    weight_rows,
    zero_dots,
)
from ggmlpy.backends.cpu.simd.memory import (
    load_bf16x16_part,
    load_f16x16_part,
    load_f32x16_part,
)

# Vectors of sums side by side: 16, with what they are multiplied from, fill 32 registers of 512
# bits. Elsewhere 4 are as many as 8 registers of 256 bits hold, or 16 of 128.
_MANY, _FEW = 16, 4
# How far ahead of their use weights are prefetched, into the second level of the cache. A mapped
# file has pages of 4 KB, and a page that is not prefetched in time costs a wait for the TLB: one
# core of an EPYC (Zen 4) read f16 at 22 GB/s with less than 5 KB, at 27 with 8 KB or more; into the
# first level at 16 to 20 (2026-11-21).
_AHEAD_BYTES = 12288


def _accumulate(weights: Weights, n_sums: int) -> Inline:
    add, add_part = add_dots(weights)
    n_bytes = weights.n_bytes
    step_bytes = 32 * n_bytes

    @inline
    def accumulate(sums: Any, w: Int, k: Int, rows: Any, n_rows: Int) -> Any:
        row_bytes = n_bytes * k
        whole = k & -32
        n_here = min(GROUP, n_rows)
        zeros = zero_dots(sums, n_sums)
        step = n_rows_of(zeros, sums)
        for first in range(0, n_here, step):
            ws = weight_rows(zeros, sums, w, first, n_here, row_bytes)
            dots = zeros
            for i in range(0, whole, 32):
                dots = add(dots, ws, rows, i)
                dots = add(dots, ws, rows, i + 16)
                prefetch_rows(ws, n_bytes * i, row_bytes, step_bytes, _AHEAD_BYTES)
            if whole < k:
                dots = add_part(dots, ws, rows, whole, k - whole)
                dots = add_part(dots, ws, rows, whole + 16, k - whole - 16)
            sums = put_sums(sums, dots, first)
        return sums

    return accumulate


def _format(
    type_name: str, weights: Weights, load_part: Intrinsic, tiles: WholeUnits | None = None
) -> StoredFormat:
    many, few = (_accumulate(weights, n) for n in (_MANY, _FEW))
    return StoredFormat(
        type_name=type_name,
        accumulate=Choice(frozenset({"avx512"}), many, few),
        width=4,
        quantizes_x=False,
        tiles=tiles,
        element_bytes=weights.n_bytes,
        short=short_rows(weights.n_bytes, load_part),
        many=many_rows(weights),
    )


F32_FORMAT = _format("f32", F32, load_f32x16_part)
F16_FORMAT = _format("f16", F16, load_f16x16_part)
BF16_FORMAT = _format("bf16", BF16, load_bf16x16_part, BF16_TILES)
