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

A group of 16 weight rows is multiplied with up to PANELS panels of 16 rows of x, by stretches of
blocks: the weights of a stretch are transposed, in memory that stays in the L1 cache, then every
panel is multiplied with them. Where rows of x are left over the last panel overlaps the one before,
and computes the same again. Tiles load rows that are evenly spaced; where the rows of a panel are
not, as with experts, a stretch of them is gathered first.

Counted, not measured, for 16 by 16 rows and a block of 32: tiles take 3 x 16 cycles, x comes from
the second level of the cache in 48 lines, transposing the weights is 64 shuffles. fma on f32 take
256. With one row of x the weights are the limit, 1 KB a block: 60 to 80 cycles at what one core
reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from llvmlite import ir

from ggmlpy.backends.cpu.formats.bf16_parts import BLOCK, BLOCK_BYTES, N_PARTS, PART_BYTES
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd.amx import (
    CONFIG_BYTES,
    FILE_BYTES,
    ROW_BYTES,
    ROWS,
    TILE_BYTES,
    Shape,
    Tiles,
)
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Vec,
    i8x64,
    i32,
    i32x16,
    i64,
    intrinsic,
    suffix,
    void,
)
from ggmlpy.backends.cpu.simd.memory import (
    first_lanes,
    load_f32x16,
    load_f32x16_part,
    load_i8x64,
    load_i16x32_part,
    load_i64,
    prefetch_l2,
    store_f32x16_part,
    store_i8x64,
)
from ggmlpy.backends.cpu.simd.product import after, unknown
from ggmlpy.backends.cpu.simd.transpose import row_addresses, transposed

STRETCH = 16  # blocks whose transposed weights stay in the first level of the cache
PANELS = 4
PANEL_BYTES = 16  # of an entry of the list of panels: address, stride
SUMS_BYTES = N_PARTS * TILE_BYTES  # of a panel
GATHERED_STRIDE = STRETCH * BLOCK_BYTES + 64  # not a multiple of 4096, see bf16_parts.row_bytes

# A thread's working memory, at a multiple of 64: the tile configuration, then
LISTED = CONFIG_BYTES  # the panels
WEIGHTS = LISTED + PANELS * PANEL_BYTES  # a stretch of them, transposed
SUMS = WEIGHTS + STRETCH * TILE_BYTES
GATHERED = SUMS + PANELS * SUMS_BYTES  # a stretch of a panel's rows of x
FILE = GATHERED + ROWS * GATHERED_STRIDE  # emulated tiles
WORK_BYTES = FILE + FILE_BYTES

_UNEVEN = 1  # in place of a stride: the rows of a panel do not lie evenly
_ADDRESSES = Vec(i64, ROWS)
_TILES = Tiles(*(3 * N_PARTS - 2) * [Shape(ROWS, ROW_BYTES)])
_SUM_TILES = range(N_PARTS)
_WEIGHT_TILE = N_PARTS
_X_TILES = range(N_PARTS + 1, 2 * N_PARTS + 1)


@dataclass(frozen=True, slots=True, eq=False)
class WholeUnits:
    """Tiles for any number of rows of x: `multiply` multiplies one group (matmul_units.py)."""

    multiply: Inline


class Rows(NamedTuple):
    """The rows of a panel, from the first block of a stretch on."""

    x: Int
    stride: Int


# --- rows of x ----------------------------------------------------------------------------------


@intrinsic(void, i64, i64, i64)
def _note_panel(b: Emitter, rows: Any, n_rows: Any, panel: Any) -> None:
    """Where the first of `n_rows` listed rows is and how far they are apart, _UNEVEN if not evenly.
    No address past them is read."""
    one = ir.Constant(i64.ir, 1)
    first = b.load_from(rows, i64)
    is_one = b.icmp_signed("==", n_rows, one)
    second = b.load_from(b.select(is_one, rows, after(b, rows, 8)), i64)
    stride = b.sub(second, first)
    steps = b.mul(b.splat(stride, ROWS), ir.Constant(_ADDRESSES.ir, list(range(ROWS))))
    even = b.add(b.splat(first, ROWS), steps)
    name = f"llvm.masked.load.{suffix(_ADDRESSES.ir)}.p0"
    mask, align = first_lanes(b, n_rows, ROWS), ir.Constant(i32.ir, 1)
    pointer = b.pointer(rows, _ADDRESSES.ir)
    addresses = b.llvm(name, _ADDRESSES.ir, pointer, align, mask, even)
    bits = b.bitcast(b.icmp_signed("==", addresses, even), ir.IntType(ROWS))
    is_even = b.icmp_signed("==", bits, ir.Constant(bits.type, -1))
    b.store_to(panel, first)
    b.store_to(after(b, panel, 8), b.select(is_even, stride, ir.Constant(i64.ir, _UNEVEN)))


@intrinsic(void, i64, i64, i64, i64)
def _gather_panel(b: Emitter, rows: Any, at: Any, n_lines: Any, to: Any) -> None:
    """`n_lines` times 64 bytes, `at` bytes into each of ROWS listed rows, as evenly spaced rows."""
    xs = [b.add(b.load_from(after(b, rows, 8 * t), i64), at) for t in range(ROWS)]

    def copy_line(i: Any) -> None:
        offset = b.mul(i, ir.Constant(i64.ir, 64))
        for t, x in enumerate(xs):
            line = b.load_from(b.add(x, offset), i8x64)
            b.store_to(b.add(after(b, to, GATHERED_STRIDE * t), offset), line)

    b.repeat(n_lines, copy_line)


@inline
def _gather(xs: Int, n_rows: Int, at: Int, n_bytes: Int, to: Int) -> None:
    """The same of `n_bytes` of `n_rows` rows."""
    if n_rows == ROWS:
        _gather_panel(xs, at, n_bytes >> 6, to)
        return
    for t in range(n_rows):
        x = load_i64(xs + 8 * t) + at
        for i in range(0, n_bytes, 64):
            store_i8x64(to + t * GATHERED_STRIDE + i, load_i8x64(x + i))


@inline
def _rows_of(panel: Int, xs: Int, n_rows: Int, first: Int, n: Int, work: Int) -> Rows:
    """A panel's rows, gathered where they do not lie evenly."""
    at = BLOCK_BYTES * first
    x, stride = load_i64(panel) + at, load_i64(panel + 8)
    if stride == _UNEVEN:
        _gather(xs, n_rows, at, BLOCK_BYTES * n, work + GATHERED)
        x, stride = work + GATHERED, GATHERED_STRIDE
    return Rows(x, stride)


# --- weights ------------------------------------------------------------------------------------


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
    address = work + WEIGHTS
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


# --- products -----------------------------------------------------------------------------------


@intrinsic(void, i64, i64)
def _configure(b: Emitter, work: Any, n_rows: Any) -> None:
    """Tiles for so many rows of x."""
    file = after(b, work, FILE)
    _TILES.configure(b, file, work, n_rows, [*_SUM_TILES, *_X_TILES])


@intrinsic(void, i64)
def _zero_sums(b: Emitter, work: Any) -> None:
    for tile in _SUM_TILES:
        _TILES.zero(b, after(b, work, FILE), tile)


@intrinsic(void, i64, i64)
def _load_sums(b: Emitter, work: Any, address: Any) -> None:
    stride = ir.Constant(i64.ir, ROW_BYTES)
    for i, tile in enumerate(_SUM_TILES):
        _TILES.load(b, after(b, work, FILE), tile, after(b, address, TILE_BYTES * i), stride)


@intrinsic(void, i64, i64)
def _store_sums(b: Emitter, work: Any, address: Any) -> None:
    for i, tile in enumerate(_SUM_TILES):
        _TILES.store(b, after(b, work, FILE), tile, after(b, address, TILE_BYTES * i))


@intrinsic(void, i64, i64, i64, i64)
def _add_block(b: Emitter, work: Any, weights: Any, x: Any, stride: Any) -> None:
    """Sums in tiles + a block of weights times rows of x `stride` bytes apart."""
    file = after(b, work, FILE)
    _TILES.load(b, file, _WEIGHT_TILE, weights, ir.Constant(i64.ir, ROW_BYTES))
    for i, (sums, part) in enumerate(zip(_SUM_TILES, _X_TILES, strict=True)):
        _TILES.load(b, file, part, after(b, x, PART_BYTES * i), stride)
        _TILES.add_product_of_bf16(b, file, sums, part, _WEIGHT_TILE)


@inline
def _add_stretch(rows: Rows, sums: Int, first: Int, n: Int, work: Int) -> None:
    """A panel's sums + its product with the n transposed blocks from `first` on."""
    if first == 0:
        _zero_sums(work)
    else:
        _load_sums(work, sums)
    for i in range(n):
        weights = work + WEIGHTS + TILE_BYTES * i
        _add_block(work, weights, rows.x + BLOCK_BYTES * i, rows.stride)
    _store_sums(work, sums)


@inline
def _multiply_panels(
    w: Int, k: Int, xs: Int, n_x: Int, n_rows: Int, n_panels: Int, n_lanes: Int, work: Int
) -> None:
    """Sums of the group at w, of `n_lanes` rows, times `n_panels` panels of `n_rows` rows, of the
    n_x that are listed at xs. The last panel ends with the last row."""
    for j in range(n_panels):
        listed = xs + 8 * min(ROWS * j, n_x - n_rows)
        _note_panel(listed, n_rows, work + LISTED + PANEL_BYTES * j)
    n_blocks = quotient(k + BLOCK - 1, BLOCK)
    for first in range(0, n_blocks, STRETCH):
        n = unknown(min(STRETCH, n_blocks - first))
        _transpose_stretch(w, k, first, n, n_lanes, work)
        for j in range(n_panels):
            listed = xs + 8 * min(ROWS * j, n_x - n_rows)
            panel = work + LISTED + PANEL_BYTES * j
            rows = _rows_of(panel, listed, n_rows, first, n, work)
            _add_stretch(rows, work + SUMS + SUMS_BYTES * j, first, n, work)


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
            sums = work + SUMS + SUMS_BYTES * j
            _store_rows(sums, ys + 8 * row, n_rows, at, n_lanes, bias)


BF16_TILES = WholeUnits(_multiply)
