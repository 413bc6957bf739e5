"""Arithmetic, comparison and bits, lane by lane. Numbers are broadcast to all lanes of a vector.

The operators + - * / & | ^ on vectors call the corresponding functions here.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.core import (
    Const,
    Emitter,
    Type,
    Vec,
    elementwise,
    f32,
    f32x16,
    f64,
    i1,
    i8,
    i16,
    i32,
    i32x16,
    i64,
    int_like,
    intrinsic,
    mask16,
    suffix,
    typed,
)

_NUMBERS = (f32, i8, i16, i32)
_INTEGERS = (i1, i8, i16, i32)


def _is_float(value: Any) -> bool:
    type_ = value.type
    element = type_.element if isinstance(type_, ir.VectorType) else type_
    return not isinstance(element, ir.IntType)


@intrinsic(i64, i64, i64)
def quotient(b: Emitter, n: Any, d: Any) -> Any:
    """n // d of integers n >= 0, d > 0, without the handling of signs that Python's // needs."""
    return b.udiv(n, d)


@intrinsic(i64, i64, i64)
def remainder(b: Emitter, n: Any, d: Any) -> Any:
    """n % d of integers n >= 0, d > 0."""
    return b.urem(n, d)


@intrinsic(f32x16, f32)
def splat_f32x16(b: Emitter, x: Any) -> Any:
    """A number in all 16 lanes."""
    return b.splat(x, 16)


@intrinsic(i32x16, i64)
def splat_i32x16(b: Emitter, x: Any) -> Any:
    """An integer in all 16 lanes."""
    return b.splat(b.trunc(x, i32.ir), 16)


@intrinsic(f32x16)
def zero_f32x16(b: Emitter) -> Any:
    """16 zeros."""
    return b.const(f32x16.ir, 0.0)


@intrinsic(i32x16)
def zero_i32x16(b: Emitter) -> Any:
    """16 zeros."""
    return b.const(i32x16.ir, 0)


@intrinsic(i32x16)
def iota_i32x16(b: Emitter) -> Any:
    """0, 1, ... 15."""
    return ir.Constant(i32x16.ir, list(range(16)))


@elementwise(*_NUMBERS, f64)
def add(b: Emitter, x: Any, y: Any) -> Any:
    """x + y."""
    return b.fadd(x, y) if _is_float(x) else b.add(x, y)


@elementwise(*_NUMBERS)
def sub(b: Emitter, x: Any, y: Any) -> Any:
    """x - y."""
    return b.fsub(x, y) if _is_float(x) else b.sub(x, y)


@elementwise(f32, f64, i16, i32)
def mul(b: Emitter, x: Any, y: Any) -> Any:
    """x * y."""
    return b.fmul(x, y) if _is_float(x) else b.mul(x, y)


@elementwise(f32, f64)
def div(b: Emitter, x: Any, y: Any) -> Any:
    """x / y, correctly rounded."""
    return b.fdiv(x, y)


@elementwise(f32, scalars=True)
def fma(b: Emitter, x: Any, y: Any, z: Any) -> Any:
    """x * y + z: rounded once where the instruction set has it, else twice."""
    if "fma" in b.isa.has:
        return b.llvm(f"llvm.fma.{suffix(x.type)}", x.type, x, y, z)
    return b.fadd(b.fmul(x, y), z)


@elementwise(f32, scalars=True)
def sqrt(b: Emitter, x: Any) -> Any:
    """The square root, correctly rounded."""
    return b.llvm(f"llvm.sqrt.{suffix(x.type)}", x.type, x)


@elementwise(f32, i32, scalars=True)
def maximum(b: Emitter, x: Any, y: Any) -> Any:
    """x if x > y else y; hence y where either is NaN."""
    greater = b.fcmp_ordered(">", x, y) if _is_float(x) else b.icmp_signed(">", x, y)
    return b.select(greater, x, y)


@elementwise(f32, i32, scalars=True)
def minimum(b: Emitter, x: Any, y: Any) -> Any:
    """x if x < y else y; hence y where either is NaN."""
    less_ = b.fcmp_ordered("<", x, y) if _is_float(x) else b.icmp_signed("<", x, y)
    return b.select(less_, x, y)


@elementwise(f32, i8, i32, scalars=True)
def absolute(b: Emitter, x: Any) -> Any:
    """|x|; the sign bit is cleared, NaN included."""
    if _is_float(x):
        return b.llvm(f"llvm.fabs.{suffix(x.type)}", x.type, x)
    return b.select(b.icmp_signed("<", x, b.const(x.type, 0)), b.neg(x), x)


@elementwise(f32, scalars=True)
def copy_sign(b: Emitter, magnitude: Any, sign: Any) -> Any:
    """The magnitude of one with the sign bit of the other."""
    ints = int_like(magnitude.type)
    kept = b.and_(b.bitcast(magnitude, ints), b.const(ints, 0x7FFFFFFF))
    taken = b.and_(b.bitcast(sign, ints), b.const(ints, -0x80000000))
    return b.bitcast(b.or_(kept, taken), magnitude.type)


@elementwise(f32, scalars=True)
def round_even(b: Emitter, x: Any) -> Any:
    """The nearest whole number, ties to even, for |x| < 2^22."""
    shift = b.const(x.type, 12582912.0)  # 1.5 * 2^23: adding it rounds the fraction away
    return b.fsub(b.fadd(x, shift), shift)


@elementwise(f32, i32, result=i1, scalars=True)
def less(b: Emitter, x: Any, y: Any) -> Any:
    """x < y as a mask; false where either is NaN."""
    return b.fcmp_ordered("<", x, y) if _is_float(x) else b.icmp_signed("<", x, y)


@elementwise(f32, i32, result=i1, scalars=True)
def equal(b: Emitter, x: Any, y: Any) -> Any:
    """x == y as a mask; false where either is NaN."""
    return b.fcmp_ordered("==", x, y) if _is_float(x) else b.icmp_signed("==", x, y)


@elementwise(f32, result=i1, scalars=True)
def is_nan(b: Emitter, x: Any) -> Any:
    """A mask of the NaNs."""
    return b.fcmp_unordered("uno", x, x)


def _infer_select(*args: Type) -> tuple[Type, ...] | None:
    vectors = [arg for arg in args[1:] if isinstance(arg, Vec)]
    if len(args) != 3 or args[0] != mask16 or not vectors or vectors[0].n != mask16.n:
        return None
    if any(vector != vectors[0] for vector in vectors):
        return None
    choices = [arg if isinstance(arg, Vec) else vectors[0].elem for arg in args[1:]]
    return (vectors[0], mask16, *choices)


@typed(_infer_select)
def select(b: Emitter, mask: Any, x: Any, y: Any) -> Any:
    """x where the mask is set, y elsewhere."""
    like = x.type if isinstance(x.type, ir.VectorType) else y.type
    return b.select(mask, b.spread(x, like), b.spread(y, like))


@elementwise(*_INTEGERS)
def bit_and(b: Emitter, x: Any, y: Any) -> Any:
    """x & y."""
    return b.and_(x, y)


@elementwise(*_INTEGERS)
def bit_or(b: Emitter, x: Any, y: Any) -> Any:
    """x | y."""
    return b.or_(x, y)


@elementwise(*_INTEGERS)
def bit_xor(b: Emitter, x: Any, y: Any) -> Any:
    """x ^ y."""
    return b.xor(x, y)


def _infer_shift(*args: Type | Const) -> tuple[Type, ...] | None:
    if len(args) != 2 or not isinstance(args[0], Vec) or not isinstance(args[1], Const):
        return None
    return (args[0], args[0], args[1]) if args[0].elem in _INTEGERS else None  # type: ignore[return-value]


@typed(_infer_shift)
def shift_left(b: Emitter, x: Any, n: Const) -> Any:
    """Each lane shifted left by a constant."""
    return b.shl(x, b.const(x.type, n.value))


@typed(_infer_shift)
def shift_right(b: Emitter, x: Any, n: Const) -> Any:
    """Each lane shifted right by a constant, zeros from the left."""
    return b.lshr(x, b.const(x.type, n.value))


# --- lanes --------------------------------------------------------------------------------------


@intrinsic(i64, i64)
def lowest_bit(b: Emitter, bits: Any) -> Any:
    """The number of the lowest bit that is set; 64 for 0."""
    return b.llvm("llvm.cttz.i64", i64.ir, bits, ir.Constant(i1.ir, 0))


@intrinsic(f32x16, f32x16, f32x16)
def interleave_low(b: Emitter, x: Any, y: Any) -> Any:
    """x0, y0, x1, y1, ... x7, y7."""
    return b.shuffle(x, y, [i // 2 + 16 * (i % 2) for i in range(16)])


@intrinsic(f32x16, f32x16, f32x16)
def interleave_high(b: Emitter, x: Any, y: Any) -> Any:
    """x8, y8, x9, y9, ... x15, y15."""
    return b.shuffle(x, y, [8 + i // 2 + 16 * (i % 2) for i in range(16)])


@intrinsic(f32x16, f32x16)
def swap_neighbours(b: Emitter, x: Any) -> Any:
    """x1, x0, x3, x2, ... x15, x14."""
    return b.shuffle(x, x, [i ^ 1 for i in range(16)])
