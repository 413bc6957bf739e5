"""A tile: a few vectors in one value, so that one loop serves any number of accumulators.

`i` may be a loop variable: loops over a small constant count are unrolled by LLVM, after which
every vector has its own register. Tests look at the machine code for that.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.core import Const, Emitter, Tile, Type, f32x16, i32x16, i64, typed


def _infer_zero_f32(*args: Type | Const) -> Any:
    if len(args) == 1 and isinstance(args[0], Const):
        return (Tile(f32x16, args[0].value), args[0])
    return None


def _infer_zero_i32(*args: Type | Const) -> Any:
    if len(args) == 1 and isinstance(args[0], Const):
        return (Tile(i32x16, args[0].value), args[0])
    return None


@typed(_infer_zero_f32)
def tile_f32x16(b: Emitter, n: Const) -> Any:
    """`n` vectors of f32 zeros; `n` is a constant."""
    return ir.Constant(Tile(f32x16, n.value).ir, None)


@typed(_infer_zero_i32)
def tile_i32x16(b: Emitter, n: Const) -> Any:
    """`n` vectors of i32 zeros; `n` is a constant."""
    return ir.Constant(Tile(i32x16, n.value).ir, None)


def _infer_get(*args: Type) -> tuple[Type, ...] | None:
    if len(args) != 2 or not isinstance(args[0], Tile):
        return None
    return (args[0].elem, args[0], i64)


def _infer_set(*args: Type) -> tuple[Type, ...] | None:
    if len(args) != 3 or not isinstance(args[0], Tile) or args[2] != args[0].elem:
        return None
    return (args[0], args[0], i64, args[0].elem)


def _spill(b: Emitter, tile: Any) -> Any:
    """A stack slot holding the tile, which SROA dissolves once indices are constants."""
    with b.goto_entry_block():
        slot = b.alloca(tile.type)
    b.store(tile, slot)
    return slot


def _element(b: Emitter, slot: Any, i: Any) -> Any:
    return b.gep(slot, [ir.Constant(i64.ir, 0), i], inbounds=True)


@typed(_infer_get)
def tile_get(b: Emitter, tile: Any, i: Any) -> Any:
    """Vector `i` of a tile."""
    return b.load(_element(b, _spill(b, tile), i))


@typed(_infer_set)
def tile_set(b: Emitter, tile: Any, i: Any, value: Any) -> Any:
    """The tile with vector `i` replaced."""
    slot = _spill(b, tile)
    b.store(value, _element(b, slot, i))
    return b.load(slot)
