"""Stored rows to f32: one function per type, `read_*(src, dst, n)` for n elements.

They write n floats and not a byte more, with the arithmetic of ggml's own dequantisation: one
rounding per step, so that results agree with it bit by bit.
"""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.simd.arith import select, shift_right, splat_i32x16, zero_i32x16
from ggmlpy.backends.cpu.simd.convert import i32_to_f32, mask_of_bits
from ggmlpy.backends.cpu.simd.memory import (
    load_bf16x16,
    load_bf16x16_part,
    load_f16,
    load_f16x16,
    load_f16x16_part,
    load_f32x16,
    load_f32x16_part,
    load_i8,
    load_i8x16_as_i32,
    load_u8,
    load_u8x16_as_i32,
    load_u16,
    store_f32x16,
    store_f32x16_part,
)

_F32, _F16 = types.F32, types.F16
_Q4_0, _Q4_1, _Q5_0, _Q5_1, _Q8_0 = types.Q4_0, types.Q4_1, types.Q5_0, types.Q5_1, types.Q8_0


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


@inline
def k_scale(scales: Int, j: Int) -> Int:
    """The 6-bit scale of sub-block j (0 to 7) of q4_K and q5_K, from their 12 bytes of scales."""
    if j < 4:
        return load_u8(scales + j) & 63
    return (load_u8(scales + j + 4) & 15) | ((load_u8(scales + j - 4) >> 6) << 4)


@inline
def k_min(scales: Int, j: Int) -> Int:
    """The 6-bit minimum of sub-block j (0 to 7) of q4_K and q5_K."""
    if j < 4:
        return load_u8(scales + j + 4) & 63
    return (load_u8(scales + j + 4) >> 4) | ((load_u8(scales + j) >> 6) << 4)


@inline
def read_q4_K(src: Int, dst: Int, n: Int) -> None:
    """d f16 | dmin f16 | 12 bytes of scales | qs 128 x u8 -> 256 weights, 144 bytes.

    Sub-block j of 32: d * scale_j * q - dmin * min_j. Bytes 32c .. 32c + 31 hold sub-block 2c in
    their low nibbles, 2c + 1 in the high ones.
    """
    for i in range(0, n, 256):
        d, dmin = load_f16(src), load_f16(src + 2)
        for c in range(4):
            d0 = d * np.float32(k_scale(src + 4, 2 * c))
            m0 = dmin * np.float32(k_min(src + 4, 2 * c))
            d1 = d * np.float32(k_scale(src + 4, 2 * c + 1))
            m1 = dmin * np.float32(k_min(src + 4, 2 * c + 1))
            for half in range(2):
                q = load_u8x16_as_i32(src + 16 + 32 * c + 16 * half)
                at = dst + 4 * (i + 64 * c + 16 * half)
                store_f32x16(at, i32_to_f32(q & 15) * d0 - m0)
                store_f32x16(at + 128, i32_to_f32(shift_right(q, 4)) * d1 - m1)
        src += 144


@inline
def read_q6_K(src: Int, dst: Int, n: Int) -> None:
    """ql 128 x u8 | qh 64 x u8 | scales 16 x i8 | d f16 -> 256 weights, 210 bytes.

    d * scale * (q - 32), a scale for every 16. Each half of 128 weights is four runs of 32: the low
    nibbles of its 64 bytes of ql, then the high ones, with two bits of qh on top for each run.
    """
    for i in range(0, n, 256):
        d = load_f16(src + 208)
        for half in range(2):
            for s in range(2):
                ql = src + 64 * half + 16 * s
                a, b = load_u8x16_as_i32(ql), load_u8x16_as_i32(ql + 32)
                h = load_u8x16_as_i32(src + 128 + 32 * half + 16 * s)
                scales = src + 192 + 8 * half + s
                at = dst + 4 * (i + 128 * half + 16 * s)
                q = (a & 15) + (h & 3) * 16 - 32
                store_f32x16(at, i32_to_f32(q) * (d * np.float32(load_i8(scales))))
                q = (b & 15) + (shift_right(h, 2) & 3) * 16 - 32
                store_f32x16(at + 128, i32_to_f32(q) * (d * np.float32(load_i8(scales + 2))))
                q = shift_right(a, 4) + (shift_right(h, 4) & 3) * 16 - 32
                store_f32x16(at + 256, i32_to_f32(q) * (d * np.float32(load_i8(scales + 4))))
                q = shift_right(b, 4) + shift_right(h, 6) * 16 - 32
                store_f32x16(at + 384, i32_to_f32(q) * (d * np.float32(load_i8(scales + 6))))
        src += 210


READERS: dict[str, Inline] = {
    "f32": read_f32,
    "f16": read_f16,
    "bf16": read_bf16,
    "q8_0": read_q8_0,
    "q4_0": read_q4_0,
    "q4_1": read_q4_1,
    "q5_0": read_q5_0,
    "q5_1": read_q5_1,
    "q4_K": read_q4_K,
    "q6_K": read_q6_K,
}

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")


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
    else:
        read_float(type, src, dst, n)
