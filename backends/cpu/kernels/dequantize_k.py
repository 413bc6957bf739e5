"""Stored rows of superblocks, 256 weights each, to f32; and the table of all readers.

As in dequantize.py: `read_*(src, dst, n)`, with ggml's own roundings.
"""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.kernels import dequantize, dequantize_iq
from ggmlpy.backends.cpu.kernels.dequantize import iq4_values, write_coded
from ggmlpy.backends.cpu.simd.arith import less, select, shift_right, splat_i32x16
from ggmlpy.backends.cpu.simd.convert import i32_to_f32
from ggmlpy.backends.cpu.simd.memory import (
    load_f16,
    load_i8,
    load_u8,
    load_u8x16_as_i32,
    load_u16,
    store_f32x16,
)


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
def read_q2_K(src: Int, dst: Int, n: Int) -> None:
    """scales 16 x u8 | qs 64 x u8 | d f16 | dmin f16 -> 256 weights, 84 bytes.

    Run j of 16: d * (scale_j & 15) * q - dmin * (scale_j >> 4). Each 32 bytes of qs are 8 runs:
    the two lowest bits of their halves, then the next two, and so on.
    """
    for i in range(0, n, 256):
        d, dmin = load_f16(src + 80), load_f16(src + 82)
        for half in range(2):
            for s in range(2):
                q = load_u8x16_as_i32(src + 16 + 32 * half + 16 * s)
                at = dst + 4 * (i + 128 * half + 16 * s)
                for j in range(4):
                    scale = load_u8(src + 8 * half + 2 * j + s)
                    dl, m = d * np.float32(scale & 15), dmin * np.float32(scale >> 4)
                    store_f32x16(at + 128 * j, i32_to_f32(q & 3) * dl - m)
                    q = shift_right(q, 2)
        src += 84


@inline
def read_q3_K(src: Int, dst: Int, n: Int) -> None:
    """hmask 32 x u8 | qs 64 x u8 | scales 12 bytes | d f16 -> 256 weights, 110 bytes.

    Run j of 16: d * (scale_j - 32) * q. Low bits lie as in q2_K; bit 4 * half + j of hmask is the
    third, and q is 4 less where it is not set. Scales have 6 bits: nibbles of the first 8 bytes,
    below pairs of bits of the last 4.
    """
    for i in range(0, n, 256):
        d = load_f16(src + 108)
        for half in range(2):
            for s in range(2):
                q = load_u8x16_as_i32(src + 32 + 32 * half + 16 * s)
                h = load_u8x16_as_i32(src + 16 * s)
                at = dst + 4 * (i + 128 * half + 16 * s)
                for j in range(4):
                    run = 8 * half + 2 * j + s
                    low = load_u8(src + 96 + (run & 7)) >> (4 * half) & 15
                    high = load_u8(src + 104 + (run & 3)) >> (2 * (run >> 2)) & 3
                    dl = d * np.float32((low | high << 4) - 32)
                    third = less(0, h & splat_i32x16(1 << (4 * half + j)))
                    value = (q & 3) - select(third, splat_i32x16(0), 4)
                    store_f32x16(at + 128 * j, i32_to_f32(value) * dl)
                    q = shift_right(q, 2)
        src += 110


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
def read_q5_K(src: Int, dst: Int, n: Int) -> None:
    """d f16 | dmin f16 | 12 bytes of scales | qh 32 x u8 | qs 128 x u8 -> 256 weights, 176 bytes.

    As q4_K, with bit j of qh on top of the nibbles of sub-block j.
    """
    for i in range(0, n, 256):
        d, dmin = load_f16(src), load_f16(src + 2)
        for j in range(8):
            dl = d * np.float32(k_scale(src + 4, j))
            m = dmin * np.float32(k_min(src + 4, j))
            for half in range(2):
                q = load_u8x16_as_i32(src + 48 + 32 * (j >> 1) + 16 * half)
                if j & 1 != 0:
                    q = shift_right(q, 4)
                h = load_u8x16_as_i32(src + 16 + 16 * half) & splat_i32x16(1 << j)
                q = (q & 15) + select(less(0, h), splat_i32x16(16), 0)
                store_f32x16(dst + 4 * (i + 32 * j + 16 * half), i32_to_f32(q) * dl - m)
        src += 176


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


@inline
def read_iq4_xs(src: Int, dst: Int, n: Int) -> None:
    """d f16 | scales_h u16 | scales_l 4 x u8 | qs 128 x u8 -> 256 weights, 136 bytes.

    Sub-block j of 32: d * (scale_j - 32) * value of a code, as in iq4_nl; scale_j is nibble j of
    scales_l below bits 2j and 2j + 1 of scales_h.
    """
    for i in range(0, n, 256):
        d = load_f16(src)
        for j in range(8):
            low = load_u8(src + 4 + (j >> 1)) >> (4 * (j & 1)) & 15
            high = load_u16(src + 2) >> (2 * j) & 3
            dl = d * np.float32((low | high << 4) - 32)
            write_coded(dst + 4 * (i + 32 * j), src + 8 + 16 * j, iq4_values(), dl)
        src += 136


READERS: dict[str, Inline] = {
    "f32": dequantize.read_f32,
    "f16": dequantize.read_f16,
    "bf16": dequantize.read_bf16,
    "q8_0": dequantize.read_q8_0,
    "q4_0": dequantize.read_q4_0,
    "q4_1": dequantize.read_q4_1,
    "q5_0": dequantize.read_q5_0,
    "q5_1": dequantize.read_q5_1,
    "iq4_nl": dequantize.read_iq4_nl,
    "mxfp4": dequantize.read_mxfp4,
    "q2_K": read_q2_K,
    "q3_K": read_q3_K,
    "q4_K": read_q4_K,
    "q5_K": read_q5_K,
    "q6_K": read_q6_K,
    "iq4_xs": read_iq4_xs,
    **dequantize_iq.READERS,
}
