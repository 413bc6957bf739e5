"""The work of matrix products: groups of 16 weight rows times chunks of rows of x.

A unit is one group times one chunk; units that follow each other may be done together. How many
groups share a pass over x, and how many rows of x one over the weights:

    weights                        with      groups   rows of x
    codes                          AMX       4        panels of 16, the last one of 5 or more
    codes, a scale for a block     AVX512    2        6 from 12 rows on    (pairs.py)
    codes of q3_K, q6_K            AVX512    2        4 from 16 rows on    (unpacked_pairs.py)
    codes                          any       1        8, 4, 2 or 1: what is left, and the rest
    floats                         any       1        6; 4, 2 or 1 of fewer (many_rows.py)
    bf16                           AMX       1        panels of 16, also of fewer (bf16_tiles.py)

That changes how often weights and x are read, never the order in which a sum is built.

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ggmlpy.backends.cpu.formats import (
    bf16_tiles,
    block_tiles,
    many_rows,
    short_rows,
    unpacked_pairs,
)
from ggmlpy.backends.cpu.formats.base import GROUP, Format, PackedFormat
from ggmlpy.backends.cpu.formats.bf16_tiles import WholeUnits
from ggmlpy.backends.cpu.formats.block_tiles import (
    GROUPS,
    LEAST_ROWS,
    SUMS,
    TileProducts,
    most_panels,
    n_panels,
    release_tiles,
)
from ggmlpy.backends.cpu.formats.pairs import PAIR_ROWS, PairProducts
from ggmlpy.backends.cpu.formats.unpacked_pairs import UnpackedProducts
from ggmlpy.backends.cpu.formats.x_panels import panel_bytes
from ggmlpy.backends.cpu.kernel import Choice, Inline, Int, constant, inline
from ggmlpy.backends.cpu.kernels.matmul_groups import (
    SUM_BYTES,
    Groups,
    Sums,
    by_each_group,
    by_pairs,
    by_registers,
    by_unpacked_pairs,
    of_one_group,
    short_or_not,
)
from ggmlpy.backends.cpu.simd.amx import ROWS, TILES_BY
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.memory import (
    load_f32x16,
    load_f32x16_part,
    load_i64,
    store_f32x16,
    store_f32x16_part,
    store_fence,
    store_line_past_caches,
)

# Rows of x that one pass over the weights serves: half a 1 MB L2 cache, and a little more, so that
# the odd cache line of each row does not make five chunks of 512 rows of 2048 elements, but four.
_CHUNK_BYTES = 33 << 14
# The same with weights of floats: 48 rows of 2048 elements, 12 of 8192. With 2 threads 512 rows of
# f16 [8192, 2048] are 188 G multiply-adds/s, with 24 rows at a time 171, with 48 166. Where all of
# them can be one chunk, weights are read from memory once: 32 rows are 160 then, 154 with 12 at a
# time, 123 with 24 (EPYC, Zen 5, 2026-11-27).
_FLOATS_CHUNK_BYTES = 25 << 14
# Fewer where rows of x are no longer than a cache line: a unit writes a line of as many rows of y,
# which lie far apart, and that is what it takes. 8192 rows of 16 weights times 512 rows of x take a
# core 1.9 ms with 32 at a time, 2.5 with 64 and 4.0 with all (EPYC with AVX512, 2026-11-26).
_SHORT_BYTES, _FEW_ROWS = 64, 32
# From so many rows on, a chunk's result goes past the caches: lines of rows that lie a power of two
# apart fight for the same places there, and each is read before it is written. 512 rows of 8192,
# 4 lines of 256 rows at a time between loads and fma, took 1.2 ms more than these alone, 0.4 past
# the caches, and as long to read after; with 64 rows of 2048 both were the same (EPYC, Zen 5,
# 2026-11-27).
PAST_CACHES_ROWS = 128
_AVX512 = frozenset({"avx512"})
_n_panels, _most_panels, _panel_bytes = map(inline, (n_panels, most_panels, panel_bytes))


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A format's code for a unit of work.

    begin(n, work)    before the first unit of a kernel's share, with at most n rows of x a matrix
    most_rows(n, k, row_bytes)
                      rows of x that a chunk of the n has at most
    row_step()        chunks should have a multiple of so many rows of x
    most_groups()     groups that `multiply` takes at most
    take(xs, n, k, work)
                      before the first unit of a chunk: the n rows of x listed at xs
    multiply(groups, k, xs, n, sums, work)
                      the groups times the n rows listed at xs: of each group 16 sums, or as many as
                      it has rows, with each row of x
    end(n)            after the last unit, with n as in begin: what was stored past the caches comes
                      before whatever follows

    `work` is the address of the thread's memory of work_bytes(), at a multiple of 64.
    """

    begin: Inline
    most_rows: Inline
    row_step: Inline
    most_groups: Inline
    take: Inline
    multiply: Inline
    end: Inline


def work_bytes(format: Format, k: int, n_rows: int, has_tiles: bool) -> int:
    """Memory of a thread for products with so many rows of x, with AMX or without."""
    if isinstance(format.tiles, WholeUnits):
        return max(bf16_tiles.WORK_BYTES, many_rows.WORK_BYTES, short_rows.WORK_BYTES)
    if format.many is not None:
        return max(many_rows.WORK_BYTES, short_rows.WORK_BYTES)
    needed = 0
    if isinstance(format, PackedFormat) and isinstance(format.two_groups, UnpackedProducts):
        needed = unpacked_pairs.WORK_BYTES
    if format.tiles is not None and has_tiles and n_rows >= LEAST_ROWS:
        needed = max(needed, block_tiles.work_bytes(k, n_rows))
    return needed


@inline
def chunk_rows(n: Int, n_groups: Int, most: Int, step: Int, nth: Int) -> Int:
    """Rows of x in a unit of work: at most `most`, up to a multiple of `step`, but enough units for
    every thread. Chunks are about equal: weights are read for each, also for one of a few rows."""
    balanced = quotient(n * n_groups, 4 * nth)
    fitting = max(1, min(most, balanced))
    equal = quotient(n - 1, quotient(n + fitting - 1, fitting)) + 1
    return quotient(equal + step - 1, step) * step


@inline
def _most_rows(n: Int, k: Int, row_bytes: Int) -> Int:
    """As many as fit the cache."""
    return quotient(_CHUNK_BYTES, row_bytes) if row_bytes > _SHORT_BYTES else _FEW_ROWS


@inline
def _most_rows_of_floats(n: Int, k: Int, row_bytes: Int) -> Int:
    if row_bytes <= _SHORT_BYTES:
        return _FEW_ROWS
    most = many_rows.MOST_ROWS
    return most if n <= most else quotient(_FLOATS_CHUNK_BYTES, row_bytes)


@inline
def _nothing_to_begin(n: Int, work: Int) -> None:
    pass


@inline
def _nothing_to_take(xs: Int, n: Int, k: Int, work: Int) -> None:
    pass


@inline
def _nothing_to_end(n: Int) -> None:
    pass


@inline
def _end_of_tiles(n: Int) -> None:
    store_fence()
    if n >= LEAST_ROWS:
        release_tiles()


@inline
def _end_of_all_in_tiles(n: Int) -> None:
    store_fence()
    release_tiles()


_ONE_GROUP = constant(1)
_ROWS_OF_CODES = constant(8)  # in registers, of one group
_ROWS_OF_FLOATS = constant(many_rows.WIDTH)
# Two panels at least, even if they do not fit: weights are transposed for each chunk.
_ROWS_OF_BF16 = constant(2 * ROWS)


@inline
def _most_rows_of_panels(n: Int, k: Int, row_bytes: Int) -> Int:
    return ROWS * _most_panels(_panel_bytes(k))


@inline
def store_sums_of(n: Int, y: Int, sums: Any, n_lanes: Int) -> None:
    """The first `n_lanes` sums of a row, one of `n`, to its place at y in a result."""
    if n_lanes < GROUP:
        store_f32x16_part(y, sums, n_lanes)
    elif n >= PAST_CACHES_ROWS and y & (SUM_BYTES - 1) == 0:
        store_line_past_caches(y, sums)
    else:
        store_f32x16(y, sums)


@inline
def _store_panel_rows(found: Int, n: Int, groups: Groups, sums: Sums) -> None:
    """Sums of `n` rows, [panels, GROUPS, ROWS, 16] at `found`, to where they go."""
    for t in range(n):
        row = found + ((t & -ROWS) * GROUPS + (t & (ROWS - 1))) * SUM_BYTES
        y, bias = load_i64(sums.ys + 8 * t) + sums.at, sums.bias
        for i in range(groups.n):
            n_lanes = groups.n_rows - GROUP * i
            total = load_f32x16(row + ROWS * SUM_BYTES * i)
            if bias != 0:
                total = total + load_f32x16_part(bias + SUM_BYTES * i, n_lanes)
            store_sums_of(n if sums.is_result else 0, y + sums.step * i, total, n_lanes)


def _by_tiles(tiles: TileProducts, rest: Inline) -> tuple[Inline, Inline, Inline]:
    """`begin`, `take` and `multiply` of a Unit with AMX. `rest` multiplies one group with rows that
    no panel has, and with all rows where scales are too large for tiles."""
    configure, pack, multiply_panels = tiles.configure, tiles.pack, tiles.multiply
    by_group = by_each_group(rest)

    @inline
    def begin(n: Int, work: Int) -> None:
        if n >= LEAST_ROWS:
            configure(work)

    @inline
    def take(xs: Int, n: Int, k: Int, work: Int) -> None:
        pack(xs, n, _n_panels(n), k, work)

    @inline
    def multiply(groups: Groups, k: Int, xs: Int, n: Int, sums: Sums, work: Int) -> None:
        done, n_panels = 0, _n_panels(n)
        if n_panels > 0 and multiply_panels(groups.w, groups.step, groups.n, k, n_panels, work):
            done = min(n, ROWS * n_panels)
            _store_panel_rows(work + SUMS, done, groups, sums)
        by_group(groups, k, xs, n, sums, done, work)

    return begin, take, multiply


def _unit(
    multiply: Inline,
    *,
    begin: Inline = _nothing_to_begin,
    most_rows: Inline = _most_rows,
    row_step: Inline = _ROWS_OF_CODES,
    most_groups: Inline = _ONE_GROUP,
    take: Inline = _nothing_to_take,
    end: Inline = _nothing_to_end,
) -> Unit:
    """A Unit that needs nothing but what is given."""
    return Unit(begin, most_rows, row_step, most_groups, take, multiply, end)


def unit_of(format: Format) -> Unit:
    """How units of this format are computed, on any instruction set."""
    plain = by_registers(format.accumulate, format.width)
    if format.many is not None:
        plain = many_rows.many_or_few(format.many, plain)
    if format.short is not None:  # whose 16 sums need the registers of AVX512
        plain = Choice(_AVX512, short_or_not(format.short, plain), plain)
    if format.tiles is None:
        return _unit(of_one_group(plain), most_rows=_most_rows_of_floats, row_step=_ROWS_OF_FLOATS)
    if isinstance(format.tiles, WholeUnits):
        return _unit(
            of_one_group(Choice(TILES_BY, format.tiles.multiply, plain)),
            most_rows=Choice(TILES_BY, _most_rows, _most_rows_of_floats),
            row_step=Choice(TILES_BY, _ROWS_OF_BF16, _ROWS_OF_FLOATS),
            end=Choice(TILES_BY, _end_of_all_in_tiles, _nothing_to_end),
        )
    assert isinstance(format, PackedFormat)
    begin, take, multiply = _by_tiles(format.tiles, plain)
    by_vectors: Inline = of_one_group(plain)
    row_step: Inline = _ROWS_OF_CODES
    most_groups: Inline = _ONE_GROUP
    if format.two_groups is not None:
        most_groups = Choice(_AVX512, constant(2), most_groups)
    if isinstance(format.two_groups, PairProducts):
        by_vectors = Choice(_AVX512, by_pairs(format.two_groups, plain), by_vectors)
        row_step = Choice(_AVX512, constant(PAIR_ROWS), row_step)
    elif isinstance(format.two_groups, UnpackedProducts):
        by_vectors = Choice(_AVX512, by_unpacked_pairs(format.two_groups, plain), by_vectors)
    return _unit(
        Choice(TILES_BY, multiply, by_vectors),
        begin=Choice(TILES_BY, begin, _nothing_to_begin),
        most_rows=Choice(TILES_BY, _most_rows_of_panels, _most_rows),
        row_step=Choice(TILES_BY, constant(ROWS), row_step),
        most_groups=Choice(TILES_BY, constant(GROUPS), most_groups),
        take=Choice(TILES_BY, take, _nothing_to_take),
        end=Choice(TILES_BY, _end_of_tiles, _nothing_to_end),
    )
