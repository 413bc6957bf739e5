"""Stored rows to f32: one function per type, `read_*(src, dst, n)` for n elements.

Plain types and blocks of 32 here, superblocks of 256 in dequantize_k.py; READERS has all of them.

The functions write n floats and no byte past them, with the arithmetic of ggml's dequantisation:
one rounding per step, so that results have the same bits.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.kernel import Int, inline
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.simd.arith import select, shift_right, splat_i32x16, zero_i32x16
from ggmlpy.backends.cpu.simd.convert import (
    f32_from_bits,
    i8_to_i32,
    i32_to_f32,
    lookup_i8x16,
    mask_of_bits,
)
from ggmlpy.backends.cpu.simd.core import Emitter, i8x16, intrinsic
from ggmlpy.backends.cpu.simd.memory import (
    load_bf16x16,
    load_bf16x16_part,
    load_f16,
    load_f16x16,
    load_f16x16_part,
    load_f32x16,
    load_f32x16_part,
    load_i8x16,
    load_i8x16_as_i32,
    load_u8,
    load_u8x16_as_i32,
    load_u16,
    store_f32x16,
    store_f32x16_part,
)

_F32, _F16 = types.F32, types.F16
_Q4_0, _Q4_1, _Q5_0, _Q5_1, _Q8_0 = types.Q4_0, types.Q4_1, types.Q5_0, types.Q5_1, types.Q8_0
_IQ4_NL = types.IQ4_NL


@inline
def read_f32(src: Int, dst: Int, n: Int) -> None:
    """f32: a copy."""
    whole = n & -16
    for i in range(0, whole, 16):
        store_f32x16(dst + 4 * i, load_f32x16(src + 4 * i))
    if n > whole:
        store_f32x16_part(dst + 4 * whole, load_f32x16_part(src + 4 * whole, n - whole), n - whole)


@inline
def read_f16(src: Int, dst: Int, n: Int) -> None:
    """f16, exact."""
    whole = n & -16
    for i in range(0, whole, 16):
        store_f32x16(dst + 4 * i, load_f16x16(src + 2 * i))
    if n > whole:
        store_f32x16_part(dst + 4 * whole, load_f16x16_part(src + 2 * whole, n - whole), n - whole)


@inline
def read_bf16(src: Int, dst: Int, n: Int) -> None:
    """bf16, exact."""
    whole = n & -16
    for i in range(0, whole, 16):
        store_f32x16(dst + 4 * i, load_bf16x16(src + 2 * i))
    if n > whole:
        store_f32x16_part(dst + 4 * whole, load_bf16x16_part(src + 2 * whole, n - whole), n - whole)


@inline
def read_q8_0(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qs 32 x i8 -> 32 weights d * q, 34 bytes."""
    for i in range(0, n, 32):
        d = load_f16(src)
        store_f32x16(dst + 4 * i, i32_to_f32(load_i8x16_as_i32(src + 2)) * d)
        store_f32x16(dst + 4 * i + 64, i32_to_f32(load_i8x16_as_i32(src + 18)) * d)
        src += 34


@inline
def read_q4_0(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qs 16 x u8 -> 32 weights d * (q - 8), low nibbles first, 18 bytes."""
    for i in range(0, n, 32):
        d = load_f16(src)
        q = load_u8x16_as_i32(src + 2)
        store_f32x16(dst + 4 * i, i32_to_f32((q & 15) - 8) * d)
        store_f32x16(dst + 4 * i + 64, i32_to_f32(shift_right(q, 4) - 8) * d)
        src += 18


@inline
def read_q4_1(src: Int, dst: Int, n: Int) -> None:
    """d f16 | m f16 | qs 16 x u8 -> 32 weights d * q + m, low nibbles first, 20 bytes."""
    for i in range(0, n, 32):
        d, m = load_f16(src), load_f16(src + 2)
        q = load_u8x16_as_i32(src + 4)
        store_f32x16(dst + 4 * i, i32_to_f32(q & 15) * d + m)
        store_f32x16(dst + 4 * i + 64, i32_to_f32(shift_right(q, 4)) * d + m)
        src += 20


@inline
def read_q5_0(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qh u32 | qs 16 x u8 -> 32 weights d * (q - 16), bit i of qh on top of the nibble of
    weight i, 22 bytes."""
    for i in range(0, n, 32):
        d = load_f16(src)
        q = load_u8x16_as_i32(src + 6)
        low = (q & 15) - select(mask_of_bits(load_u16(src + 2)), zero_i32x16(), 16)
        high = shift_right(q, 4) - select(mask_of_bits(load_u16(src + 4)), zero_i32x16(), 16)
        store_f32x16(dst + 4 * i, i32_to_f32(low) * d)
        store_f32x16(dst + 4 * i + 64, i32_to_f32(high) * d)
        src += 22


@inline
def read_q5_1(src: Int, dst: Int, n: Int) -> None:
    """d f16 | m f16 | qh u32 | qs 16 x u8 -> 32 weights d * q + m, 24 bytes."""
    for i in range(0, n, 32):
        d, m = load_f16(src), load_f16(src + 2)
        q = load_u8x16_as_i32(src + 8)
        low = (q & 15) + select(mask_of_bits(load_u16(src + 4)), splat_i32x16(16), 0)
        high = shift_right(q, 4) + select(mask_of_bits(load_u16(src + 6)), splat_i32x16(16), 0)
        store_f32x16(dst + 4 * i, i32_to_f32(low) * d + m)
        store_f32x16(dst + 4 * i + 64, i32_to_f32(high) * d + m)
        src += 24


@intrinsic(i8x16)
def iq4_values(b: Emitter) -> Any:
    """The values of the codes of iq4_nl and iq4_xs."""
    codes = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
    return ir.Constant(i8x16.ir, codes)


@intrinsic(i8x16)
def mxfp4_values(b: Emitter) -> Any:
    """Twice the values of the codes of mxfp4: sign, two bits of exponent, one of mantissa."""
    return ir.Constant(i8x16.ir, (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12))


@inline
def write_coded(dst: Int, src: Int, table: Any, d: Any) -> None:
    """32 weights d * table[code] from 16 bytes of codes, low nibbles first."""
    codes = load_i8x16(src)
    low = lookup_i8x16(table, codes & 15)
    high = lookup_i8x16(table, shift_right(codes, 4))
    store_f32x16(dst, i32_to_f32(i8_to_i32(low)) * d)
    store_f32x16(dst + 64, i32_to_f32(i8_to_i32(high)) * d)


@inline
def read_iq4_nl(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qs 16 x u8 -> 32 weights d * value of a code of 4 bits, 18 bytes."""
    for i in range(0, n, 32):
        write_coded(dst + 4 * i, src + 2, iq4_values(), load_f16(src))
        src += 18


@inline
def read_mxfp4(src: Int, dst: Int, n: Int) -> None:
    """e u8 | qs 16 x u8 -> 32 weights 2^(e - 128) * twice the value of a code, 17 bytes."""
    for i in range(0, n, 32):
        e = load_u8(src)
        bits = 0x00200000 << e if e < 2 else (e - 1) << 23  # 2^-128 and 2^-127 are denormal
        write_coded(dst + 4 * i, src + 1, mxfp4_values(), f32_from_bits(bits))
        src += 17


CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")


@inline
def read_float(type: Int, src: Int, dst: Int, n: Int) -> None:
    """A row of f16, f32 or bf16, by the number of its type."""
    if type == _F16:
        read_f16(src, dst, n)
    elif type == _F32:
        read_f32(src, dst, n)
    else:
        read_bf16(src, dst, n)


@inline
def read_any(type: Int, src: Int, dst: Int, n: Int) -> None:
    """A row of any of CACHE_TYPES, by the number of its type."""
    if type == _Q8_0:
        read_q8_0(src, dst, n)
    elif type == _Q4_0:
        read_q4_0(src, dst, n)
    elif type == _Q4_1:
        read_q4_1(src, dst, n)
    elif type == _Q5_0:
        read_q5_0(src, dst, n)
    elif type == _Q5_1:
        read_q5_1(src, dst, n)
    elif type == _IQ4_NL:
        read_iq4_nl(src, dst, n)
    else:
        read_float(type, src, dst, n)
