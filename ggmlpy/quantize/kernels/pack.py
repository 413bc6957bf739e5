"""Codes of sub-blocks once their scales are integers, and their bits in a block.

Codes in order, a byte each, are in the area LINEAR.
"""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, inline
from ggmlpy.backends.cpu.simd.arith import maximum, minimum, shift_left, shift_right, splat_f32x16
from ggmlpy.backends.cpu.simd.convert import i32_to_i8
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16,
    load_u8x16_as_i32,
    store_i8,
    store_i8x16,
)
from ggmlpy.quantize.kernels.layout import CODES, nearest


@inline
def codes_of(scratch: Int, lane: Int, size: Int, into: Int) -> None:
    """The codes of a search, in order."""
    for i in range(size):
        store_i8(into + i, np.int64(load_f32(scratch + CODES + 64 * i + 4 * lane)))


@inline
def codes_with_min(
    scratch: Int, lane: Int, size: Int, src: Int, d: Int, least: Int, top: Int, into: Int
) -> None:
    """Codes of `size` f32 for x = d * code - least; with d = 0 those of the search."""
    if d == np.float32(0):
        codes_of(scratch, lane, size, into)
    else:
        for i in range(0, size, 16):
            x = load_f32x16(src + 4 * i) + splat_f32x16(least)
            codes = maximum(minimum(nearest(x / splat_f32x16(d)), top), 0)
            store_i8x16(into + i, i32_to_i8(codes))


@inline
def signed_codes(scratch: Int, lane: Int, src: Int, d: Int, top: Int, into: Int) -> None:
    """Codes of 16 f32 for x = d * (code - top); with d = 0 those of the search."""
    if d == np.float32(0):
        codes_of(scratch, lane, 16, into)
    else:
        codes = nearest(load_f32x16(src) / splat_f32x16(d))
        store_i8x16(into, i32_to_i8(maximum(minimum(codes, top - 1), -top) + top))


@inline
def pack_twos(codes: Int, dst: Int) -> None:
    """The low 2 bits of 256 codes, 64 bytes: byte i of 32 has codes i, i + 32, i + 64, i + 96."""
    for i in range(0, 256, 128):
        for j in range(0, 32, 16):
            at = codes + i + j
            low = (load_u8x16_as_i32(at) & 3) | shift_left(load_u8x16_as_i32(at + 32) & 3, 2)
            high = (load_u8x16_as_i32(at + 64) & 3) | shift_left(load_u8x16_as_i32(at + 96) & 3, 2)
            store_i8x16(dst + (i >> 2) + j, i32_to_i8(low | shift_left(high, 4)))


@inline
def pack_bits(codes: Int, shift_3: Int, dst: Int) -> None:
    """One bit of 256 codes, 32 bytes: bit k of byte i is that of code 32 * k + i.

    It is bit 4 of the codes, or bit 2 with `shift_3` = 1.
    """
    for i in range(0, 32, 16):
        bits = _bit(codes + i, shift_3)
        bits = bits | shift_left(_bit(codes + i + 32, shift_3), 1)
        bits = bits | shift_left(_bit(codes + i + 64, shift_3), 2)
        bits = bits | shift_left(_bit(codes + i + 96, shift_3), 3)
        bits = bits | shift_left(_bit(codes + i + 128, shift_3), 4)
        bits = bits | shift_left(_bit(codes + i + 160, shift_3), 5)
        bits = bits | shift_left(_bit(codes + i + 192, shift_3), 6)
        bits = bits | shift_left(_bit(codes + i + 224, shift_3), 7)
        store_i8x16(dst + i, i32_to_i8(bits))


@inline
def _bit(at: Int, shift_3: Int) -> Int:
    codes = load_u8x16_as_i32(at)
    if shift_3 != 0:
        return shift_right(codes, 2) & 1
    return shift_right(codes, 4) & 1


@inline
def pack_nibbles(codes: Int, distance: Int, dst: Int) -> None:
    """The low 4 bits of 2 * distance codes: byte i has codes i and i + distance."""
    for i in range(0, distance, 16):
        low = load_u8x16_as_i32(codes + i) & 15
        high = load_u8x16_as_i32(codes + i + distance) & 15
        store_i8x16(dst + i, i32_to_i8(low | shift_left(high, 4)))


@inline
def pack_sixes(codes: Int, dst: Int) -> None:
    """256 codes of 6 bits: 128 bytes of low nibbles, then 64 of high pairs of bits."""
    for i in range(0, 256, 128):
        for j in range(0, 32, 16):
            at = codes + i + j
            a, b = load_u8x16_as_i32(at), load_u8x16_as_i32(at + 32)
            c, d = load_u8x16_as_i32(at + 64), load_u8x16_as_i32(at + 96)
            low = dst + (i >> 1) + j
            store_i8x16(low, i32_to_i8((a & 15) | shift_left(c & 15, 4)))
            store_i8x16(low + 32, i32_to_i8((b & 15) | shift_left(d & 15, 4)))
            pairs = shift_right(a, 4) | shift_left(shift_right(b, 4), 2)
            pairs = pairs | shift_left(shift_right(c, 4), 4) | shift_left(shift_right(d, 4), 6)
            store_i8x16(dst + 128 + (i >> 2) + j, i32_to_i8(pairs))
