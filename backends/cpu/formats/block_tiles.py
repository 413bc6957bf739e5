"""The product of weight blocks with int8 blocks of x by AMX tiles: 16 rows of x at a time.

For STRETCH blocks of a group of 16 weight rows after another: their codes and scales are unpacked
into memory that stays in the L1 cache, then every 16 rows of x (a panel) go over them.

    tile     x        16 rows of x  x  the codes of a block, or of half a block of two scales
             u        the block's vectors u as they are: row j has elements 4j .. 4j + 3 of 16 rows
             product  row t is the vector of 16 int32 that blocks.py has for row t of x

From there on the steps are those of blocks.py, so the bits of a sum do not tell how it was made.
The codes have their `zero` subtracted: signed bytes, and products need nothing added.

A thread's working memory, ROOM_BYTES at a multiple of 64:

    config | panels (address, stride) | products | a stretch of unpacked blocks | sums of panels |
    16 rows of x brought together | emulated tiles

Why so (counted, not measured; 16 rows of x and of weights, a block of 32). A product takes the tile
unit 16 cycles. Around it stand 24 cycles of arithmetic at two vectors each (convert, scale, add for
16 rows), 28 of loads (x 16 lines, u 8, products and scales 16 + 16, two a cycle) and 16 of stores:
83 instructions (q4_0), where two times 8 rows in registers take 276. Arithmetic and loads are what
counts, so unpacking (10 to 25 cycles) is done once for up to PANELS panels, and sums stay in
registers for a stretch (4 loads and stores a block instead of 32). All of it overlaps only if
products run ahead: the latency of load, product (52 cycles) and store of a block hides behind the
arithmetic of the one before, for which blocks take turns with two sets of tiles. 32 rows of x at a
time would halve the loads of u, but keep no sums in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.formats.activations import BLOCK, BLOCK_BYTES, HALF, QS
from ggmlpy.backends.cpu.formats.blocks import Unpack, add_scaled, add_times_d
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd import amx
from ggmlpy.backends.cpu.simd.amx import ROW_BYTES, ROWS, TILE_BYTES, Shape, Tiles
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.block import load_block, store_block
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Intrinsic,
    Vec,
    f32x16,
    i8x64,
    i32x16,
    i64,
    intrinsic,
    typed,
    void,
)
from ggmlpy.backends.cpu.simd.memory import load_i64
from ggmlpy.backends.cpu.simd.product import (
    after,
    expect,
    parts,
    prefetch_bytes,
    tile_of,
    unknown,
)

STRETCH = 8  # blocks
PANELS = 8
_N_VECTORS = 8  # of a block's u
_SCALES = _N_VECTORS * 64  # where an unpacked block has its scales, up to 2
_MINIMA = _SCALES + 2 * 64  # and its minima, up to 2
_UNPACKED_BYTES = _MINIMA + 2 * 64
_UNEVEN = 1  # in place of a stride: the rows of a panel do not lie evenly

_PANEL_PLACES = amx.CONFIG_BYTES
_PRODUCTS = _PANEL_PLACES + 16 * PANELS  # for both sets of tiles, for up to 2 scales
_STRETCH = _PRODUCTS + 4 * TILE_BYTES
SUMS = _STRETCH + STRETCH * _UNPACKED_BYTES  # [PANELS, ROWS, 16] f32
_TOGETHER = SUMS + PANELS * TILE_BYTES
_TOGETHER_STRIDE = STRETCH * BLOCK_BYTES
_FILE = _TOGETHER + ROWS * _TOGETHER_STRIDE
ROOM_BYTES = _FILE + amx.FILE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class TileProducts:
    """A format's code for tiles.

    configure(room)                        before anything else; amx.release after it all
    multiply(w, k, xs, n_panels, room)     the packed group at w times the first 16 * n_panels rows
                                           listed at xs, up to PANELS panels, to `room + SUMS`
    """

    configure: Inline
    multiply: Inline


@intrinsic(void)
def release_tiles(b: Emitter) -> None:
    """This thread is done with tiles."""
    amx.release(b)


@intrinsic(void)
def _keep_order(b: Emitter) -> None:
    """Nothing that comes later is loaded before: LLVM would do so for many rows at once, and have
    no registers left for their sums. No instruction."""
    b.call(ir.InlineAsm(ir.FunctionType(void.ir, []), "", "~{memory}", True), [])


@intrinsic(void, i64, i64)
def _note_panel(b: Emitter, rows: Any, place: Any) -> None:
    """Where the first of ROWS addresses is and how far they are apart (_UNEVEN if not evenly)."""
    addresses = b.load_from(rows, Vec(i64, ROWS))
    first, second = (b.load_from(after(b, rows, 8 * t), i64) for t in range(2))
    stride = b.sub(second, first)
    steps = b.mul(b.splat(stride, ROWS), ir.Constant(Vec(i64, ROWS).ir, list(range(ROWS))))
    equal = b.icmp_signed("==", addresses, b.add(b.splat(first, ROWS), steps))
    bits = b.bitcast(equal, ir.IntType(ROWS))
    even = b.icmp_signed("==", bits, ir.Constant(bits.type, -1))
    b.store_to(place, first)
    b.store_to(after(b, place, 8), b.select(even, stride, ir.Constant(i64.ir, _UNEVEN)))


@intrinsic(void, i64)
def _clear(b: Emitter, sums: Any) -> None:
    """Zeros for a panel's sums."""
    for t in range(ROWS):
        b.store_to(after(b, sums, ROW_BYTES * t), b.const(f32x16.ir, 0.0))


@intrinsic(void, i64, i64, i64, i64)
def _bring_together(b: Emitter, rows: Any, at: Any, n: Any, to: Any) -> None:
    """`n` blocks, `at` bytes into each of ROWS rows, as evenly spaced rows."""
    xs = [b.add(b.load_from(after(b, rows, 8 * t), i64), at) for t in range(ROWS)]

    def copy_block(i: Any) -> None:
        offset = b.mul(i, ir.Constant(i64.ir, BLOCK_BYTES))
        for t, x in enumerate(xs):
            block = b.load_from(b.add(x, offset), i8x64)
            b.store_to(b.add(after(b, to, _TOGETHER_STRIDE * t), offset), block)

    b.repeat(n, copy_block)


def tile_products(
    unpack: Unpack, part_of: Inline, n_blocks: int, part_bytes: int, ahead_bytes: int
) -> TileProducts:
    """The code for a format whose parts have `n_blocks` blocks.

    `part_of(w, i)` gives the addresses of a packed block and of a part in it, as `unpack` wants
    them. While the first panel goes over a stretch, as many packed bytes as it has (`part_bytes` a
    part) are asked for, `ahead_bytes` further on: bit by bit, not in bunches, as in add_blocks.
    """
    assert STRETCH % n_blocks == 0
    parts_at_a_time = STRETCH // n_blocks
    two_blocks_bytes = 2 * part_bytes // n_blocks
    unpack_part = _unpack_part(unpack)
    multiply_even, multiply_odd = (_multiply(unpack, turn) for turn in (0, 1))
    add_even, add_odd = (_add(unpack, turn) for turn in (0, 1))

    @intrinsic(void, i64)
    def configure_tiles(b: Emitter, room: Any) -> None:
        _Tiles.of(unpack, b).tiles.configure(b, after(b, room, _FILE), room)

    @inline
    def configure(room: Int) -> None:
        configure_tiles(room)

    @inline
    def add_stretch(sums: Any, x: Int, stride: Int, n: Int, ahead: Int, room: Int) -> Any:
        """sums + `n` unpacked blocks times ROWS rows of x. Products are one block ahead. Unless it
        is 0, `ahead` is where to ask for packed blocks."""
        block = room + _STRETCH
        multiply_even(x, stride, block, room)
        for _ in range((n - 1) >> 1):
            if ahead != 0:
                prefetch_bytes(ahead, two_blocks_bytes)
                ahead += two_blocks_bytes
            next_x, next_block = x + BLOCK_BYTES, block + _UNPACKED_BYTES
            multiply_odd(next_x, stride, next_block, room)
            sums = add_even(sums, x, stride, block, room)
            x, block = next_x + BLOCK_BYTES, next_block + _UNPACKED_BYTES
            multiply_even(x, stride, block, room)
            sums = add_odd(sums, next_x, stride, next_block, room)
        if ahead != 0:
            prefetch_bytes(ahead, two_blocks_bytes)
        if n & 1:
            return add_even(sums, x, stride, block, room)
        next_x, next_block = x + BLOCK_BYTES, block + _UNPACKED_BYTES
        multiply_odd(next_x, stride, next_block, room)
        sums = add_even(sums, x, stride, block, room)
        return add_odd(sums, next_x, stride, next_block, room)

    @inline
    def multiply(w: Int, k: Int, xs: Int, n_panels: Int, room: Int) -> None:
        for j in range(n_panels):
            _note_panel(xs + 8 * ROWS * j, room + _PANEL_PLACES + 16 * j)
            _clear(room + SUMS + TILE_BYTES * j)
        n = quotient(k, BLOCK * n_blocks)
        for first in range(0, n, parts_at_a_time):
            n_here = unknown(min(parts_at_a_time, n - first))
            for i in range(first, first + n_here):
                at, part = part_of(w, i)
                place = _STRETCH + (i - first) * n_blocks * _UNPACKED_BYTES
                unpack_part(at, part, room + place)
            at, n_unpacked = first * n_blocks * BLOCK_BYTES, n_here * n_blocks
            for j in range(n_panels):
                x = load_i64(room + _PANEL_PLACES + 16 * j) + at
                stride = load_i64(room + _PANEL_PLACES + 16 * j + 8)
                if stride == _UNEVEN:
                    _bring_together(xs + 8 * ROWS * j, at, n_unpacked, room + _TOGETHER)
                    x, stride = room + _TOGETHER, _TOGETHER_STRIDE
                place = room + SUMS + TILE_BYTES * j
                sums = load_block(place, ROW_BYTES, ROWS, 1)
                ahead = w + first * part_bytes + ahead_bytes if j == 0 else 0
                sums = add_stretch(sums, x, stride, n_unpacked, ahead, room)
                store_block(sums, place, ROW_BYTES, ROWS)

    return TileProducts(configure, multiply)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """How the blocks of a format go into tiles. Of either turn: products for each scale, x, u."""

    n_scales: int
    n_minima: int

    @staticmethod
    def of(unpack: Unpack, b: Emitter) -> _Tiles:
        """Found by unpacking a part into a function that nobody keeps: its blocks are alike."""
        kind = ir.FunctionType(void.ir, [i64.ir, i64.ir])
        function = ir.Function(ir.Module(), kind, "unpack")
        block = next(iter(unpack(Emitter(function.append_basic_block(), b.isa), *function.args)))
        return _Tiles(len(block.scales), len(block.minima))

    @property
    def tiles(self) -> Tiles:
        """Of both turns."""
        product = Shape(ROWS, ROW_BYTES)
        of_x = Shape(ROWS, 2 * HALF // self.n_scales)
        of_u = Shape(_N_VECTORS // self.n_scales, ROW_BYTES)
        return Tiles(*2 * [*self.n_scales * [product], of_x, of_u])

    def numbers(self, turn: int) -> tuple[range, int, int]:
        """The tiles of products, of x and of u."""
        first = turn * (self.n_scales + 2)
        end = first + self.n_scales
        return range(first, end), end, end + 1


def _product_place(turn: int, i: int) -> int:
    """Where the products for scale `i` are, in the room."""
    return _PRODUCTS + TILE_BYTES * (2 * turn + i)


def _unpack_part(unpack: Unpack) -> Intrinsic:
    """The function (w, part, place): the blocks of a part, unpacked to memory at `place`."""

    @intrinsic(void, i64, i64, i64)
    def unpack_part(b: Emitter, w: Any, part: Any, place: Any) -> None:
        for i, block in enumerate(unpack(b, w, part)):
            at = after(b, place, _UNPACKED_BYTES * i)
            zero = b.const(i8x64.ir, block.zero)
            for j, u in enumerate(block.u):
                b.store_to(after(b, at, 64 * j), b.sub(u, zero))
            for j, scale in enumerate(block.scales):
                b.store_to(after(b, at, _SCALES + 64 * j), scale)
            for j, minimum in enumerate(block.minima):
                b.store_to(after(b, at, _MINIMA + 64 * j), minimum)

    return unpack_part


def _multiply(unpack: Unpack, turn: int) -> Intrinsic:
    """The function (x, stride, block, room): ROWS rows at x times an unpacked block, to memory."""

    @intrinsic(void, i64, i64, i64, i64)
    def multiply(b: Emitter, x: Any, stride: Any, block: Any, room: Any) -> None:
        shape = _Tiles.of(unpack, b)
        tiles, file = shape.tiles, after(b, room, _FILE)
        products, of_x, of_u = shape.numbers(turn)
        u_bytes = 64 * _N_VECTORS // shape.n_scales
        for i, product in enumerate(products):
            tiles.load(b, file, of_x, after(b, x, QS + HALF * i), stride)
            tiles.load(b, file, of_u, after(b, block, u_bytes * i), ir.Constant(i64.ir, ROW_BYTES))
            tiles.product(b, file, product, of_x, of_u)
            tiles.store(b, file, product, after(b, room, _product_place(turn, i)))

    return multiply


def _add(unpack: Unpack, turn: int) -> Intrinsic:
    """The function (sums, x, stride, block, room): sums + the products in memory, scaled."""

    @typed(expect([f32x16], i64, i64, i64, i64, result=[f32x16]))
    def add(b: Emitter, sums: Any, x: Any, stride: Any, block: Any, room: Any) -> Any:
        shape = _Tiles.of(unpack, b)
        totals, rows = parts(b, sums), _rows(b, x, stride)
        places = [after(b, block, _MINIMA + 64 * i) for i in range(shape.n_minima)]
        minima = [b.load_from(place, f32x16) for place in places]
        places = [after(b, block, _SCALES + 64 * i) for i in range(shape.n_scales)]
        scales = [b.load_from(place, f32x16) for place in places]
        for t, row in enumerate(rows):  # with both halves at once: its d is loaded once
            _keep_order(b)
            scaled: Any = None
            for i, scale in enumerate(scales):
                place = after(b, room, _product_place(turn, i) + ROW_BYTES * t)
                scaled = add_scaled(b, scaled, b.load_from(place, i32x16), scale)
            totals[t] = add_times_d(b, totals[t], scaled, minima, row)
        return tile_of(b, totals)

    return add


def _rows(b: Emitter, x: Any, stride: Any) -> list[Any]:
    """The addresses of ROWS rows. Rows 8 .. 15 go from the eighth on: the same multiples of the
    stride twice, which take few registers."""
    half = ROWS // 2
    steps = [b.mul(stride, ir.Constant(i64.ir, t)) for t in range(half + 1)]
    return [b.add(start, step) for start in (x, b.add(x, steps[half])) for step in steps[:half]]
