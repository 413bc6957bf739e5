"""Blocks of 32: q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl; and the superblocks of iq4_xs, 8 of them.

Searches take 16 blocks of a row at a time.
"""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Entry, Inline, Int, entry, inline
from ggmlpy.backends.cpu.kernels.quantize import WRITERS, farthest, iq4_codes
from ggmlpy.backends.cpu.simd.arith import shift_left, splat_f32x16, zero_f32x16
from ggmlpy.backends.cpu.simd.convert import i32_to_i8
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16,
    load_u8,
    load_u16,
    load_u32,
    store_f16,
    store_f32x16,
    store_i8,
    store_i8x16,
    store_i16,
    store_i32,
)
from ggmlpy.quantize.kernels.k_16 import PARAMS
from ggmlpy.quantize.kernels.k_32 import weigh_pair
from ggmlpy.quantize.kernels.layout import (
    LINEAR,
    MINS,
    PADDED_W,
    PADDED_X,
    SCALES,
    W,
    X,
    nearest_one,
    padded,
    side_by_side,
    sum_of_squares,
    weigh_by_importance,
    weigh_by_size,
)
from ggmlpy.quantize.kernels.pack import codes_of, pack_nibbles
from ggmlpy.quantize.kernels.scales import farthest_scale
from ggmlpy.quantize.kernels.search import search_iq4_scale, search_scale, search_scale_and_min


@inline
def _spread(src: Int, n: Int) -> Int:
    """The mean square of a row."""
    return splat_f32x16(sum_of_squares(src, n) / np.float32(n))


@inline
def _top_bits(codes: Int) -> Int:
    """Bit 4 of 32 codes."""
    bits = 0
    for i in range(32):
        bits |= (load_u8(codes + i) >> 4) << i
    return bits


@inline
def _pack_q4_0(codes: Int, scratch: Int, j: Int, dst: Int) -> None:
    store_f16(dst, load_f32(scratch + SCALES + 4 * j))
    pack_nibbles(codes, 16, dst + 2)


@inline
def _pack_q4_1(codes: Int, scratch: Int, j: Int, dst: Int) -> None:
    store_f16(dst, load_f32(scratch + SCALES + 4 * j))
    store_f16(dst + 2, -load_f32(scratch + MINS + 4 * j))
    pack_nibbles(codes, 16, dst + 4)


@inline
def _pack_q5_0(codes: Int, scratch: Int, j: Int, dst: Int) -> None:
    store_f16(dst, load_f32(scratch + SCALES + 4 * j))
    store_i32(dst + 2, _top_bits(codes))
    pack_nibbles(codes, 16, dst + 6)


@inline
def _pack_q5_1(codes: Int, scratch: Int, j: Int, dst: Int) -> None:
    store_f16(dst, load_f32(scratch + SCALES + 4 * j))
    store_f16(dst + 2, -load_f32(scratch + MINS + 4 * j))
    store_i32(dst + 4, _top_bits(codes))
    pack_nibbles(codes, 16, dst + 8)


@inline
def _search_symmetric(scratch: Int, top: Int) -> None:
    store_f32x16(scratch + SCALES, search_scale(scratch, 32, top))


@inline
def _search_affine(scratch: Int, top: Int) -> None:
    scale, least = search_scale_and_min(
        scratch, 32, top, np.float32(-0.9), np.float32(0.05), 36, False
    )
    store_f32x16(scratch + SCALES, scale)
    store_f32x16(scratch + MINS, least)


@inline
def _sign_of_least_zero(src: Int, minimum: Int) -> None:
    """Where the smallest of 32 f32 is zero, the stored `minimum` is the first zero, as in ggml."""
    if load_u16(minimum) & 0x7FFF != 0:
        return
    first = -1
    for i in range(32):
        if load_f32(src + 4 * i) < np.float32(0):
            return
        if first < 0 and load_f32(src + 4 * i) == np.float32(0):
            first = i
    if first >= 0:
        store_i16(minimum, (load_u32(src + 4 * first) >> 31) << 15)


def _declare(name: str, block_bytes: int, top: int, search: Inline, pack: Inline) -> Entry:
    """The quantiser of blocks of 32 with and without importances."""
    write = WRITERS[name]
    symmetric, affine = search is _search_symmetric, search is _search_affine

    @entry(*PARAMS, name=f"quantize_{name}")
    def quantize(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
        for _ in range(n_rows):
            if importance == 0:
                write(src, dst, n)
                for i in range(0, n, 32):
                    if affine:
                        _sign_of_least_zero(src + 4 * i, dst + 2)
                    if symmetric and farthest(src + 4 * i) == np.float32(0):
                        store_i16(dst, 0x8000)  # also where all elements are -0, as in ggml
                    dst += block_bytes
            else:
                spread = _spread(src, n)
                for i in range(0, n, 512):
                    n_left = min(n - i, 512)
                    x = padded(src + 4 * i, n_left, 512, scratch + PADDED_X)
                    side_by_side(x, 32, scratch + X)
                    w = padded(importance + 4 * i, n_left, 512, scratch + PADDED_W)
                    side_by_side(w, 32, scratch + W)
                    weigh_by_importance(scratch, 32, spread)
                    search(scratch, top)
                    for j in range(n_left >> 5):
                        codes_of(scratch, j, 32, scratch + LINEAR)
                        pack(scratch + LINEAR, scratch, j, dst)
                        dst += block_bytes
            src += 4 * n

    return quantize


quantize_q4_0 = _declare("q4_0", 18, 8, _search_symmetric, _pack_q4_0)
quantize_q4_1 = _declare("q4_1", 20, 15, _search_affine, _pack_q4_1)
quantize_q5_0 = _declare("q5_0", 22, 16, _search_symmetric, _pack_q5_0)
quantize_q5_1 = _declare("q5_1", 24, 31, _search_affine, _pack_q5_1)


def _declare_plain(name: str, type_size: int, block_size: int) -> Entry:
    write = WRITERS[name]

    @entry(*PARAMS, name=f"quantize_{name}")
    def quantize(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
        for i in range(n_rows):
            write(src + 4 * n * i, dst + n // block_size * type_size * i, n)

    return quantize


quantize_q8_0 = _declare_plain("q8_0", 34, 32)
quantize_f16 = _declare_plain("f16", 2, 1)
quantize_bf16 = _declare_plain("bf16", 2, 1)


@inline
def _iq4_block(x: Int, inverse: Int, dst: Int) -> None:
    """16 bytes of codes of the values that are nearest to inverse * x, of 32 f32."""
    low = iq4_codes(load_f32x16(x) * splat_f32x16(inverse))
    high = iq4_codes(load_f32x16(x + 64) * splat_f32x16(inverse))
    store_i8x16(dst, i32_to_i8(low | shift_left(high, 4)))


@inline
def _weigh_blocks(importance: Int, scratch: Int) -> None:
    """Weights from the importances, with a spread of twice the block's mean square."""
    side_by_side(importance, 32, scratch + W)
    total = zero_f32x16()
    for i in range(32):
        x = load_f32x16(scratch + X + 64 * i)
        total = total + x * x
    weigh_by_importance(scratch, 32, total * splat_f32x16(np.float32(2) / np.float32(32)))


@inline
def _inverse(d: Int) -> Int:
    return np.float32(0) if d == np.float32(0) else np.float32(1) / d


@entry(*PARAMS)
def quantize_iq4_nl(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
    """Rows of n f32, a multiple of 32. d f16 | qs 16 x u8, 18 bytes."""
    for _ in range(n_rows):
        for i in range(0, n, 512):
            n_left = min(n - i, 512)
            x = padded(src + 4 * i, n_left, 512, scratch + PADDED_X)
            side_by_side(x, 32, scratch + X)
            if importance != 0:
                w = padded(importance + 4 * i, n_left, 512, scratch + PADDED_W)
                _weigh_blocks(w, scratch)
            else:
                weigh_by_size(scratch, 32)
            store_f32x16(scratch + SCALES, search_iq4_scale(scratch, 32))
            for j in range(n_left >> 5):
                d = load_f32(scratch + SCALES + 4 * j)
                store_f16(dst, d)
                _iq4_block(x + 128 * j, _inverse(d), dst + 2)
                dst += 18
        src += 4 * n


@inline
def _iq4_superblock(x: Int, scales: Int, dst: Int) -> None:
    """d f16 | scales_h u16 | scales_l 4 x u8 | qs 128 x u8, 136 bytes."""
    d = -farthest_scale(scales, 8) / np.float32(32)
    store_f16(dst, d)
    inverse = _inverse(d)
    high = 0
    for j in range(8):
        code = max(min(nearest_one(inverse * load_f32(scales + 4 * j)), 31), -32)
        _iq4_block(x + 128 * j, _inverse(d * np.float32(code)), dst + 8 + 16 * j)
        code += 32
        high |= (code >> 4) << (2 * j)
        low = code & 15
        if j & 1 == 1:
            low = (low << 4) | load_u8(dst + 4 + (j >> 1))
        store_i8(dst + 4 + (j >> 1), low)
    store_i16(dst + 2, high)


@entry(*PARAMS)
def quantize_iq4_xs(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
    """Rows of n f32, a multiple of 256."""
    for _ in range(n_rows):
        for i in range(0, n, 512):
            n_left = min(n - i, 512)
            x = padded(src + 4 * i, n_left, 512, scratch + PADDED_X)
            side_by_side(x, 32, scratch + X)
            if importance != 0:
                w = padded(importance + 4 * i, n_left, 512, scratch + PADDED_W)
                weigh_pair(x, w, scratch, 2)
            else:
                weigh_by_size(scratch, 32)
            store_f32x16(scratch + SCALES, search_iq4_scale(scratch, 32))
            for half in range(n_left >> 8):
                _iq4_superblock(x + 1024 * half, scratch + SCALES + 32 * half, dst)
                dst += 136
        src += 4 * n
