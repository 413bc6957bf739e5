"""Pieces of the attention kernel: cells, weights and sums, by blocks of heads.

A group is up to GROUP cells of a list (cells that a query sees, i32), of which weights
[heads, GROUP] hold scores, then weights. What has been summed up for some heads is a state:

    acc    f32 [heads, Dv]     weighted sums of V          Dv rounded up to whole vectors
    sums   f32 [heads, 16]     sums of weights, lane by lane
    tops   f32 [heads]         the largest score so far, by which weights are scaled
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd.arith import (
    equal,
    fma,
    iota_i32x16,
    lowest_bit,
    maximum,
    splat_f32x16,
    splat_i32x16,
)
from ggmlpy.backends.cpu.simd.block import (
    add_products,
    add_scaled,
    load_addresses,
    load_block,
    store_block,
    store_folds,
)
from ggmlpy.backends.cpu.simd.convert import bits_of_mask
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.math import exp
from ggmlpy.backends.cpu.simd.memory import (
    load_f16x16,
    load_f16x16_part,
    load_f32,
    load_f32x16,
    load_i32,
    load_i64,
    prefetch_l2,
    store_f32,
    store_f32x16,
    store_f32x16_part,
    store_i32,
    store_i32x16,
    store_i64,
)
from ggmlpy.backends.cpu.simd.reduce import max_lanes
from ggmlpy.backends.cpu.simd.tile import tile_f32x16

GROUP = 64
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
def list_rows(cells: Int, n_cells: Int, stride: Int, offsets: Int) -> None:
    """Where the rows of listed cells start, i64, up to a multiple of 16: blocks read whole."""
    for j in range((n_cells + 15) & -16):
        cell = np.int64(load_i32(cells + 4 * min(j, n_cells - 1)))
        store_i64(offsets + 8 * j, cell * stride)


@inline
def ask_for(next: Any, start: Int, n: Int, first_byte: Int, end_byte: Int) -> None:
    """Asks for bytes of rows start .. start + n - 1 of the cells that come next: they lie a token
    apart, where no hardware looks ahead. A few at a time, and into the second level: rows of one
    head share few sets of the first, and asking for them there made this 1.5 to 3 times slower
    (EPYC Zen 4, caches beyond L3, 2026-11-21)."""
    base, stride, cells, n_cells = next
    for j in range(start, min(start + n, n_cells)):
        row = base + load_i32(cells + 4 * j) * stride
        for i in range(first_byte, end_byte, 64):
            prefetch_l2(row + i)


@inline
def fill(ptr: Int, n_bytes: Int, value: Any) -> None:
    """Whole vectors of one value."""
    for i in range(0, n_bytes, 64):
        store_f32x16(ptr + i, splat_f32x16(value))


@inline
def weigh(weights: Int, state: Any, at: Int, dv_bytes: Int, n_cells: Int) -> None:
    """Scores of a group and head `at` of a state to weights: exp(score - maximum so far), added to
    the sums. Where the maximum grows, what was summed up before shrinks accordingly."""
    acc, sums, tops = state
    acc, sums, top = acc + at * dv_bytes, sums + 64 * at, tops + 4 * at
    s = load_f32x16(weights)
    for i in range(16, n_cells, 16):
        s = maximum(s, load_f32x16(weights + 4 * i))
    largest, before = max_lanes(s), load_f32(top)
    if largest > before:
        factor = exp(before - largest)
        store_f32(top, largest)
        store_f32x16(sums, load_f32x16(sums) * factor)
        for i in range(0, dv_bytes, 64):
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
def clear(state: Any, first: Int, n: Int, dv_bytes: Int) -> None:
    """Nothing summed up for heads first .. first + n - 1."""
    acc, sums, tops = state
    fill(acc + first * dv_bytes, n * dv_bytes, 0.0)
    fill(sums + first * 64, n * 64, 0.0)
    for h in range(first, first + n):
        store_f32(tops + 4 * h, np.float32(_NEVER))


@inline
def merge(state: Any, other: Any, first: Int, n: Int, dv_bytes: Int) -> None:
    """What `other` summed up added to heads first .. first + n - 1 of `state`, both by the larger
    of their maxima."""
    acc, sums, tops = state
    for h in range(first, first + n):
        before, added = load_f32(tops + 4 * h), load_f32(other[2] + 4 * h)
        largest = maximum(before, added)
        store_f32(tops + 4 * h, largest)
        if largest == _NEVER:
            largest = np.float32(0)  # else -inf - -inf is NaN
        mine, its = exp(before - largest), exp(added - largest)
        i = 64 * h
        total = fma(load_f32x16(other[1] + i), its, load_f32x16(sums + i) * mine)
        store_f32x16(sums + i, total)
        for i in range(h * dv_bytes, (h + 1) * dv_bytes, 64):
            total = fma(load_f32x16(other[0] + i), its, load_f32x16(acc + i) * mine)
            store_f32x16(acc + i, total)


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


def blocks(n_heads: int, n_accumulators: int, load: Intrinsic, vector_bytes: int) -> Blocks:
    """`n_accumulators` is how many vectors of sums stay in registers; 16 elements of a row of K or
    V take `vector_bytes` and are read by `load`."""
    n_keys = n_accumulators // n_heads
    add_wide = _add_columns(n_heads, _COLUMNS, load, vector_bytes)
    add_narrow = _add_columns(n_heads, 1, load, vector_bytes)
    multiply = add_products(load)

    @inline
    def dots(q: Int, q_bytes: Int, k: Int, offsets: Int, folds: Int) -> None:
        """q.k of n_keys rows and n_heads heads, folded; head h at folds + h * FOLD_BYTES."""
        sums = tile_f32x16(n_accumulators)
        rows = load_addresses(k, offsets, n_keys)
        at = 0
        for d in range(0, q_bytes, 64):
            sums = multiply(sums, q + d, q_bytes, rows, at, n_heads)
            at += vector_bytes
        store_folds(sums, folds, FOLD_BYTES, n_heads)

    @inline
    def add_values(
        weights: Int, v: Int, offsets: Int, acc: Int, acc_bytes: Int, n_cells: Int, next: Any
    ) -> None:
        """acc += weights * V of n_heads heads: by blocks of columns, cells in order."""
        wide = acc_bytes & -(64 * _COLUMNS)
        at = 0
        for d in range(0, wide, 64 * _COLUMNS):
            add_wide(weights, v + at, offsets, acc + d, acc_bytes, n_cells, next, at)
            at += vector_bytes * _COLUMNS
        for d in range(wide, acc_bytes, 64):
            add_narrow(weights, v + at, offsets, acc + d, acc_bytes, n_cells, next, at)
            at += vector_bytes

    return Blocks(n_heads, n_keys, dots, add_values)


def _add_columns(n_heads: int, n_columns: int, load: Intrinsic, vector_bytes: int) -> Inline:
    scale = add_scaled(load, vector_bytes)
    column_bytes = n_columns * vector_bytes

    @inline
    def add(
        weights: Int,
        v: Int,
        offsets: Int,
        acc: Int,
        acc_bytes: Int,
        n_cells: Int,
        next: Any,
        at: Int,
    ) -> None:
        sums = load_block(acc, acc_bytes, n_heads, n_columns)
        for j in range(n_cells):
            row = v + load_i64(offsets + 8 * j)
            ask_for(next, j, 1, at, at + column_bytes)
            sums = scale(sums, row, weights + 4 * j, 4 * GROUP, n_heads)
        store_block(sums, acc, acc_bytes, n_heads)

    return add
