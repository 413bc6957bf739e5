"""A tile: a few vectors in one value. Its width decides which code a function like `add_dots`
(dots.py) becomes, unrolled, so that every vector has a register of its own."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.core import Const, Emitter, Tile, Type, f32x16, typed


def _infer_zeros(*args: Type | Const) -> Any:
    if len(args) == 1 and isinstance(args[0], Const):
        return (Tile(f32x16, args[0].value), args[0])
    return None


@typed(_infer_zeros)
def tile_f32x16(b: Emitter, n: Const) -> Any:
    """`n` vectors of f32 zeros; `n` is a constant."""
    return ir.Constant(Tile(f32x16, n.value).ir, None)
