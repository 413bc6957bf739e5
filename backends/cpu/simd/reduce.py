"""A vector to one number, always in the same order: neighbours first, as a tree.

    lanes 0..15 -> 0+8, 1+9, ... 7+15 -> 0+4, ... -> 0+2, 1+3 -> 0+1

LLVM's own floating reductions may associate as the target likes; these may not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.arith import maximum, minimum
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Type,
    Vec,
    f32,
    i1,
    i32,
    i64,
    intrinsic,
    mask16,
    typed,
)


def _tree(b: Emitter, x: Any, combine: Callable[[Any, Any], Any]) -> Any:
    n = x.type.count
    while n > 1:
        n //= 2
        x = combine(b.lanes(x, 0, n), b.lanes(x, n, n))
    return b.extract_element(x, ir.Constant(ir.IntType(32), 0))


def _infer(*args: Type) -> tuple[Type, ...] | None:
    if len(args) != 1 or not isinstance(args[0], Vec) or args[0].elem not in (f32, i32):
        return None
    return (args[0].elem, args[0])


@typed(_infer)
def sum_lanes(b: Emitter, x: Any) -> Any:
    """The sum of the lanes; i32 wraps."""
    is_int = isinstance(x.type.element, ir.IntType)
    return _tree(b, x, b.add if is_int else b.fadd)


@typed(_infer)
def max_lanes(b: Emitter, x: Any) -> Any:
    """The largest lane, of numbers without NaN."""
    return _tree(b, x, lambda a, c: maximum(b, a, c))


@typed(_infer)
def min_lanes(b: Emitter, x: Any) -> Any:
    """The smallest lane, of numbers without NaN."""
    return _tree(b, x, lambda a, c: minimum(b, a, c))


@intrinsic(i1, mask16)
def any_lane(b: Emitter, mask: Any) -> Any:
    """Whether any lane of a mask is set."""
    bits = b.bitcast(mask, ir.IntType(16))
    return b.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(16), 0))


def _infer_lane(*args: Type) -> tuple[Type, ...] | None:
    if len(args) != 2 or not isinstance(args[0], Vec) or args[0].elem not in (f32, i32):
        return None
    return (args[0].elem, args[0], i64)


@typed(_infer_lane)
def lane(b: Emitter, x: Any, i: Any) -> Any:
    """Lane `i` of a vector, 0 <= i < lanes."""
    return b.extract_element(x, i)
