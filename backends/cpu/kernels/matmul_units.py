"""A unit of work of matrix products: a group of 16 weight rows times a chunk of rows of x.

With AMX rows of x are multiplied 16 at a time by tiles; the remaining ones, and all rows without
AMX, are multiplied 8 (floats: 4), 4, 2 or 1 at a time in registers. With weights of bf16 the
remaining rows go through tiles too (bf16_tiles.py). The width changes how often weights are read,
never the order in which a sum is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ggmlpy.backends.cpu.formats import bf16_tiles, short_rows
from ggmlpy.backends.cpu.formats.base import GROUP, Format
from ggmlpy.backends.cpu.formats.bf16_tiles import WholeUnits
from ggmlpy.backends.cpu.formats.block_tiles import (
    PANELS,
    SUMS,
    WORK_BYTES,
    TileProducts,
    release_tiles,
)
from ggmlpy.backends.cpu.kernel import Choice, Inline, Int, inline
from ggmlpy.backends.cpu.simd.amx import ROWS, TILES_BY
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.block import load_block
from ggmlpy.backends.cpu.simd.memory import load_f32x16_part
from ggmlpy.backends.cpu.simd.product import add_to_each, load_rows, store_sums
from ggmlpy.backends.cpu.simd.tile import tile_f32x16

# Rows of x that one pass over the weights serves: half a 1 MB L2 cache, and a little more, so that
# the odd cache line of each row does not cost a chunk one of its 128, 64 or 32 rows.
_CHUNK_BYTES = 33 << 14
# Fewer where rows of x are no longer than a cache line: a unit writes a line of as many rows of y,
# which lie far apart, and that is what it takes. 8192 rows of 16 weights times 512 rows of x take a
# core 1.9 ms with 32 at a time, 2.5 with 64 and 4.0 with all (EPYC with AVX512, 2026-11-26).
_SHORT_BYTES, _FEW_ROWS = 64, 32
_SUM_BYTES = 4 * GROUP


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A format's code for a unit of work.

    begin(n, work)    before the first unit of a kernel's share, with at most n rows of x a matrix
    multiply(w, k, xs, ys, n, at, n_lanes, bias, work)
                      the group at w, of `n_lanes` rows or 16, times n rows listed at xs. As many
                      sums of each go to the rows listed at ys, `at` bytes into each, after the
                      numbers at address `bias` have been added (none if it is 0)
    end(n)            after the last unit
    row_step()        units should have a multiple of so many rows of x

    `work` is the address of the thread's memory of work_bytes(), at a multiple of 64.
    """

    begin: Inline
    multiply: Inline
    end: Inline
    row_step: Inline


def work_bytes(format: Format, n_rows: int) -> int:
    """Memory of a thread for products with so many rows of x."""
    if isinstance(format.tiles, WholeUnits):
        return max(bf16_tiles.WORK_BYTES, short_rows.WORK_BYTES)
    if format.short is not None:
        return short_rows.WORK_BYTES
    return WORK_BYTES if format.tiles is not None and n_rows >= ROWS else 0


@inline
def chunk_rows(n: Int, n_groups: Int, row_bytes: Int, step: Int, nth: Int) -> Int:
    """Rows of x in a unit of work: as many as fit the cache, but enough units for every thread."""
    fitting = quotient(_CHUNK_BYTES, row_bytes) if row_bytes > _SHORT_BYTES else _FEW_ROWS
    balanced = quotient(n * n_groups, 4 * nth)
    return max(step, min(fitting, balanced) & -step)


@inline
def _nothing_to_begin(n: Int, work: Int) -> None:
    pass


@inline
def _nothing_to_end(n: Int) -> None:
    pass


@inline
def _end(n: Int) -> None:
    if n >= ROWS:
        release_tiles()


@inline
def _end_all(n: Int) -> None:
    release_tiles()


@inline
def _rows_in_registers() -> Int:
    return 8


@inline
def _rows_of_tiles() -> Int:
    return ROWS


@inline
def _rows_of_bf16_tiles() -> Int:
    """Two panels at least, even if they do not fit: weights are transposed for each chunk."""
    return 2 * ROWS


def _by_registers(accumulate: Inline, width: int) -> Inline:
    """`multiply` of a Unit, with a tile of sums in registers: 4 rows of x or fewer, or `width`."""

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


def _by_tiles(tiles: TileProducts, rest: Inline) -> tuple[Inline, Inline]:
    """`begin` and `multiply` of a Unit with AMX; `rest` multiplies rows after the panels."""
    configure, multiply_panels = tiles.configure, tiles.multiply

    @inline
    def begin(n: Int, work: Int) -> None:
        if n >= ROWS:
            configure(work)

    @inline
    def store_panels(n_panels: Int, ys: Int, at: Int, n_lanes: Int, bias: Int, work: Int) -> None:
        """The sums of panels, 8 rows at a time, to the rows listed at ys."""
        for i in range(0, n_panels * ROWS, 8):
            sums = load_block(work + SUMS + _SUM_BYTES * i, _SUM_BYTES, 8, 1)
            if bias != 0:
                sums = add_to_each(sums, load_f32x16_part(bias, n_lanes))
            store_sums(sums, load_rows(sums, ys + 8 * i), at, n_lanes)

    @inline
    def multiply(
        w: Int, k: Int, xs: Int, ys: Int, n: Int, at: Int, n_lanes: Int, bias: Int, work: Int
    ) -> None:
        done = 0
        while done + ROWS <= n:
            n_panels = min(PANELS, quotient(n - done, ROWS))
            multiply_panels(w, k, xs + 8 * done, n_panels, work)
            store_panels(n_panels, ys + 8 * done, at, n_lanes, bias, work)
            done += n_panels * ROWS
        rest(w, k, xs + 8 * done, ys + 8 * done, n - done, at, n_lanes, bias, work)

    return begin, multiply


def _short_or_not(short: Inline, other: Inline) -> Inline:
    """`multiply` of a Unit that takes short rows otherwise, where many rows of x need them."""
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


def unit_of(format: Format) -> Unit:
    """How units of this format are computed, on any instruction set."""
    plain = _by_registers(format.accumulate, format.width)
    if format.short is not None:  # whose 16 sums need the registers of AVX512
        plain = Choice(frozenset({"avx512"}), _short_or_not(format.short, plain), plain)
    if format.tiles is None:
        return Unit(_nothing_to_begin, plain, _nothing_to_end, _rows_in_registers)
    if isinstance(format.tiles, WholeUnits):
        return Unit(
            _nothing_to_begin,
            Choice(TILES_BY, format.tiles.multiply, plain),
            Choice(TILES_BY, _end_all, _nothing_to_end),
            Choice(TILES_BY, _rows_of_bf16_tiles, _rows_in_registers),
        )
    begin, multiply = _by_tiles(format.tiles, plain)
    return Unit(
        Choice(TILES_BY, begin, _nothing_to_begin),
        Choice(TILES_BY, multiply, plain),
        Choice(TILES_BY, _end, _nothing_to_end),
        Choice(TILES_BY, _rows_of_tiles, _rows_in_registers),
    )
