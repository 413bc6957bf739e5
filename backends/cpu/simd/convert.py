"""Conversions between number formats, exact or rounded to nearest even."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    elementwise,
    f32,
    f32x16,
    f64,
    f64x16,
    i8x16,
    i8x32,
    i8x64,
    i16,
    i32,
    i32x16,
    i64,
    intrinsic,
    mask16,
)

# --- f16 and bf16 as bits: one number or a vector ------------------------------------------------


def _like(type_: Any, element: Any) -> Any:
    """`element` in the shape of `type_`."""
    return ir.VectorType(element, type_.count) if isinstance(type_, ir.VectorType) else element


def from_f16_bits(b: Emitter, bits: Any) -> Any:
    """i16 holding f16 -> f32, exact."""
    floats = _like(bits.type, ir.FloatType())
    if "f16" in b.isa.has:
        return b.fpext(b.bitcast(bits, _like(bits.type, ir.HalfType())), floats)
    # The exponent is rebiased by a product, which is exact and covers denormals too.
    ints = _like(bits.type, ir.IntType(32))
    wide = b.zext(bits, ints)
    sign = b.shl(b.and_(wide, b.const(ints, 0x8000)), b.const(ints, 16))
    magnitude = b.shl(b.and_(wide, b.const(ints, 0x7FFF)), b.const(ints, 13))
    scaled = b.fmul(b.bitcast(magnitude, floats), b.const(floats, 2.0**112))
    special = b.or_(magnitude, b.const(ints, 0x7F800000))  # inf and NaN keep their mantissa
    is_special = b.icmp_unsigned(">=", magnitude, b.const(ints, 0x7C00 << 13))
    return b.bitcast(b.or_(b.select(is_special, special, b.bitcast(scaled, ints)), sign), floats)


def f16_bits(b: Emitter, x: Any) -> Any:
    """f32 -> i16 holding f16, rounded to nearest even."""
    shorts = _like(x.type, ir.IntType(16))
    if "f16" in b.isa.has:
        return b.bitcast(b.fptrunc(x, _like(x.type, ir.HalfType())), shorts)
    ints = _like(x.type, ir.IntType(32))
    bits = b.bitcast(x, ints)
    sign = b.lshr(b.and_(bits, b.const(ints, -0x80000000)), b.const(ints, 16))
    magnitude = b.and_(bits, b.const(ints, 0x7FFFFFFF))
    # Below 2^-14 the result is denormal: adding 0.5 lines its last bit up with f32's, which rounds.
    half = b.const(x.type, 0.5)
    small = b.sub(
        b.bitcast(b.fadd(b.bitcast(magnitude, x.type), half), ints), b.bitcast(half, ints)
    )
    odd = b.and_(b.lshr(magnitude, b.const(ints, 13)), b.const(ints, 1))
    rebias = (15 - 127) * (1 << 23) + 0xFFF
    normal = b.lshr(b.add(b.add(magnitude, b.const(ints, rebias)), odd), b.const(ints, 13))
    is_nan = b.icmp_unsigned(">", magnitude, b.const(ints, 0x7F800000))
    payload = b.or_(b.lshr(magnitude, b.const(ints, 13)), b.const(ints, 0x7E00))
    nan = b.and_(payload, b.const(ints, 0x7FFF))
    large = b.select(is_nan, nan, b.const(ints, 0x7C00))
    is_small = b.icmp_unsigned("<", magnitude, b.const(ints, (127 - 14) << 23))
    is_large = b.icmp_unsigned(">=", magnitude, b.const(ints, (127 + 16) << 23))
    result = b.select(is_large, large, b.select(is_small, small, normal))
    return b.trunc(b.or_(result, sign), shorts)


def from_bf16_bits(b: Emitter, bits: Any) -> Any:
    """i16 holding bf16 -> f32, exact."""
    ints = _like(bits.type, ir.IntType(32))
    wide = b.shl(b.zext(bits, ints), b.const(ints, 16))
    return b.bitcast(wide, _like(bits.type, ir.FloatType()))


def bf16_bits(b: Emitter, x: Any) -> Any:
    """f32 -> i16 holding bf16, rounded to nearest even; NaN stays NaN, quiet."""
    ints = _like(x.type, ir.IntType(32))
    bits = b.bitcast(x, ints)
    odd = b.and_(b.lshr(bits, b.const(ints, 16)), b.const(ints, 1))
    rounded = b.add(b.add(bits, b.const(ints, 0x7FFF)), odd)
    nan = b.or_(bits, b.const(ints, 0x400000))
    chosen = b.select(b.fcmp_unordered("uno", x, x), nan, rounded)
    return b.trunc(b.lshr(chosen, b.const(ints, 16)), _like(x.type, ir.IntType(16)))


@elementwise(f32)
def bf16_part(b: Emitter, x: Any) -> Any:
    """x without the mantissa bits that a bf16 lacks: rounded towards zero. NaN stays NaN."""
    ints = _like(x.type, ir.IntType(32))
    cut = b.and_(b.bitcast(x, ints), b.const(ints, -1 << 16))
    return b.select(b.fcmp_unordered("uno", x, x), x, b.bitcast(cut, x.type))


# --- vectors -------------------------------------------------------------------------------------


@intrinsic(f32x16, i32x16)
def i32_to_f32(b: Emitter, x: Any) -> Any:
    """i32 -> f32, rounded to nearest even."""
    return b.sitofp(x, f32x16.ir)


@intrinsic(i32x16, f32x16)
def f32_to_i32(b: Emitter, x: Any) -> Any:
    """f32 -> i32 towards zero; |x| must be below 2^31."""
    return b.fptosi(x, i32x16.ir)


@intrinsic(f64x16, f32x16)
def f32_to_f64(b: Emitter, x: Any) -> Any:
    """f32 -> f64, exact."""
    return b.fpext(x, f64x16.ir)


@intrinsic(i32x16, f32x16)
def bits_of_f32(b: Emitter, x: Any) -> Any:
    """The bit patterns of 16 f32."""
    return b.bitcast(x, i32x16.ir)


@intrinsic(f32, i32)
def f32_from_bits(b: Emitter, x: Any) -> Any:
    """The f32 with this bit pattern."""
    return b.bitcast(x, f32.ir)


@intrinsic(f64, i64)
def f64_from_bits(b: Emitter, x: Any) -> Any:
    """The f64 with this bit pattern."""
    return b.bitcast(x, f64.ir)


@intrinsic(f32, i16)
def f16_from_bits(b: Emitter, x: Any) -> Any:
    """The f16 with this bit pattern, as f32."""
    return from_f16_bits(b, x)


@intrinsic(i32, f32)
def bits_from_f32(b: Emitter, x: Any) -> Any:
    """The bit pattern of an f32."""
    return b.bitcast(x, i32.ir)


@intrinsic(i8x16, i32x16)
def i32_to_i8(b: Emitter, x: Any) -> Any:
    """The low byte of each lane."""
    return b.trunc(x, i8x16.ir)


@intrinsic(i32x16, i8x16)
def i8_to_i32(b: Emitter, x: Any) -> Any:
    """Signed bytes -> i32."""
    return b.sext(x, i32x16.ir)


@intrinsic(i32x16, i8x16)
def u8_to_i32(b: Emitter, x: Any) -> Any:
    """Unsigned bytes -> i32."""
    return b.zext(x, i32x16.ir)


# --- bytes: bits, tables --------------------------------------------------------------------------


def byte_bits(b: Emitter, x: Any, start: int, n_bits: int, to: int = 0) -> Any:
    """Bits `start` .. start + n_bits - 1 of each byte as bits `to` and up, the others zero."""
    # There is no shift of bytes: shift 16-bit lanes and mask bits of the neighbouring byte.
    words = ir.VectorType(ir.IntType(16), x.type.count // 2)
    moved = b.bitcast(x, words)
    if start > to:
        moved = b.lshr(moved, b.const(words, start - to))
    elif start < to:
        moved = b.shl(moved, b.const(words, to - start))
    return b.and_(b.bitcast(moved, x.type), b.const(x.type, ((1 << n_bits) - 1) << to))


def _lookup(b: Emitter, table: Any, index: Any) -> Any:
    if "avx512" in b.isa.has and index.type.count == 64:
        tables = b.shuffle(table, table, list(range(16)) * 4)
        return b.llvm("llvm.x86.avx512.pshuf.b.512", i8x64.ir, tables, index)
    if "avx2" in b.isa.has:
        if index.type.count == 16:
            return b.llvm("llvm.x86.ssse3.pshuf.b.128", i8x16.ir, table, index)
        tables = b.shuffle(table, table, list(range(16)) * 2)
        halves = (b.lanes(index, start, 32) for start in (0, 32))
        return b.concat(*(b.llvm("llvm.x86.avx2.pshuf.b", i8x32.ir, tables, h) for h in halves))
    # Up the table by the steps between its entries: for constant tables three instructions a step.
    entries = [b.extract_element(table, ir.Constant(i32.ir, i)) for i in range(16)]
    found = b.splat(entries[0], index.type.count)
    for i in range(1, 16):
        step = b.splat(b.sub(entries[i], entries[i - 1]), index.type.count)
        is_past = b.icmp_signed(">", index, b.const(index.type, i - 1))
        found = b.add(found, b.select(is_past, step, b.const(index.type, 0)))
    return found


@intrinsic(i8x16, i8x16, i8x16)
def lookup_i8x16(b: Emitter, table: Any, index: Any) -> Any:
    """table[index[i]] for each i, indices 0 to 15."""
    return _lookup(b, table, index)


@intrinsic(i8x64, i8x16, i8x64)
def lookup_i8x64(b: Emitter, table: Any, index: Any) -> Any:
    """table[index[i]] for each of 64 indices 0 to 15."""
    return _lookup(b, table, index)


# --- masks and bits ------------------------------------------------------------------------------


@intrinsic(i64, mask16)
def bits_of_mask(b: Emitter, mask: Any) -> Any:
    """Bit i is lane i of the mask."""
    return b.zext(b.bitcast(mask, ir.IntType(16)), i64.ir)


@intrinsic(mask16, i64)
def mask_of_bits(b: Emitter, bits: Any) -> Any:
    """Lane i is bit i of the 16 lowest."""
    return b.bitcast(b.trunc(bits, ir.IntType(16)), mask16.ir)
