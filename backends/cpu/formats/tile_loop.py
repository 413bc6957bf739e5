"""The loop of products by AMX tiles: 16 rows of x times 16 of weights, block after block.

    tile     x        16 rows of x  x  the 32 codes of a block
             u        the block's 8 vectors u: row j has elements 4j .. 4j + 3 of 16 weight rows
             product  row t is the vector of 16 int32 that blocks.py has for row t of x

Codes have their `zero` subtracted: signed bytes, and products need nothing added. Where a block has
two scales it is multiplied twice, with zeros in place of the half that the other scale is for,
since a product takes as long with 16 elements as with 32.

A sum has the same bits with and without tiles. The steps are those of blocks.py, but that products
for a second scale become floats without a conversion too. M = 1.5 * 2^23 has the bits 0x4B400000,
so these plus a product p are the bits of M + p, exactly, as |p| <= 32 * 128 * 128 < 2^22. Then

    p * scale             =  fma(M + p, scale, -M * scale)        rounded once, as the product is
    before + p * scale    =  fma((M + p) - M, scale, before)      (M + p) - M is exact

-M * scale is exact: M has 2 significant bits and a scale 19 at most (an f16 times 8 bits), if it is
below SCALE_LIMIT. Zeros may have another sign than without tiles, which the sum does not keep.

Counted from the machine code, not measured: 16 rows of x times 16 of weights, a block of 32, on a
Sapphire Rapids Xeon. Beside tile instructions only port 0 has fma of 512 bits, one a cycle, while
additions go to port 5 too; loads are two a cycle, a row of a tile being one. A product takes the
tile unit 16 cycles, its store 16, and it is ready after 52.

    a block of                      instructions   port 0   ports 0, 5   loads   multiply-adds
    one scale (q4_0, q8_0)                    62       32           24      30   256 a cycle
    a scale, a minimum (q4_1, q4_K)           79       48           32      38   171
    two scales (q6_K)                        116       48           48      42   171
    two scales, two minima (q2_K)            152       80           64      60   102

With conversions port 0 would take 48, 64, 80 and 112 cycles. All this overlaps only if products run
ahead of their use, also from one group and one panel to the next, and if sums stay in registers. A
prototype in C++ of the first row did 530 G multiply-adds a second on a core of such a CPU, with
conversions and products one block ahead 319 (2026-11-22).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.formats.activations import BLOCK
from ggmlpy.backends.cpu.formats.blocks import M_BITS, M, Unpack, add_times_d, form_of
from ggmlpy.backends.cpu.formats.planes import N_VECTORS
from ggmlpy.backends.cpu.formats.x_panels import (
    BLOCKS_AT_ONCE,
    LISTED_BYTES,
    X_BYTES,
    X_D,
    X_QS,
    X_SUMS,
)
from ggmlpy.backends.cpu.simd import amx
from ggmlpy.backends.cpu.simd.amx import CONFIG_BYTES, ROW_BYTES, ROWS, TILE_BYTES, Shape, Tiles
from ggmlpy.backends.cpu.simd.arith import fma
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Intrinsic,
    f32x16,
    i32x16,
    i64,
    intrinsic,
    typed,
    void,
)
from ggmlpy.backends.cpu.simd.product import after, expect, keep_order, parts, tile_of

SCALE_LIMIT_BITS = (104 + 127) << 23  # of 2^104; below it M times a scale is finite

# An unpacked block: vectors of u, the first scale, -M times it, a second scale, up to 2 minima.
SCALES = 12 * 64  # with two scales, u has 4 vectors of zeros between its halves
MINIMA = SCALES + 3 * 64
UNPACKED_BYTES = MINIMA + 2 * 64

# What a thread's working memory begins with: the tile configuration, then
LISTED = CONFIG_BYTES  # addresses of a panel's rows (x_panels.py)
PRODUCTS = LISTED + LISTED_BYTES  # of two blocks, of up to 2 scales
FILE = PRODUCTS + 4 * TILE_BYTES  # emulated tiles
LOOP_BYTES = FILE + amx.FILE_BYTES

_TILES = Tiles(
    *4 * [Shape(ROWS, ROW_BYTES)],  # products
    *2 * [Shape(ROWS, BLOCK)],  # x
    *2 * [Shape(N_VECTORS, ROW_BYTES)],  # u
)
_X_TILE, _U_TILE = 4, 6


@intrinsic(void, i64)
def configure_tiles(b: Emitter, work: Any) -> None:
    """This thread has the tiles of the loop."""
    _TILES.configure(b, after(b, work, FILE), work)


@dataclass(frozen=True, slots=True)
class Form:
    """What blocks of a format have, and which tiles they use.

    A product takes 52 cycles and is stored a block ahead of its use, so it is issued 3 blocks ahead
    of it, or, with two scales to a block, 2: there are 4 tiles for products.
    """

    n_scales: int
    n_minima: int

    @staticmethod
    def of(unpack: Unpack, b: Emitter) -> Form:
        block = form_of(unpack, b)
        return Form(len(block.scales), len(block.minima))

    @property
    def n_ahead(self) -> int:
        return 3 if self.n_scales == 1 else 2

    def product(self, block: int, i: int) -> int:
        """The tile of the product for scale `i`."""
        return (block * self.n_scales + i) % 4

    def x(self, block: int) -> int:
        return _X_TILE + block % 2

    def u(self, block: int, i: int) -> int:
        return _U_TILE + (block * self.n_scales + i) % 2


def _product_at(block: int, i: int) -> int:
    """Where a product is stored, in the work: the next block's beside that which is used."""
    return PRODUCTS + TILE_BYTES * (2 * (block % 2) + i)


@dataclass(frozen=True, slots=True)
class _Issue:
    """Emits the tile instructions for a block. Blocks have numbers of any stretch of 4: only which
    tiles they use depends on them."""

    b: Emitter
    form: Form
    work: Any

    def products(self, block: int, x: Any, u: Any) -> list[Callable[[], None]]:
        """What computes the products of a block of x with one of weights, in order."""
        steps: list[Callable[[], None]] = [partial(self._load_x, block, x)]
        for i in range(self.form.n_scales):
            steps += [partial(self._load_u, block, i, u), partial(self._multiply, block, i)]
        return steps

    def stores(self, block: int) -> list[Callable[[], None]]:
        """What stores them."""
        return [partial(self._store, block, i) for i in range(self.form.n_scales)]

    @property
    def _file(self) -> Any:
        return after(self.b, self.work, FILE)

    def _load_x(self, block: int, x: Any) -> None:
        address = after(self.b, x, X_QS)
        _TILES.load(self.b, self._file, self.form.x(block), address, ir.Constant(i64.ir, BLOCK))

    def _load_u(self, block: int, i: int, u: Any) -> None:
        address = after(self.b, u, 64 * (N_VECTORS // 2) * i)
        tile, stride = self.form.u(block, i), ir.Constant(i64.ir, ROW_BYTES)
        _TILES.load(self.b, self._file, tile, address, stride)

    def _multiply(self, block: int, i: int) -> None:
        form = self.form
        product, x, u = form.product(block, i), form.x(block), form.u(block, i)
        _TILES.product(self.b, self._file, product, x, u)

    def _store(self, block: int, i: int) -> None:
        address = after(self.b, self.work, _product_at(block, i))
        _TILES.store(self.b, self._file, self.form.product(block, i), address)


def begin_products(unpack: Unpack) -> Intrinsic:
    """The function (x, u, work): products of the first blocks, ahead of any sums."""

    @intrinsic(void, i64, i64, i64)
    def begin(b: Emitter, x: Any, u: Any, work: Any) -> None:
        form = Form.of(unpack, b)
        issue = _Issue(b, form, work)
        for i in range(form.n_ahead):
            for step in issue.products(i, *_block_at(b, x, u, i)):
                step()
        for step in issue.stores(0):
            step()

    return begin


def add_blocks(unpack: Unpack) -> Intrinsic:
    """The function (sums, x, u, next_x, next_u, work): sums + BLOCKS_AT_ONCE blocks of 16 rows of x
    times 16 of weights. The blocks that follow these are at next_x and next_u."""

    @typed(expect([f32x16], i64, i64, i64, i64, i64, result=[f32x16]))
    def add(b: Emitter, sums: Any, x: Any, u: Any, next_x: Any, next_u: Any, work: Any) -> Any:
        form = Form.of(unpack, b)
        issue = _Issue(b, form, work)
        totals = parts(b, sums)
        for i in range(BLOCKS_AT_ONCE):
            wraps, later = divmod(i + form.n_ahead, BLOCKS_AT_ONCE)
            of_later = _block_at(b, *((next_x, next_u) if wraps else (x, u)), later)
            steps = [*issue.products(later, *of_later), *issue.stores(i + 1)]
            step_before = {ROWS * j // len(steps): step for j, step in enumerate(steps)}
            add_row = _row_adder(b, form, i, *_block_at(b, x, u, i), work)
            for t in range(ROWS):
                if t in step_before:
                    step_before[t]()
                keep_order(b)
                totals[t] = add_row(t, totals[t])
        return tile_of(b, totals)

    return add


def _block_at(b: Emitter, x: Any, u: Any, i: int) -> tuple[Any, Any]:
    """The addresses of block i of x and of weights."""
    return after(b, x, X_BYTES * i), after(b, u, UNPACKED_BYTES * i)


def _row_adder(
    b: Emitter, form: Form, block: int, x: Any, u: Any, work: Any
) -> Callable[[int, Any], Any]:
    """The function (t, total): total + row t of a block's products, which are stored, scaled."""
    scale, minus_m_scale, *second = [
        b.load_from(after(b, u, SCALES + 64 * i), f32x16) for i in range(1 + form.n_scales)
    ]
    minima = [b.load_from(after(b, u, MINIMA + 64 * i), f32x16) for i in range(form.n_minima)]
    m_bits, m = b.const(i32x16.ir, M_BITS), b.const(f32x16.ir, M)

    def m_plus_product(i: int, t: int) -> Any:
        product = b.load_from(after(b, work, _product_at(block, i) + ROW_BYTES * t), i32x16)
        return b.bitcast(b.add(product, m_bits), f32x16.ir)

    def add(t: int, total: Any) -> Any:
        scaled = fma(b, m_plus_product(0, t), scale, minus_m_scale)
        for other in second:
            scaled = fma(b, b.fsub(m_plus_product(1, t), m), other, scaled)
        d, sums = after(b, x, X_D + 4 * t), after(b, x, X_SUMS + 4 * t)
        return add_times_d(b, total, scaled, d, minima, sums, 4 * ROWS)

    return add
