"""The product of bf16 weights with x by AMX tiles: 16 weight rows times up to 16 rows of x.

x comes as three bf16 a number (bf16_parts.py), so a product with a weight is exact, and three tiles
of sums are kept, one for each part:

    tile     sums     row t, lane i: x row t times weight row i, of one part of x
             weights  row j: elements 2j and 2j + 1 of 16 weight rows, a block of 32 turned round
             x        16 rows of x  x  one part of a block

    a sum = (third + second) + first

All rows of x go through tiles, be it one: a sum is built in the order that the instruction has
(amx.py), block after block, so its bits depend on k alone. They are not those of other instruction
sets (floats.py). An infinite weight gives NaN, since it is multiplied with parts that are zero.

A block of weights is turned round once for up to PANELS panels, 16 rows of x each. The last panel
ends with the last row: where rows are left over it overlaps the one before, and computes the same
again.

A thread's working memory, ROOM_BYTES at a multiple of 64:

    config | panels (address, stride) | a stretch of weights | sums of panels |
    rows of x brought together | emulated tiles

Counted, not measured, for 16 by 16 rows and a block of 32: tiles take 3 x 16 cycles, x comes from
the second level of the cache in 48 lines, turning the weights is 64 shuffles. fma on f32 take 256.
With one row of x it is weights that are waited for, 1 KB a block: 60 to 80 cycles at what one core
reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.formats.bf16_parts import BLOCK, BLOCK_BYTES, N_PARTS, PART_BYTES
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd import amx
from ggmlpy.backends.cpu.simd.amx import ROW_BYTES, ROWS, TILE_BYTES, Shape, Tiles
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.core import Emitter, i32x16, i64, intrinsic, void
from ggmlpy.backends.cpu.simd.memory import (
    load_f32x16,
    load_f32x16_part,
    load_i8x64,
    load_i16x32_part,
    load_i64,
    prefetch_l2,
    store_f32x16_part,
    store_i8x64,
    store_i64,
)
from ggmlpy.backends.cpu.simd.product import after, unknown

STRETCH = 16  # blocks whose weights stay in the first level of the cache, turned round
PANELS = 4
_STRETCH_BYTES = STRETCH * TILE_BYTES
_PANEL_BYTES = N_PARTS * TILE_BYTES

_PANEL_PLACES = amx.CONFIG_BYTES
_WEIGHTS = _PANEL_PLACES + 16 * PANELS
_SUMS = _WEIGHTS + _STRETCH_BYTES
_TOGETHER = _SUMS + PANELS * _PANEL_BYTES
_TOGETHER_STRIDE = STRETCH * BLOCK_BYTES + 64  # not a multiple of 4096, see bf16_parts.row_bytes
_FILE = _TOGETHER + ROWS * _TOGETHER_STRIDE
ROOM_BYTES = _FILE + amx.FILE_BYTES

_TILES = Tiles(*(3 * N_PARTS - 2) * [Shape(ROWS, ROW_BYTES)])
_SUM_TILES = range(N_PARTS)
_WEIGHT_TILE = N_PARTS
_X_TILES = range(N_PARTS + 1, 2 * N_PARTS + 1)


@dataclass(frozen=True, slots=True, eq=False)
class WholeUnits:
    """Tiles for any number of rows of x: `multiply` is that of a Unit (matmul_units.py)."""

    multiply: Inline


@intrinsic(void, i64, i64)
def _configure(b: Emitter, room: Any, n_rows: Any) -> None:
    """Tiles for so many rows of x."""
    file = after(b, room, _FILE)
    _TILES.configure(b, file, room, n_rows, [*_SUM_TILES, *_X_TILES])


@intrinsic(void, i64)
def _zero_sums(b: Emitter, room: Any) -> None:
    for tile in _SUM_TILES:
        _TILES.zero(b, after(b, room, _FILE), tile)


@intrinsic(void, i64, i64)
def _load_sums(b: Emitter, room: Any, place: Any) -> None:
    stride = ir.Constant(i64.ir, ROW_BYTES)
    for i, tile in enumerate(_SUM_TILES):
        _TILES.load(b, after(b, room, _FILE), tile, after(b, place, TILE_BYTES * i), stride)


@intrinsic(void, i64, i64)
def _store_sums(b: Emitter, room: Any, place: Any) -> None:
    for i, tile in enumerate(_SUM_TILES):
        _TILES.store(b, after(b, room, _FILE), tile, after(b, place, TILE_BYTES * i))


@intrinsic(void, i64, i64, i64, i64)
def _add_block(b: Emitter, room: Any, weights: Any, x: Any, stride: Any) -> None:
    """Sums in tiles + a block of weights times rows of x `stride` bytes apart."""
    file = after(b, room, _FILE)
    _TILES.load(b, file, _WEIGHT_TILE, weights, ir.Constant(i64.ir, ROW_BYTES))
    for i, (sums, part) in enumerate(zip(_SUM_TILES, _X_TILES, strict=True)):
        _TILES.load(b, file, part, after(b, x, PART_BYTES * i), stride)
        _TILES.add_product_of_bf16(b, file, sums, part, _WEIGHT_TILE)


def _turned(b: Emitter, rows: list[Any]) -> list[Any]:
    """16 vectors of 16 i32 with rows and lanes exchanged: in squares of 2, 4, 8, 16."""
    for step in (1, 2, 4, 8):
        upper = [i if i & step == 0 else i - step + 16 for i in range(16)]
        lower = [i + step if i & step == 0 else i + 16 for i in range(16)]
        for r in range(16):
            if r & step == 0:
                a, c = rows[r], rows[r + step]
                rows[r], rows[r + step] = b.shuffle(a, c, upper), b.shuffle(a, c, lower)
    return rows


def _weight_rows(b: Emitter, w: Any, row_bytes: Any, n_rows: Any) -> list[Any]:
    """The addresses of 16 rows: the last one of `n_rows`, where that is past them."""
    last = b.sub(n_rows, ir.Constant(i64.ir, 1))
    rows = [ir.Constant(i64.ir, r) for r in range(ROWS)]
    rows = [b.select(b.icmp_signed("<", r, last), r, last) for r in rows]
    return [b.add(w, b.mul(row, row_bytes)) for row in rows]


@intrinsic(void, i64, i64, i64, i64)
def _turn_block(b: Emitter, w: Any, row_bytes: Any, n_rows: Any, place: Any) -> None:
    """32 elements of each row from w on, as the rows of a tile of weights, to `place`."""
    rows = [b.load_from(row, i32x16) for row in _weight_rows(b, w, row_bytes, n_rows)]
    for j, row in enumerate(_turned(b, rows)):
        b.store_to(after(b, place, ROW_BYTES * j), row)


@intrinsic(void, i64, i64, i64, i64, i64)
def _turn_rest(b: Emitter, w: Any, row_bytes: Any, n_rows: Any, n: Any, place: Any) -> None:
    """The same of the `n` elements that are left; no byte past them is touched."""
    addresses = _weight_rows(b, w, row_bytes, n_rows)
    rows = [b.bitcast(load_i16x32_part(b, row, n), i32x16.ir) for row in addresses]
    for j, row in enumerate(_turned(b, rows)):
        b.store_to(after(b, place, ROW_BYTES * j), row)


@inline
def _stride(xs: Int, n_rows: Int) -> Int:
    """From row to row of the `n_rows` listed at xs; 0 if they do not lie evenly."""
    first = load_i64(xs)
    stride = load_i64(xs + 8) - first if n_rows > 1 else BLOCK_BYTES
    for t in range(2, n_rows):
        if load_i64(xs + 8 * t) - first != t * stride:
            stride = 0
    return stride


@inline
def _bring_together(xs: Int, n_rows: Int, at: Int, n_bytes: Int, to: Int) -> None:
    """`n_bytes`, `at` bytes into each of the rows listed at xs, as evenly spaced rows."""
    for t in range(n_rows):
        x = load_i64(xs + 8 * t) + at
        for i in range(0, n_bytes, 64):
            store_i8x64(to + t * _TOGETHER_STRIDE + i, load_i8x64(x + i))


@inline
def _turn_stretch(w: Int, k: Int, first: Int, n_blocks: Int, n_rows: Int, room: Int) -> None:
    """Blocks from `first` on of the weight rows at w, to memory. As much is asked for as follows:
    further on in the rows, or where the next group's begin."""
    row_bytes = 2 * k
    place = room + _WEIGHTS
    end = min(first + n_blocks, quotient(k, BLOCK))
    ahead = PART_BYTES * (first + STRETCH)
    if ahead >= row_bytes:
        ahead = ROWS * row_bytes
    for i in range(first, end):
        _turn_block(w + PART_BYTES * i, row_bytes, n_rows, place)
        place += TILE_BYTES
    for t in range(n_rows):
        for i in range(n_blocks):
            prefetch_l2(w + ahead + t * row_bytes + PART_BYTES * i)
    if end < first + n_blocks:
        at = PART_BYTES * end
        _turn_rest(w + at, row_bytes, n_rows, k - BLOCK * end, place)


@inline
def _add_stretch(xs: Int, n_rows: Int, first: Int, n_blocks: Int, panel: Int, room: Int) -> None:
    """The products of a stretch of weights with a panel, added to its sums."""
    x = load_i64(room + _PANEL_PLACES + 16 * panel) + BLOCK_BYTES * first
    stride = load_i64(room + _PANEL_PLACES + 16 * panel + 8)
    if stride == 0:
        at, n_bytes = BLOCK_BYTES * first, BLOCK_BYTES * n_blocks
        _bring_together(xs, n_rows, at, n_bytes, room + _TOGETHER)
        x, stride = room + _TOGETHER, _TOGETHER_STRIDE
    sums = room + _SUMS + _PANEL_BYTES * panel
    if first == 0:
        _zero_sums(room)
    else:
        _load_sums(room, sums)
    for i in range(n_blocks):
        weights = room + _WEIGHTS + TILE_BYTES * i
        _add_block(room, weights, x + BLOCK_BYTES * i, stride)
    _store_sums(room, sums)


@inline
def _store_rows(sums: Int, ys: Int, n_rows: Int, at: Int, n_lanes: Int, bias: Int) -> None:
    """A panel's sums, and `bias`, to the rows listed at ys."""
    for t in range(n_rows):
        row = sums + ROW_BYTES * t
        total = load_f32x16(row + 2 * TILE_BYTES) + load_f32x16(row + TILE_BYTES)
        total = total + load_f32x16(row)
        if bias != 0:
            total = total + load_f32x16_part(bias, n_lanes)
        store_f32x16_part(load_i64(ys + 8 * t) + at, total, n_lanes)


@inline
def _multiply(
    w: Int, k: Int, xs: Int, ys: Int, n: Int, at: Int, n_lanes: Int, bias: Int, room: Int
) -> None:
    n_rows = min(n, ROWS)
    n_weight_rows = min(n_lanes, ROWS)
    n_blocks = quotient(k + BLOCK - 1, BLOCK)
    n_panels = quotient(n + ROWS - 1, ROWS)
    for first_panel in range(0, n_panels, PANELS):
        _configure(room, n_rows)
        n_here = unknown(min(PANELS, n_panels - first_panel))
        for j in range(n_here):
            row = min(ROWS * (first_panel + j), n - n_rows)
            store_i64(room + _PANEL_PLACES + 16 * j, load_i64(xs + 8 * row))
            store_i64(room + _PANEL_PLACES + 16 * j + 8, _stride(xs + 8 * row, n_rows))
        for first in range(0, n_blocks, STRETCH):
            n_blocks_here = min(STRETCH, n_blocks - first)
            _turn_stretch(w, k, first, n_blocks_here, n_weight_rows, room)
            for j in range(n_here):
                row = min(ROWS * (first_panel + j), n - n_rows)
                _add_stretch(xs + 8 * row, n_rows, first, n_blocks_here, j, room)
        for j in range(n_here):
            row = min(ROWS * (first_panel + j), n - n_rows)
            sums = room + _SUMS + _PANEL_BYTES * j
            _store_rows(sums, ys + 8 * row, n_rows, at, n_lanes, bias)


BF16_TILES = WholeUnits(_multiply)
