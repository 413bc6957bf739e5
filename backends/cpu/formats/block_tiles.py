"""The product of weight blocks with int8 blocks of x by AMX tiles: 16 rows of x at a time.

By stretches of STRETCH blocks of a group of 16 weight rows: their codes and scales are unpacked
into memory that stays in the L1 cache, then every panel of 16 rows of x is multiplied with them
(tile_panels.py).

    tile     x        16 rows of x  x  the codes of a block, or of half a block of two scales
             u        the block's vectors u as they are: row j has elements 4j .. 4j + 3 of 16 rows
             product  row t is the vector of 16 int32 that blocks.py has for row t of x

From there on the steps are those of blocks.py, so a sum has the same bits with and without tiles.
The codes have their `zero` subtracted: signed bytes, and products need nothing added.

Why so (counted, not measured; 16 rows of x and of weights, a block of 32). A product takes the tile
unit 16 cycles. Around it stand 24 cycles of arithmetic at two vectors each (convert, scale, add for
16 rows), 28 of loads (x 16 lines, u 8, products and scales 16 + 16, two a cycle) and 16 of stores:
83 instructions (q4_0), where two times 8 rows in registers take 276. Arithmetic and loads are the
limit, so unpacking (10 to 25 cycles) is done once for up to PANELS panels, and sums stay in
registers for a stretch (4 loads and stores a block instead of 32). All of it overlaps only if
products run ahead: load, product (52 cycles) and store of a block are hidden behind the arithmetic
of the one before, for which blocks alternate between two sets of tiles. 32 rows of x at a time
would halve the loads of u, but keep no sums in registers.

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.formats.activations import BLOCK, BLOCK_BYTES, HALF, QS
from ggmlpy.backends.cpu.formats.blocks import Unpack, add_scaled, add_times_d
from ggmlpy.backends.cpu.formats.tile_panels import Rows, Steps, WorkingMemory, panel_products
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd import amx
from ggmlpy.backends.cpu.simd.amx import ROW_BYTES, ROWS, TILE_BYTES, Shape, Tiles
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.block import load_block, store_block
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Intrinsic,
    f32x16,
    i8x64,
    i32x16,
    i64,
    intrinsic,
    typed,
    void,
)
from ggmlpy.backends.cpu.simd.product import (
    after,
    expect,
    parts,
    prefetch_bytes,
    tile_of,
)

STRETCH = 8  # blocks
PANELS = 8
_N_VECTORS = 8  # of a block's u
_SCALES = _N_VECTORS * 64  # where an unpacked block has its scales, up to 2
_MINIMA = _SCALES + 2 * 64  # and its minima, up to 2
_UNPACKED_BYTES = _MINIMA + 2 * 64
MEMORY = WorkingMemory(
    n_panels=PANELS,
    stretch=STRETCH,
    weight_bytes=_UNPACKED_BYTES,
    sums_bytes=TILE_BYTES,  # [ROWS, 16] f32
    gathered_stride=STRETCH * BLOCK_BYTES,
    products_bytes=4 * TILE_BYTES,  # for both sets of tiles, for up to 2 scales
)
WORK_BYTES = MEMORY.n_bytes
SUMS = MEMORY.sums  # [PANELS, ROWS, 16] f32
_FILE, _WEIGHTS, _PRODUCTS = MEMORY.file, MEMORY.weights, MEMORY.products


@dataclass(frozen=True, slots=True, eq=False)
class TileProducts:
    """A format's code for tiles.

    configure(work)                        before anything else; release_tiles after it all
    multiply(w, k, xs, n_panels, work)     the packed group at w times the first 16 * n_panels rows
                                           listed at xs, up to PANELS panels, to `work + SUMS`
    """

    configure: Inline
    multiply: Inline


@intrinsic(void)
def release_tiles(b: Emitter) -> None:
    """Releases this thread's tiles."""
    amx.release(b)


@intrinsic(void)
def _keep_order(b: Emitter) -> None:
    """Keeps LLVM from hoisting later loads, which it would do for many rows at once, with no
    registers left for their sums. Emits no instruction."""
    b.call(ir.InlineAsm(ir.FunctionType(void.ir, []), "", "~{memory}", True), [])


@intrinsic(void, i64)
def _clear(b: Emitter, sums: Any) -> None:
    """Zeros for a panel's sums."""
    for t in range(ROWS):
        b.store_to(after(b, sums, ROW_BYTES * t), b.const(f32x16.ir, 0.0))


@inline
def _begin(sums: Int) -> None:
    _clear(sums)


def tile_products(
    unpack: Unpack, part_of: Inline, n_blocks: int, part_bytes: int, ahead_bytes: int
) -> TileProducts:
    """The code for a format whose parts have `n_blocks` blocks.

    `part_of(w, i)` gives the addresses of a packed block and of a part in it, the arguments of
    `unpack`. While the first panel is multiplied with a stretch, as many packed bytes as it has
    (`part_bytes` a part) are prefetched, `ahead_bytes` further on: spread out, as in add_blocks.
    """
    assert STRETCH % n_blocks == 0
    two_blocks_bytes = 2 * part_bytes // n_blocks
    unpack_part = _unpack_part(unpack)
    multiply_even, multiply_odd = (_multiply(unpack, tile_set) for tile_set in (0, 1))
    add_even, add_odd = (_add(unpack, tile_set) for tile_set in (0, 1))

    @intrinsic(void, i64)
    def configure_tiles(b: Emitter, work: Any) -> None:
        _Tiles.of(unpack, b).tiles.configure(b, after(b, work, _FILE), work)

    @inline
    def configure(work: Int) -> None:
        configure_tiles(work)

    @inline
    def add_stretch(sums: Any, x: Int, stride: Int, n: Int, ahead: Int, work: Int) -> Any:
        """sums + `n` unpacked blocks times ROWS rows of x. Products are one block ahead. `ahead`
        is the address of packed blocks to prefetch, or 0."""
        block = work + _WEIGHTS
        multiply_even(x, stride, block, work)
        for _ in range((n - 1) >> 1):
            if ahead != 0:
                prefetch_bytes(ahead, two_blocks_bytes)
                ahead += two_blocks_bytes
            next_x, next_block = x + BLOCK_BYTES, block + _UNPACKED_BYTES
            multiply_odd(next_x, stride, next_block, work)
            sums = add_even(sums, x, stride, block, work)
            x, block = next_x + BLOCK_BYTES, next_block + _UNPACKED_BYTES
            multiply_even(x, stride, block, work)
            sums = add_odd(sums, next_x, stride, next_block, work)
        if ahead != 0:
            prefetch_bytes(ahead, two_blocks_bytes)
        if n & 1:
            return add_even(sums, x, stride, block, work)
        next_x, next_block = x + BLOCK_BYTES, block + _UNPACKED_BYTES
        multiply_odd(next_x, stride, next_block, work)
        sums = add_even(sums, x, stride, block, work)
        return add_odd(sums, next_x, stride, next_block, work)

    @inline
    def unpack_stretch(w: Int, k: Int, first: Int, n: Int, n_lanes: Int, work: Int) -> None:
        first_part = quotient(first, n_blocks)
        for i in range(quotient(n, n_blocks)):
            at, part = part_of(w, first_part + i)
            unpack_part(at, part, work + _WEIGHTS + i * n_blocks * _UNPACKED_BYTES)

    @inline
    def add(rows: Rows, sums: Int, w: Int, first: Int, n: Int, panel: Int, work: Int) -> None:
        totals = load_block(sums, ROW_BYTES, ROWS, 1)
        ahead = w + quotient(first, n_blocks) * part_bytes + ahead_bytes if panel == 0 else 0
        totals = add_stretch(totals, rows.x, rows.stride, n, ahead, work)
        store_block(totals, sums, ROW_BYTES, ROWS)

    steps = Steps(_begin, unpack_stretch, add)
    multiply_panels = panel_products(MEMORY, BLOCK, BLOCK_BYTES, steps)

    @inline
    def multiply(w: Int, k: Int, xs: Int, n_panels: Int, work: Int) -> None:
        multiply_panels(w, k, xs, ROWS * n_panels, ROWS, n_panels, ROWS, work)

    return TileProducts(configure, multiply)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """How the blocks of a format go into tiles. Each of the two sets has products for each
    scale, x and u."""

    n_scales: int
    n_minima: int

    @staticmethod
    def of(unpack: Unpack, b: Emitter) -> _Tiles:
        """Found by unpacking a part into a function that is discarded: all blocks have one form."""
        kind = ir.FunctionType(void.ir, [i64.ir, i64.ir])
        function = ir.Function(ir.Module(), kind, "unpack")
        block = next(iter(unpack(Emitter(function.append_basic_block(), b.isa), *function.args)))
        return _Tiles(len(block.scales), len(block.minima))

    @property
    def tiles(self) -> Tiles:
        """Of both sets."""
        product = Shape(ROWS, ROW_BYTES)
        of_x = Shape(ROWS, 2 * HALF // self.n_scales)
        of_u = Shape(_N_VECTORS // self.n_scales, ROW_BYTES)
        return Tiles(*2 * [*self.n_scales * [product], of_x, of_u])

    def numbers(self, tile_set: int) -> tuple[range, int, int]:
        """The tiles of products, of x and of u."""
        first = tile_set * (self.n_scales + 2)
        end = first + self.n_scales
        return range(first, end), end, end + 1


def _product_at(tile_set: int, i: int) -> int:
    """Where the products for scale `i` are, in the work."""
    return _PRODUCTS + TILE_BYTES * (2 * tile_set + i)


def _unpack_part(unpack: Unpack) -> Intrinsic:
    """The function (w, part, address): the blocks of a part, unpacked to memory at `address`."""

    @intrinsic(void, i64, i64, i64)
    def unpack_part(b: Emitter, w: Any, part: Any, address: Any) -> None:
        for i, block in enumerate(unpack(b, w, part)):
            at = after(b, address, _UNPACKED_BYTES * i)
            zero = b.const(i8x64.ir, block.zero)
            for j, u in enumerate(block.u):
                b.store_to(after(b, at, 64 * j), b.sub(u, zero))
            for j, scale in enumerate(block.scales):
                b.store_to(after(b, at, _SCALES + 64 * j), scale)
            for j, minimum in enumerate(block.minima):
                b.store_to(after(b, at, _MINIMA + 64 * j), minimum)

    return unpack_part


def _multiply(unpack: Unpack, tile_set: int) -> Intrinsic:
    """The function (x, stride, block, work): ROWS rows at x times an unpacked block, to memory."""

    @intrinsic(void, i64, i64, i64, i64)
    def multiply(b: Emitter, x: Any, stride: Any, block: Any, work: Any) -> None:
        shape = _Tiles.of(unpack, b)
        tiles, file = shape.tiles, after(b, work, _FILE)
        products, of_x, of_u = shape.numbers(tile_set)
        u_bytes = 64 * _N_VECTORS // shape.n_scales
        for i, product in enumerate(products):
            tiles.load(b, file, of_x, after(b, x, QS + HALF * i), stride)
            tiles.load(b, file, of_u, after(b, block, u_bytes * i), ir.Constant(i64.ir, ROW_BYTES))
            tiles.product(b, file, product, of_x, of_u)
            tiles.store(b, file, product, after(b, work, _product_at(tile_set, i)))

    return multiply


def _add(unpack: Unpack, tile_set: int) -> Intrinsic:
    """The function (sums, x, stride, block, work): sums + the products in memory, scaled."""

    @typed(expect([f32x16], i64, i64, i64, i64, result=[f32x16]))
    def add(b: Emitter, sums: Any, x: Any, stride: Any, block: Any, work: Any) -> Any:
        shape = _Tiles.of(unpack, b)
        totals, rows = parts(b, sums), _rows(b, x, stride)
        addresses = [after(b, block, _MINIMA + 64 * i) for i in range(shape.n_minima)]
        minima = [b.load_from(address, f32x16) for address in addresses]
        addresses = [after(b, block, _SCALES + 64 * i) for i in range(shape.n_scales)]
        scales = [b.load_from(address, f32x16) for address in addresses]
        for t, row in enumerate(rows):  # with both halves at once: its d is loaded once
            _keep_order(b)
            scaled: Any = None
            for i, scale in enumerate(scales):
                address = after(b, work, _product_at(tile_set, i) + ROW_BYTES * t)
                scaled = add_scaled(b, scaled, b.load_from(address, i32x16), scale)
            totals[t] = add_times_d(b, totals[t], scaled, minima, row)
        return tile_of(b, totals)

    return add


def _rows(b: Emitter, x: Any, stride: Any) -> list[Any]:
    """The addresses of ROWS rows. Rows 8 .. 15 go from the eighth on: the same multiples of the
    stride twice, which take few registers."""
    half = ROWS // 2
    steps = [b.mul(stride, ir.Constant(i64.ir, t)) for t in range(half + 1)]
    return [b.add(start, step) for start in (x, b.add(x, steps[half])) for step in steps[:half]]
