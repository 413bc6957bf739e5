"""Pieces of the attention kernel: on rows that are f32 in scratch memory, by blocks of heads.

Rows are padded to whole vectors; `row_bytes` is what one takes. A group is up to GROUP cells of a
list (cells that a query sees, i32), of which weights [heads, GROUP] hold scores, then weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd.arith import (
    equal,
    iota_i32x16,
    lowest_bit,
    maximum,
    splat_f32x16,
    splat_i32x16,
)
from ggmlpy.backends.cpu.simd.block import (
    add_products,
    add_scaled,
    load_block,
    store_block,
    store_folds,
)
from ggmlpy.backends.cpu.simd.convert import bits_of_mask
from ggmlpy.backends.cpu.simd.math import exp
from ggmlpy.backends.cpu.simd.memory import (
    load_f16x16,
    load_f16x16_part,
    load_f32,
    load_f32x16,
    load_i32,
    prefetch,
    store_f32,
    store_f32x16,
    store_f32x16_part,
    store_i32,
    store_i32x16,
)
from ggmlpy.backends.cpu.simd.reduce import max_lanes
from ggmlpy.backends.cpu.simd.tile import tile_f32x16

GROUP = 32
FOLD_BYTES = 256  # of a head: the folded products of 16 cells
_COLUMNS = 4  # vectors of a row of V that are summed side by side
_NEVER = float("-inf")


@inline
def list_cells(mask: Int, n_kv: Int, cells: Int) -> Int:
    """Writes the numbers of the cells whose mask entry is not -inf, in order; returns how many."""
    n = 0
    for i in range(0, n_kv, 16):
        m = min(16, n_kv - i)
        bits = (1 << m) - 1
        if mask != 0:
            if m == 16:
                hidden = equal(load_f16x16(mask + 2 * i), _NEVER)
            else:
                hidden = equal(load_f16x16_part(mask + 2 * i, m), _NEVER)
            bits &= ~bits_of_mask(hidden)
        if bits == 0xFFFF:
            store_i32x16(cells + 4 * n, iota_i32x16() + splat_i32x16(i))
            n += 16
        else:
            while bits != 0:
                store_i32(cells + 4 * n, i + lowest_bit(bits))
                bits &= bits - 1
                n += 1
    return n


@inline
def ask_for(next: Any, start: Int, n: Int) -> None:
    """Prefetches rows start .. start + n - 1 of the next group or head: they lie a token apart,
    where no hardware looks ahead. A few at a time, since a core waits for no more than a few."""
    base, stride, row_bytes, cells, n_cells = next
    for j in range(start, min(start + n, n_cells)):
        row = base + load_i32(cells + 4 * j) * stride
        for i in range(0, row_bytes, 64):
            prefetch(row + i)


@inline
def fill(ptr: Int, n_bytes: Int, value: Any) -> None:
    """Whole vectors of one value."""
    for i in range(0, n_bytes, 64):
        store_f32x16(ptr + i, splat_f32x16(value))


@inline
def weigh(weights: Int, sums: Int, top: Int, acc: Int, acc_bytes: Int, n_cells: Int) -> None:
    """Scores of a group and a head to weights: exp(score - maximum so far), added to the sums.

    Where the maximum grows, what was summed up before shrinks accordingly.
    """
    s = load_f32x16(weights)
    if n_cells > 16:
        s = maximum(s, load_f32x16(weights + 64))
    largest, before = max_lanes(s), load_f32(top)
    if largest > before:
        factor = exp(before - largest)
        store_f32(top, largest)
        store_f32x16(sums, load_f32x16(sums) * factor)
        for i in range(0, acc_bytes, 64):
            store_f32x16(acc + i, load_f32x16(acc + i) * factor)
    else:
        largest = before
    if largest == _NEVER:
        largest = np.float32(0)  # else -inf - -inf is NaN
    total = load_f32x16(sums)
    for i in range(0, n_cells, 16):
        e = exp(load_f32x16(weights + 4 * i) - largest)
        store_f32x16(weights + 4 * i, e)
        total = total + e
    store_f32x16(sums, total)


@inline
def finish(acc: Int, y: Int, n: Int, factor: Any) -> None:
    """y = acc * factor."""
    whole = n & -16
    for i in range(0, 4 * whole, 64):
        store_f32x16(y + i, load_f32x16(acc + i) * factor)
    if n > whole:
        at = 4 * whole
        store_f32x16_part(y + at, load_f32x16(acc + at) * factor, n - whole)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Products and sums of `n_heads` heads at a time, `n_keys` rows of K against them."""

    n_heads: int
    n_keys: int
    dots: Inline
    add_values: Inline


def blocks(n_heads: int, n_accumulators: int) -> Blocks:
    """`n_accumulators` is how many vectors of sums stay in registers."""
    n_keys = n_accumulators // n_heads
    add_wide = _add_columns(n_heads, _COLUMNS)
    add_narrow = _add_columns(n_heads, 1)

    @inline
    def dots(q: Int, rows: Int, folds: Int, row_bytes: Int) -> None:
        """q.k of n_keys rows and n_heads heads, folded; head h at folds + h * FOLD_BYTES."""
        sums = tile_f32x16(n_accumulators)
        for d in range(0, row_bytes, 64):
            sums = add_products(sums, q + d, rows + d, row_bytes, n_heads)
        store_folds(sums, folds, FOLD_BYTES, n_heads)

    @inline
    def add_values(weights: Int, rows: Int, acc: Int, row_bytes: Int, n_cells: Int) -> None:
        """acc += weights * V of n_heads heads: by blocks of columns, cells in order."""
        wide = row_bytes & -(64 * _COLUMNS)
        for d in range(0, wide, 64 * _COLUMNS):
            add_wide(weights, rows + d, acc + d, row_bytes, n_cells)
        for d in range(wide, row_bytes, 64):
            add_narrow(weights, rows + d, acc + d, row_bytes, n_cells)

    return Blocks(n_heads, n_keys, dots, add_values)


def _add_columns(n_heads: int, n_columns: int) -> Inline:
    @inline
    def add(weights: Int, rows: Int, acc: Int, row_bytes: Int, n_cells: Int) -> None:
        sums = load_block(acc, row_bytes, n_heads, n_columns)
        for j in range(n_cells):
            sums = add_scaled(sums, rows + j * row_bytes, weights + 4 * j, 4 * GROUP, n_heads)
        store_block(sums, acc, row_bytes, n_heads)

    return add
