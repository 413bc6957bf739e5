"""AMX: eight tiles of up to 16 rows of 64 bytes, and the product of two of them.

    c (r, i) i32  +=  sum over j, t < 4 of  a (r, 4j + t) * b (j, 4i + t)      bytes, all signed

A thread loads a configuration that says which part of each tile is used (`configure`), computes,
and gives the tiles back (`release`), so that it keeps no state between kernels. These functions
write LLVM IR, as intrinsics do. Where the instruction set has "amx" they are its instructions;
where it has "amx-emulated" (tests, on any CPU) they are vector code on a *file*, FILE_BYTES of
memory that stand for the tiles. Tiles are named by number when code is made, as instructions do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.core import Emitter, Vec, i8, i32x16, i64, void
from ggmlpy.backends.cpu.simd.dot import dot4_s8s8
from ggmlpy.backends.cpu.simd.memory import bcast4_i8x64

TILES_BY = frozenset({"amx", "amx-emulated"})  # what an instruction set with tiles has one of
N_TILES = 8
ROWS = 16
ROW_BYTES = 64
TILE_BYTES = ROWS * ROW_BYTES
FILE_BYTES = N_TILES * TILE_BYTES
CONFIG_BYTES = 64
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
    """Tiles 0, 1, ... of these shapes: one configuration, and what may be done with it.

    `file` is the address of the emulated tiles; instructions have no use for it.
    """

    def __init__(self, *shapes: Shape) -> None:
        assert len(shapes) <= N_TILES
        self._shapes = shapes

    def _n_rows(self, tile: int) -> Any:
        return ir.Constant(i64.ir, self._shapes[tile].rows)

    def config(self) -> bytes:
        """What `ldtilecfg` reads."""
        config = bytearray(CONFIG_BYTES)
        config[0] = _PALETTE
        for t, shape in enumerate(self._shapes):
            config[_ROW_BYTES_AT + 2 * t] = shape.row_bytes  # the upper byte of the two is 0
            config[_ROWS_AT + t] = shape.rows
        return bytes(config)

    def configure(self, b: Emitter, place: Any) -> None:
        """This thread has tiles of these shapes, all zeros; CONFIG_BYTES at `place` are written."""
        if not _emulated(b):
            b.store_to(place, ir.Constant(Vec(i8, CONFIG_BYTES).ir, list(self.config())))
            b.llvm("llvm.x86.ldtilecfg", void.ir, b.pointer(place, i8.ir))

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

        b.repeat(self._n_rows(tile), load_row)

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

        b.repeat(self._n_rows(tile), store_row)

    def product(self, b: Emitter, file: Any, c: int, x: int, y: int) -> None:
        """Tile c = tile x times tile y, of signed bytes."""
        of_c, of_x, of_y = (self._shapes[t] for t in (c, x, y))
        assert of_c == Shape(of_x.rows, of_y.row_bytes), "shapes that the instruction refuses"
        assert of_x.row_bytes == 4 * of_y.rows, "shapes that the instruction refuses"
        assert of_c.row_bytes == ROW_BYTES, "the emulation has whole vectors"
        if not _emulated(b):
            b.llvm("llvm.x86.tilezero", void.ir, _number(c))
            b.llvm("llvm.x86.tdpbssd", void.ir, _number(c), _number(x), _number(y))
            return

        def multiply_row(r: Any) -> None:
            total = b.const(i32x16.ir, 0)
            for j in range(of_y.rows):
                four = bcast4_i8x64(b, b.add(_row(b, file, x, r), ir.Constant(i64.ir, 4 * j)))
                row_of_y = b.load_from(_row(b, file, y, ir.Constant(i64.ir, j)), Vec(i8, 64))
                total = dot4_s8s8(b, total, four, row_of_y)
            b.store_to(_row(b, file, c, r), total)

        b.repeat(self._n_rows(c), multiply_row)


def release(b: Emitter) -> None:
    """This thread has no tiles any more: the system need not save them."""
    if not _emulated(b):
        b.llvm("llvm.x86.tilerelease", void.ir)


def _emulated(b: Emitter) -> bool:
    assert b.isa.has & TILES_BY, f"{b.isa.name} has no tiles"
    return "amx-emulated" in b.isa.has


def _number(tile: int) -> Any:
    return ir.Constant(i8.ir, tile)


def _row(b: Emitter, file: Any, tile: int, r: Any) -> Any:
    """The address of a row in the file."""
    start = b.add(file, ir.Constant(i64.ir, TILE_BYTES * tile))
    return b.add(start, b.mul(r, ir.Constant(i64.ir, ROW_BYTES)))
