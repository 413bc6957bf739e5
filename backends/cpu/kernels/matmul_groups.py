"""Groups of 16 weight rows times rows of x, with sums in vector registers: one group at a time, or
two that share what is loaded of x (matmul_units.py says which).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ggmlpy.backends.cpu.formats import short_rows, unpacked_pairs
from ggmlpy.backends.cpu.formats.columns import GROUP
from ggmlpy.backends.cpu.formats.pairs import PAIR_ROWS, PairProducts
from ggmlpy.backends.cpu.formats.unpacked_pairs import UnpackedProducts, load_sums
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd.memory import load_f32x16_part
from ggmlpy.backends.cpu.simd.product import (
    add_to_each,
    half_of,
    load_rows,
    store_sums,
)
from ggmlpy.backends.cpu.simd.tile import tile_f32x16

SUM_BYTES = 4 * GROUP  # the sums of a group with a row of x


class Groups(NamedTuple):
    """`n` packed groups of weights, `step` bytes apart, and how many rows the matrix has from the
    first of them on."""

    w: Int
    step: Int
    n: Int
    n_rows: Int


class Sums(NamedTuple):
    """Where sums go: those of a group with a row of x `at` bytes into the row listed at ys, those
    of the next group `step` bytes further on. The numbers from address `bias` on, one for each
    weight row, are added first (none if it is 0). `is_result`: not memory that is read soon."""

    ys: Int
    at: Int
    step: Int
    bias: Int
    is_result: bool


def by_registers(accumulate: Inline, width: int) -> Inline:
    """The function that multiplies one group, with a tile of sums in registers: 4 rows of x or
    fewer, or `width`."""

    @inline
    def tile(
        zeros: Any, w: Int, k: Int, xs: Int, ys: Int, at: Int, n_lanes: Int, bias: Int
    ) -> None:
        """A group times as many rows of x as `zeros` is wide."""
        sums = accumulate(zeros, w, k, load_rows(zeros, xs), n_lanes)
        if bias != 0:  # loaded here, so that it takes no register while sums are built
            sums = add_to_each(sums, load_f32x16_part(bias, n_lanes))
        store_sums(sums, load_rows(zeros, ys), at, n_lanes)

    whole = 8 * width  # bytes of the addresses of as many rows

    @inline
    def multiply(
        w: Int, k: Int, xs: Int, ys: Int, n: Int, at: Int, n_lanes: Int, bias: Int, work: Int
    ) -> None:
        end = xs + 8 * n
        while xs + whole <= end:
            tile(tile_f32x16(width), w, k, xs, ys, at, n_lanes, bias)
            xs += whole
            ys += whole
        if width > 4 and xs + 32 <= end:
            tile(tile_f32x16(4), w, k, xs, ys, at, n_lanes, bias)
            xs += 32
            ys += 32
        if xs + 16 <= end:
            tile(tile_f32x16(2), w, k, xs, ys, at, n_lanes, bias)
            xs += 16
            ys += 16
        if xs < end:
            tile(tile_f32x16(1), w, k, xs, ys, at, n_lanes, bias)

    return multiply


def of_one_group(multiply: Inline) -> Inline:
    """`multiply` of a Unit that takes one group."""

    @inline
    def multiply_one(groups: Groups, k: Int, xs: Int, n: Int, sums: Sums, work: Int) -> None:
        multiply(groups.w, k, xs, sums.ys, n, sums.at, groups.n_rows, sums.bias, work)

    return multiply_one


def by_each_group(multiply: Inline) -> Inline:
    """The function that multiplies groups, one after the other, with rows of x from `done` on."""

    @inline
    def multiply_rest(
        groups: Groups, k: Int, xs: Int, n: Int, sums: Sums, done: Int, work: Int
    ) -> None:
        if done == n:
            return
        x, y = xs + 8 * done, sums.ys + 8 * done
        for i in range(groups.n):
            w, at = groups.w + groups.step * i, sums.at + sums.step * i
            bias = sums.bias + SUM_BYTES * i if sums.bias != 0 else 0
            multiply(w, k, x, y, n - done, at, groups.n_rows - GROUP * i, bias, work)

    return multiply_rest


def short_or_not(short: Inline, other: Inline) -> Inline:
    """The function that multiplies one group, short rows otherwise where many rows of x need it."""
    most, least_rows = short_rows.MOST, short_rows.LEAST_ROWS

    @inline
    def multiply(
        w: Int, k: Int, xs: Int, ys: Int, n: Int, at: Int, n_lanes: Int, bias: Int, work: Int
    ) -> None:
        if k <= most and n >= least_rows:
            short(w, k, xs, ys, n, at, n_lanes, bias, work)
        else:
            other(w, k, xs, ys, n, at, n_lanes, bias, work)

    return multiply


@inline
def _store_of(found: Any, ys: Int, groups: Groups, sums: Sums, i: int) -> None:
    """Sums of group i, to where they go in the rows listed at ys."""
    n_lanes, bias = groups.n_rows - GROUP * i, sums.bias
    if bias != 0:
        found = add_to_each(found, load_f32x16_part(bias + SUM_BYTES * i, n_lanes))
    store_sums(found, load_rows(found, ys), sums.at + sums.step * i, n_lanes)


@inline
def _store_both(found: Any, ys: Int, groups: Groups, sums: Sums) -> None:
    """Sums of two groups, side by side in `found`."""
    _store_of(half_of(found, 0), ys, groups, sums, 0)
    _store_of(half_of(found, 1), ys, groups, sums, 1)


def by_pairs(pairs: PairProducts, rest: Inline) -> Inline:
    """`multiply` of a Unit of two groups (pairs.py). `rest` multiplies one group with the rows that
    are left, and with few rows in any case: weights then come from memory, and two streams of them
    were slower than one (a row of x: 28 instead of 36 GB/s on a core of an EPYC, Zen 5,
    2026-11-27).

    The first two tiles prefetch the weights of the next unit. The others do so with what they read
    anyway: that costs less than code without.
    """
    accumulate, ahead_bytes = pairs.accumulate, pairs.ahead_bytes
    by_group, n_sums = by_each_group(rest), 2 * PAIR_ROWS

    @inline
    def multiply(groups: Groups, k: Int, xs: Int, n: Int, sums: Sums, work: Int) -> None:
        done = 0
        if groups.n == 2 and n >= 2 * PAIR_ROWS:
            next_groups = 2 * groups.step
            ahead = next_groups
            while done + PAIR_ROWS <= n:
                rows = load_rows(tile_f32x16(PAIR_ROWS), xs + 8 * done)
                found = tile_f32x16(n_sums)
                found = accumulate(found, groups.w, groups.step, k, rows, ahead)
                _store_both(found, sums.ys + 8 * done, groups, sums)
                ahead = ahead + ahead_bytes if ahead == next_groups else 0
                done += PAIR_ROWS
        by_group(groups, k, xs, n, sums, done, work)

    return multiply


def by_unpacked_pairs(products: UnpackedProducts, rest: Inline) -> Inline:
    """The same of two groups that are unpacked for many rows (unpacked_pairs.py)."""
    accumulate, by_group = products.accumulate, by_each_group(rest)
    step, most, least = (
        unpacked_pairs.TILE_ROWS,
        unpacked_pairs.MOST_ROWS,
        unpacked_pairs.LEAST_ROWS,
    )

    @inline
    def multiply(groups: Groups, k: Int, xs: Int, n: Int, sums: Sums, work: Int) -> None:
        done = 0
        while groups.n == 2 and n - done >= least:
            n_here = min(most, n - done) & -step
            accumulate(groups.w, groups.step, k, xs + 8 * done, n_here, work)
            for t in range(0, n_here, step):
                _store_both(load_sums(work, t), sums.ys + 8 * (done + t), groups, sums)
            done += n_here
        by_group(groups, k, xs, n, sums, done, work)

    return multiply
