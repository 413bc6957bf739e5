"""A vector to one number, always in the same order: neighbours first, as a tree.

    lanes 0..15 -> 0+8, 1+9, ... 7+15 -> 0+4, ... -> 0+2, 1+3 -> 0+1

LLVM's own floating-point reductions may associate in any order; these do not.
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
    f32x16,
    i32,
    i64,
    intrinsic,
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


def _infer_lane(*args: Type) -> tuple[Type, ...] | None:
    if len(args) != 2 or not isinstance(args[0], Vec) or args[0].elem not in (f32, i32):
        return None
    return (args[0].elem, args[0], i64)


@typed(_infer_lane)
def lane(b: Emitter, x: Any, i: Any) -> Any:
    """Lane `i` of a vector, 0 <= i < lanes."""
    return b.extract_element(x, i)


# --- many sums at once ---------------------------------------------------------------------------
# The sums of 16 vectors by 15 steps of two shuffles and an addition, each sum bit by bit what
# sum_lanes gives: fold4 makes the first two halvings for 4 vectors, fold16 the last two for 16.

_FOUR = [f32x16] * 4


@intrinsic(f32x16, *_FOUR)
def fold4(b: Emitter, x0: Any, x1: Any, x2: Any, x3: Any) -> Any:
    """Lanes 4j .. 4j + 3: lanes i, i + 4, i + 8, i + 12 of vector j summed, for i = 0 .. 3."""
    low, high = (
        b.fadd(b.shuffle(x, y, _runs(0, 8, 16)), b.shuffle(x, y, _runs(8, 8, 16)))
        for x, y in ((x0, x1), (x2, x3))
    )
    return b.fadd(b.shuffle(low, high, _runs(0, 4, 8)), b.shuffle(low, high, _runs(4, 4, 8)))


@intrinsic(f32x16, *_FOUR)
def fold16(b: Emitter, x0: Any, x1: Any, x2: Any, x3: Any) -> Any:
    """Lane 4i + j: the sum of lanes 4j .. 4j + 3 of vector i, each made by fold4."""
    low, high = (
        b.fadd(b.shuffle(x, y, _runs(0, 2, 4)), b.shuffle(x, y, _runs(2, 2, 4)))
        for x, y in ((x0, x1), (x2, x3))
    )
    return b.fadd(b.shuffle(low, high, _runs(0, 1, 2)), b.shuffle(low, high, _runs(1, 1, 2)))


def _runs(start: int, length: int, every: int) -> list[int]:
    """`length` lanes from `start`, from start + every, ...: 16 in all, of two vectors."""
    return [first + i for first in range(start, 32, every) for i in range(length)]
