"""The product of float weights with many rows of x: in wide tiles, by stretches of k.

    for each stretch of k, of a group of 16 weight rows
        for 6 rows of x, then 2 or 1 that are left      in the L1 cache for the next loop
            for R weight rows, V of 16 lanes            all sums in registers
                add the products of the stretch

    instruction set   R   V    registers: sums, weights, x
    AVX512            4   16   24 + 4 + 1 of 32
    AVX2              2   8    12 + 2 + 1 of 16
    others            2   4    12 + 2 + 1 of 16

Between stretches the 16 lanes of each sum are kept in memory. They are those of floats.py, bit by
bit: element i of k is added to lane i % 16 by one fma, in order.

Counted for AVX512 and 16 elements: 24 fma take 12 cycles on two ports, and 10 loads 5 of them; with
4 rows of x it is 16 fma to 8 loads. In a loop that finds all in the L1 cache, f16 reaches 97 % of
fma alone on a core of an EPYC (Zen 5), and f32 2 % more. To convert weights to f32 in memory first
took 6 % of a unit of 64 rows of x, and 19 % of one of 32 (2026-11-27).
"""

from __future__ import annotations

from typing import Any

from ggmlpy.backends.cpu.formats.columns import GROUP
from ggmlpy.backends.cpu.kernel import Choice, Inline, Int, inline
from ggmlpy.backends.cpu.simd.dots import (
    KEPT_BYTES,
    Weights,
    add_dots,
    load_dots,
    prefetch_each,
    store_dots,
    sum_kept,
    weight_rows,
    zero_lanes,
)
from ggmlpy.backends.cpu.simd.memory import (
    load_f32x16_part,
    load_i64,
    prefetch_l2,
    store_f32x16,
    store_f32x16_part,
)
from ggmlpy.backends.cpu.simd.product import advance_rows, load_rows, unknown
from ggmlpy.backends.cpu.simd.tile import tile_f32x16

WIDTH = 6  # rows of x side by side
LEAST_ROWS = WIDTH
MOST_ROWS = 8 * WIDTH  # whose sums are kept
WORK_BYTES = MOST_ROWS * KEPT_BYTES
# Elements of k. 6 rows of x and those of weights are 32 KB. With 2 threads of an EPYC (Zen 5) 512
# rows of x times f16 [8192, 2048] are 188 G multiply-adds/s, with stretches of 2048 168
# (2026-11-27).
STRETCH = 1024
_LANES = 16


def _tile(weights: Weights, n_weights: int, n_lanes: int, *, prefetches: bool) -> Inline:
    """The stretch from element `start` on, of a group times a few rows of x.

    One that `prefetches` asks for what the group needs next: its following stretch, or the first
    one of the next group.
    """
    add, add_part = add_dots(weights)
    n_bytes = weights.n_bytes
    step_bytes = 32 * n_bytes

    @inline
    def tile(rows: Any, w: Int, k: Int, start: Int, n_rows: Int, kept: Int) -> None:
        end = min(k, start + STRETCH)
        whole = start + ((end - start) & -32)
        ahead = n_bytes * STRETCH if end < k else n_bytes * (GROUP * k - start)
        for r in range(0, unknown(GROUP), n_weights):
            for lane in range(0, _LANES, n_lanes):
                place = kept + 4 * (_LANES * r + lane)
                dots = zero_lanes(rows, n_weights, n_lanes)
                ws = weight_rows(dots, rows, w + n_bytes * lane, r, n_rows, n_bytes * k)
                xs = advance_rows(rows, 4 * lane)
                if start > 0:
                    dots = load_dots(dots, rows, place)
                for i in range(start, whole, 32):
                    dots = add(dots, ws, xs, i)
                    dots = add(dots, ws, xs, i + 16)
                    if prefetches and lane == 0:
                        prefetch_each(ws, n_bytes * i + ahead, step_bytes)
                if whole < end:
                    left = k - whole - lane
                    dots = add_part(dots, ws, xs, whole, left)
                    dots = add_part(dots, ws, xs, whole + 16, left - 16)
                store_dots(dots, rows, place)

    return tile


def _by_tiles(weights: Weights, n_weights: int, n_lanes: int) -> Inline:
    """`many_rows` for instruction sets whose registers hold so many lanes."""
    first_tile = _tile(weights, n_weights, n_lanes, prefetches=True)
    tile = _tile(weights, n_weights, n_lanes, prefetches=False)

    @inline
    def add_stretch(w: Int, k: Int, xs: Int, n: Int, start: Int, n_rows: Int, kept: Int) -> None:
        """A stretch of a group times all rows of x."""
        end = xs + 8 * n
        first_tile(load_rows(tile_f32x16(WIDTH), xs), w, k, start, n_rows, kept)
        xs += 8 * WIDTH
        kept += WIDTH * KEPT_BYTES
        while xs + 8 * WIDTH <= end:
            tile(load_rows(tile_f32x16(WIDTH), xs), w, k, start, n_rows, kept)
            xs += 8 * WIDTH
            kept += WIDTH * KEPT_BYTES
        while xs + 16 <= end:
            tile(load_rows(tile_f32x16(2), xs), w, k, start, n_rows, kept)
            xs += 16
            kept += 2 * KEPT_BYTES
        if xs < end:
            tile(load_rows(tile_f32x16(1), xs), w, k, start, n_rows, kept)

    @inline
    def multiply(
        w: Int, k: Int, xs: Int, ys: Int, n: Int, at: Int, n_lanes: Int, bias: Int, work: Int
    ) -> None:
        # A line of each row of y is written in the end. Waiting for it then took 7 % of a unit.
        for t in range(n):
            prefetch_l2(load_i64(ys + 8 * t) + at)
        for start in range(0, k, STRETCH):
            add_stretch(w, k, xs, n, start, min(GROUP, n_lanes), work)
        for t in range(n):
            sums = sum_kept(work + KEPT_BYTES * t)
            if bias != 0:
                sums = sums + load_f32x16_part(bias, n_lanes)
            y = load_i64(ys + 8 * t) + at
            if n_lanes < GROUP:
                store_f32x16_part(y, sums, n_lanes)
            else:
                # Not by a mask: 512 rows times f16 [1024, 2048] took a core of an EPYC (Zen 5) 10.5
                # ms instead of 10.0 (2026-11-27).
                store_f32x16(y, sums)

    return multiply


def many_rows(weights: Weights) -> Inline:
    """The function that multiplies one group (matmul_units.py) with LEAST_ROWS to MOST_ROWS rows of
    x."""
    return Choice(
        frozenset({"avx512"}),
        _by_tiles(weights, 4, 16),
        Choice(frozenset({"avx2"}), _by_tiles(weights, 2, 8), _by_tiles(weights, 2, 4)),
    )


def many_or_few(many: Inline, few: Inline) -> Inline:
    """The function that multiplies one group by `many`, with as many rows of x at a time as it
    takes, and by `few` with those that are too few for it."""

    @inline
    def multiply(
        w: Int, k: Int, xs: Int, ys: Int, n: Int, at: Int, n_lanes: Int, bias: Int, work: Int
    ) -> None:
        while n >= LEAST_ROWS:
            n_here = min(n, MOST_ROWS)
            many(w, k, xs, ys, n_here, at, n_lanes, bias, work)
            xs += 8 * n_here
            ys += 8 * n_here
            n -= n_here
        if n > 0:
            few(w, k, xs, ys, n, at, n_lanes, bias, work)

    return multiply
