"""AMX: eight tiles of up to 16 rows of 64 bytes, and the product of two of them.

    c (r, i) i32   =  sum over j, t < 4 of  a (r, 4j + t) * b (j, 4i + t)      bytes, all signed
    c (r, i) f32  +=  sum over j, t < 2 of  a (r, 2j + t) * b (j, 2i + t)      bf16

The second one has an order (Intel's manual, TDPBF16PS): from zeros, one fma each for j = 0, 1, ...,
even and odd elements separately; these two sums are added, and the result is added to c. Denormal
inputs and results count as zero.

A thread loads a configuration that says which part of each tile is used (`configure`), computes,
and releases the tiles (`release`), so that it keeps no state between kernels. These functions
write LLVM IR, as intrinsics do. Where the instruction set has "amx" they are its instructions;
where it has "amx-emulated" (tests, on any CPU) they are vector code on a *file*, FILE_BYTES of
memory that hold the tiles. Tiles are constant numbers in the code, as in the instructions.

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.core import Emitter, Vec, f32x16, i8, i32, i32x16, i64, void
from ggmlpy.backends.cpu.simd.dot import dot4_s8s8
from ggmlpy.backends.cpu.simd.memory import bcast4_i8x64
from ggmlpy.backends.cpu.simd.product import after

TILES_BY = frozenset({"amx", "amx-emulated"})  # an instruction set with tiles has one of these
N_TILES = 8
ROWS = 16
ROW_BYTES = 64
TILE_BYTES = ROWS * ROW_BYTES
CONFIG_BYTES = 64
_CONFIG = N_TILES * TILE_BYTES  # where emulated tiles have their configuration
FILE_BYTES = _CONFIG + CONFIG_BYTES
_PALETTE = 1  # byte 0 of a configuration; at 16 + 2t the bytes of a row of tile t, at 48 + t rows
_ROW_BYTES_AT, _ROWS_AT = 16, 48


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a tile that is used."""

    rows: int
    row_bytes: int

    def __post_init__(self) -> None:
        assert 0 < self.rows <= ROWS
        assert 0 < self.row_bytes <= ROW_BYTES
        assert self.row_bytes % 4 == 0


class Tiles:
    """Tiles 0, 1, ... of these shapes: one configuration, and the operations on it.

    `file` is the address of the emulated tiles; instructions do not use it.
    """

    def __init__(self, *shapes: Shape) -> None:
        assert len(shapes) <= N_TILES
        self._shapes = shapes

    def config(self) -> bytes:
        """The memory that `ldtilecfg` reads."""
        config = bytearray(CONFIG_BYTES)
        config[0] = _PALETTE
        for t, shape in enumerate(self._shapes):
            config[_ROW_BYTES_AT + 2 * t] = shape.row_bytes  # the upper byte of the two is 0
            config[_ROWS_AT + t] = shape.rows
        return bytes(config)

    def configure(
        self, b: Emitter, file: Any, address: Any, rows: Any = None, of: Iterable[int] = ()
    ) -> None:
        """This thread has tiles of these shapes, all zeros; CONFIG_BYTES at `address` are written.

        The tiles `of` these numbers have `rows` rows, a value: as many as their shape, or fewer.
        """
        emulated = _emulated(b)
        address = after(b, file, _CONFIG) if emulated else address
        b.store_to(address, ir.Constant(Vec(i8, CONFIG_BYTES).ir, list(self.config())))
        for tile in of:
            b.store_to(after(b, address, _ROWS_AT + tile), b.trunc(rows, i8.ir))
        if not emulated:
            b.llvm("llvm.x86.ldtilecfg", void.ir, b.pointer(address, i8.ir))

    def zero(self, b: Emitter, file: Any, tile: int) -> None:
        """Fills the tile with zeros."""
        if not _emulated(b):
            b.llvm("llvm.x86.tilezero", void.ir, _number(tile))
            return
        zeros = b.const(Vec(i8, ROW_BYTES).ir, 0)
        b.repeat(_n_rows(b, file, tile), lambda r: b.store_to(_row(b, file, tile, r), zeros))

    def load(self, b: Emitter, file: Any, tile: int, address: Any, stride: Any) -> None:
        """Rows from memory, `stride` bytes apart."""
        if not _emulated(b):
            pointer = b.pointer(address, i8.ir)
            b.llvm("llvm.x86.tileloadd64", void.ir, _number(tile), pointer, stride)
            return
        row = Vec(i8, self._shapes[tile].row_bytes)

        def load_row(r: Any) -> None:
            value = b.load_from(b.add(address, b.mul(r, stride)), row)
            b.store_to(_row(b, file, tile, r), value)

        b.repeat(_n_rows(b, file, tile), load_row)

    def store(self, b: Emitter, file: Any, tile: int, address: Any) -> None:
        """Rows to memory, ROW_BYTES apart."""
        stride = ir.Constant(i64.ir, ROW_BYTES)
        if not _emulated(b):
            pointer = b.pointer(address, i8.ir)
            b.llvm("llvm.x86.tilestored64", void.ir, _number(tile), pointer, stride)
            return
        row = Vec(i8, self._shapes[tile].row_bytes)

        def store_row(r: Any) -> None:
            value = b.load_from(_row(b, file, tile, r), row)
            b.store_to(b.add(address, b.mul(r, stride)), value)

        b.repeat(_n_rows(b, file, tile), store_row)

    def product(self, b: Emitter, file: Any, c: int, x: int, y: int) -> None:
        """Tile c = tile x times tile y, of signed bytes."""
        self._check_product(c, x, y)
        if not _emulated(b):
            b.llvm("llvm.x86.tilezero", void.ir, _number(c))
            b.llvm("llvm.x86.tdpbssd", void.ir, _number(c), _number(x), _number(y))
            return

        def multiply_row(r: Any) -> None:
            total = b.const(i32x16.ir, 0)
            for j in range(self._shapes[y].rows):
                four = bcast4_i8x64(b, after(b, _row(b, file, x, r), 4 * j))
                row_of_y = b.load_from(_row(b, file, y, ir.Constant(i64.ir, j)), Vec(i8, 64))
                total = dot4_s8s8(b, total, four, row_of_y)
            b.store_to(_row(b, file, c, r), total)

        b.repeat(_n_rows(b, file, c), multiply_row)

    def add_product_of_bf16(self, b: Emitter, file: Any, c: int, x: int, y: int) -> None:
        """Tile c += tile x times tile y: c of f32, the others of bf16."""
        self._check_product(c, x, y)
        if not _emulated(b):
            b.llvm("llvm.x86.tdpbf16ps", void.ir, _number(c), _number(x), _number(y))
            return

        def multiply_row(r: Any) -> None:
            even = odd = b.const(f32x16.ir, 0.0)
            for j in range(self._shapes[y].rows):
                pair = b.load_from(after(b, _row(b, file, x, r), 4 * j), i32)
                row_of_y = b.load_from(_row(b, file, y, ir.Constant(i64.ir, j)), i32x16)
                x_even, x_odd = _pair_of_bf16(b, b.splat(pair, 16))
                y_even, y_odd = _pair_of_bf16(b, row_of_y)
                # A product of two bf16 is exact in f32, so there is one rounding, as in an fma.
                # (Not beyond f32's range, nor for denormals, which the CPU takes for zero.)
                even = b.fadd(even, b.fmul(x_even, y_even))
                odd = b.fadd(odd, b.fmul(x_odd, y_odd))
            address = _row(b, file, c, r)
            b.store_to(address, b.fadd(b.load_from(address, f32x16), b.fadd(even, odd)))

        b.repeat(_n_rows(b, file, c), multiply_row)

    def _check_product(self, c: int, x: int, y: int) -> None:
        of_c, of_x, of_y = (self._shapes[t] for t in (c, x, y))
        assert of_c == Shape(of_x.rows, of_y.row_bytes), "shapes that the instruction refuses"
        assert of_x.row_bytes == 4 * of_y.rows, "shapes that the instruction refuses"
        assert of_c.row_bytes == ROW_BYTES, "the emulation has whole vectors"


def release(b: Emitter) -> None:
    """Releases this thread's tiles: the system need not save them any more."""
    if not _emulated(b):
        b.llvm("llvm.x86.tilerelease", void.ir)


def _emulated(b: Emitter) -> bool:
    assert b.isa.has & TILES_BY, f"{b.isa.name} has no tiles"
    return "amx-emulated" in b.isa.has


def _number(tile: int) -> Any:
    return ir.Constant(i8.ir, tile)


def _n_rows(b: Emitter, file: Any, tile: int) -> Any:
    """The rows that an emulated tile is configured to have."""
    address = after(b, file, _CONFIG + _ROWS_AT + tile)
    return b.zext(b.load_from(address, i8), i64.ir)


def _pair_of_bf16(b: Emitter, pairs: Any) -> tuple[Any, Any]:
    """The even and the odd of bf16 that lie two in an i32, as f32."""
    even = b.shl(pairs, b.const(i32x16.ir, 16))
    odd = b.and_(pairs, b.const(i32x16.ir, -1 << 16))
    return b.bitcast(even, f32x16.ir), b.bitcast(odd, f32x16.ir)


def _row(b: Emitter, file: Any, tile: int, r: Any) -> Any:
    """The address of a row in the file."""
    start = after(b, file, TILE_BYTES * tile)
    return b.add(start, b.mul(r, ir.Constant(i64.ir, ROW_BYTES)))
