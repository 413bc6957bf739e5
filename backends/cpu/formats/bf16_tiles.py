"""The product of bf16 weights with x by AMX tiles: 16 weight rows times up to 16 rows of x.

x comes as three bf16 a number (bf16_parts.py), so a product with a weight is exact, and three tiles
of sums are kept, one for each part:

    tile     sums     row t, lane i: x row t times weight row i, of one part of x
             weights  row j: elements 2j and 2j + 1 of 16 weight rows, a block of 32 transposed
             x        16 rows of x  x  one part of a block

    a sum = (third + second) + first

All rows of x go through tiles, even a single one: a sum is built in the order that the instruction
has (amx.py), block after block, so its bits depend on k alone. They are not those of other
instruction sets (floats.py). An infinite weight gives NaN, since it is multiplied with parts that
are zero.

Weights are transposed once for up to PANELS panels (tile_panels.py). Where rows of x are left over
the last panel overlaps the one before, and computes the same again.

Counted, not measured, for 16 by 16 rows and a block of 32: tiles take 3 x 16 cycles, x comes from
the second level of the cache in 48 lines, transposing the weights is 64 shuffles. fma on f32 take
256. With one row of x the weights are the limit, 1 KB a block: 60 to 80 cycles at what one core
reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.formats.bf16_parts import BLOCK, BLOCK_BYTES, N_PARTS, PART_BYTES
from ggmlpy.backends.cpu.formats.tile_panels import Rows, Steps, WorkingMemory, panel_products
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd.amx import ROW_BYTES, ROWS, TILE_BYTES, Shape, Tiles
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.core import Emitter, i32x16, i64, intrinsic, void
from ggmlpy.backends.cpu.simd.memory import (
    load_f32x16,
    load_f32x16_part,
    load_i16x32_part,
    load_i64,
    prefetch_l2,
    store_f32x16_part,
)
from ggmlpy.backends.cpu.simd.product import after, unknown
from ggmlpy.backends.cpu.simd.transpose import row_addresses, transposed

STRETCH = 16  # blocks whose transposed weights stay in the first level of the cache
PANELS = 4
MEMORY = WorkingMemory(
    n_panels=PANELS,
    stretch=STRETCH,
    weight_bytes=TILE_BYTES,
    sums_bytes=N_PARTS * TILE_BYTES,
    gathered_stride=STRETCH * BLOCK_BYTES + 64,  # not a multiple of 4096, see bf16_parts.row_bytes
)
WORK_BYTES = MEMORY.n_bytes
_FILE, _WEIGHTS = MEMORY.file, MEMORY.weights
_SUMS, _PANEL_SUMS = MEMORY.sums, MEMORY.sums_bytes

_TILES = Tiles(*(3 * N_PARTS - 2) * [Shape(ROWS, ROW_BYTES)])
_SUM_TILES = range(N_PARTS)
_WEIGHT_TILE = N_PARTS
_X_TILES = range(N_PARTS + 1, 2 * N_PARTS + 1)


@dataclass(frozen=True, slots=True, eq=False)
class WholeUnits:
    """Tiles for any number of rows of x: `multiply` multiplies one group (matmul_units.py)."""

    multiply: Inline


@intrinsic(void, i64, i64)
def _configure(b: Emitter, work: Any, n_rows: Any) -> None:
    """Tiles for so many rows of x."""
    file = after(b, work, _FILE)
    _TILES.configure(b, file, work, n_rows, [*_SUM_TILES, *_X_TILES])


@intrinsic(void, i64)
def _zero_sums(b: Emitter, work: Any) -> None:
    for tile in _SUM_TILES:
        _TILES.zero(b, after(b, work, _FILE), tile)


@intrinsic(void, i64, i64)
def _load_sums(b: Emitter, work: Any, address: Any) -> None:
    stride = ir.Constant(i64.ir, ROW_BYTES)
    for i, tile in enumerate(_SUM_TILES):
        _TILES.load(b, after(b, work, _FILE), tile, after(b, address, TILE_BYTES * i), stride)


@intrinsic(void, i64, i64)
def _store_sums(b: Emitter, work: Any, address: Any) -> None:
    for i, tile in enumerate(_SUM_TILES):
        _TILES.store(b, after(b, work, _FILE), tile, after(b, address, TILE_BYTES * i))


@intrinsic(void, i64, i64, i64, i64)
def _add_block(b: Emitter, work: Any, weights: Any, x: Any, stride: Any) -> None:
    """Sums in tiles + a block of weights times rows of x `stride` bytes apart."""
    file = after(b, work, _FILE)
    _TILES.load(b, file, _WEIGHT_TILE, weights, ir.Constant(i64.ir, ROW_BYTES))
    for i, (sums, part) in enumerate(zip(_SUM_TILES, _X_TILES, strict=True)):
        _TILES.load(b, file, part, after(b, x, PART_BYTES * i), stride)
        _TILES.add_product_of_bf16(b, file, sums, part, _WEIGHT_TILE)


@intrinsic(void, i64, i64, i64, i64)
def _transpose_block(b: Emitter, w: Any, row_bytes: Any, n_rows: Any, address: Any) -> None:
    """32 elements of each row from w on, as the rows of a tile of weights, to `address`."""
    rows = [b.load_from(row, i32x16) for row in row_addresses(b, w, row_bytes, n_rows)]
    for j, row in enumerate(transposed(b, rows)):
        b.store_to(after(b, address, ROW_BYTES * j), row)


@intrinsic(void, i64, i64, i64, i64, i64)
def _transpose_rest(b: Emitter, w: Any, row_bytes: Any, n_rows: Any, n: Any, address: Any) -> None:
    """The same of the `n` elements that are left; no byte past them is touched."""
    addresses = row_addresses(b, w, row_bytes, n_rows)
    rows = [b.bitcast(load_i16x32_part(b, row, n), i32x16.ir) for row in addresses]
    for j, row in enumerate(transposed(b, rows)):
        b.store_to(after(b, address, ROW_BYTES * j), row)


@inline
def _transpose_stretch(w: Int, k: Int, first: Int, n_blocks: Int, n_rows: Int, work: Int) -> None:
    """Blocks from `first` on of the weight rows at w, to memory. As many bytes are prefetched: of
    the next stretch, or of the next group after the last one."""
    row_bytes = 2 * k
    address = work + _WEIGHTS
    end = min(first + n_blocks, quotient(k, BLOCK))
    ahead = PART_BYTES * (first + STRETCH)
    if ahead >= row_bytes:
        ahead = ROWS * row_bytes
    for i in range(first, end):
        _transpose_block(w + PART_BYTES * i, row_bytes, n_rows, address)
        address += TILE_BYTES
    for t in range(n_rows):
        for i in range(n_blocks):
            prefetch_l2(w + ahead + t * row_bytes + PART_BYTES * i)
    if end < first + n_blocks:
        at = PART_BYTES * end
        _transpose_rest(w + at, row_bytes, n_rows, k - BLOCK * end, address)


@inline
def _begin(sums: Int) -> None:
    """The first stretch starts from tiles of zeros."""


@inline
def _add_stretch(rows: Rows, sums: Int, w: Int, first: Int, n: Int, panel: Int, work: Int) -> None:
    if first == 0:
        _zero_sums(work)
    else:
        _load_sums(work, sums)
    for i in range(n):
        weights = work + _WEIGHTS + TILE_BYTES * i
        _add_block(work, weights, rows.x + BLOCK_BYTES * i, rows.stride)
    _store_sums(work, sums)


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


_multiply_panels = panel_products(
    MEMORY, BLOCK, BLOCK_BYTES, Steps(_begin, _transpose_stretch, _add_stretch)
)


@inline
def _multiply(
    w: Int, k: Int, xs: Int, ys: Int, n: Int, at: Int, n_lanes: Int, bias: Int, work: Int
) -> None:
    n_rows = min(n, ROWS)
    n_panels = quotient(n + ROWS - 1, ROWS)
    for first in range(0, n_panels, PANELS):
        _configure(work, n_rows)
        n_here = unknown(min(PANELS, n_panels - first))
        done = ROWS * first
        _multiply_panels(w, k, xs + 8 * done, n - done, n_rows, n_here, min(n_lanes, ROWS), work)
        for j in range(n_here):
            row = min(ROWS * (first + j), n - n_rows)
            sums = work + _SUMS + _PANEL_SUMS * j
            _store_rows(sums, ys + 8 * row, n_rows, at, n_lanes, bias)


BF16_TILES = WholeUnits(_multiply)
