"""q4_K and q5_K: superblocks of 256 in 8 sub-blocks of 32, two superblocks at a time."""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, entry, inline
from ggmlpy.backends.cpu.simd.arith import absolute, select, splat_f32x16, sqrt, zero_f32x16
from ggmlpy.backends.cpu.simd.convert import mask_of_bits
from ggmlpy.backends.cpu.simd.memory import (
    load_f16,
    load_f32x16,
    load_u8,
    store_f16,
    store_f32x16,
    store_i8,
)
from ggmlpy.quantize.kernels.k_16 import PARAMS
from ggmlpy.quantize.kernels.layout import (
    LINEAR,
    MIN_CODES,
    MINS,
    PADDED_W,
    PADDED_X,
    SCALE_CODES,
    SCALES,
    SUM_W,
    W,
    X,
    add_up_weights,
    padded,
    side_by_side,
    sum_of_squares,
    weigh_by_importance,
)
from ggmlpy.quantize.kernels.pack import codes_with_min, pack_bits, pack_nibbles
from ggmlpy.quantize.kernels.scales import fit_scales, round_scales
from ggmlpy.quantize.kernels.search import search_scale_and_min


@inline
def _weigh_plain(scratch: Int) -> None:
    """Weights |x| + the root of the mean square of the sub-block."""
    total = zero_f32x16()
    for i in range(32):
        x = load_f32x16(scratch + X + 64 * i)
        total = total + x * x
    root = sqrt(total / splat_f32x16(np.float32(32)))
    for i in range(32):
        size = absolute(load_f32x16(scratch + X + 64 * i))
        store_f32x16(scratch + W + 64 * i, root + size)


@inline
def weigh_pair(src: Int, importance: Int, scratch: Int, factor: Int) -> None:
    """Weights from the importances, with a spread of `factor` times the superblock's mean square;
    and their sums."""
    side_by_side(importance, 32, scratch + W)
    first = np.float32(factor) * sum_of_squares(src, 256) / np.float32(256)
    second = np.float32(factor) * sum_of_squares(src + 1024, 256) / np.float32(256)
    spread = select(mask_of_bits(255), splat_f32x16(first), splat_f32x16(second))
    weigh_by_importance(scratch, 32, spread)
    add_up_weights(scratch, 32)


@inline
def _pack_scales(scales: Int, mins: Int, dst: Int) -> None:
    """8 scales and 8 mins of 6 bits in 12 bytes (`k_scale` in dequantize_k.py reads them)."""
    for j in range(4):
        scale, low = load_u8(scales + j), load_u8(mins + j)
        scale_4, low_4 = load_u8(scales + j + 4), load_u8(mins + j + 4)
        store_i8(dst + j, scale | ((scale_4 >> 4) << 6))
        store_i8(dst + j + 4, low | ((low_4 >> 4) << 6))
        store_i8(dst + j + 8, (scale_4 & 15) | ((low_4 & 15) << 4))


@inline
def finish_scales(src: Int, dst: Int, half: Int, fitted: Int, top: Int, scratch: Int) -> None:
    """d f16 | dmin f16 | scales 12 x u8 of superblock `half` of the pair, and its codes."""
    scales, mins = scratch + SCALES + 32 * half, scratch + MINS + 32 * half
    scale_codes, min_codes = scratch + SCALE_CODES, scratch + MIN_CODES
    if fitted != 0:
        w = scratch + SUM_W + 32 * half
        store_f16(dst, fit_scales(scales, w, 8, 63, scale_codes))
        store_f16(dst + 2, fit_scales(mins, w, 8, 63, min_codes))
    else:
        round_scales(scales, 8, 63, scale_codes, dst)
        round_scales(mins, 8, 63, min_codes, dst + 2)
    _pack_scales(scale_codes, min_codes, dst + 4)
    for j in range(8):
        d = load_f16(dst) * np.float32(load_u8(scale_codes + j))
        m = load_f16(dst + 2) * np.float32(load_u8(min_codes + j))
        into = scratch + LINEAR + 32 * j
        codes_with_min(scratch, 8 * half + j, 32, src + 128 * j, d, m, top, into)


@inline
def _search_pair(
    src: Int, importance: Int, scratch: Int, top: Int, first: Int, n_steps: Int
) -> None:
    side_by_side(src, 32, scratch + X)
    if importance != 0:
        weigh_pair(src, importance, scratch, 2)
        scale, least = search_scale_and_min(
            scratch, 32, top, np.float32(-0.9), np.float32(0.05), 36, False
        )
        store_f32x16(scratch + SCALES, scale)
        store_f32x16(scratch + MINS, least)
    else:
        _weigh_plain(scratch)
        scale, least = search_scale_and_min(
            scratch, 32, top, first, np.float32(0.1), n_steps, False
        )
        store_f32x16(scratch + SCALES, scale)
        store_f32x16(scratch + MINS, least)


@entry(*PARAMS)
def quantize_q4_K(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
    """Rows of n f32, a multiple of 256; the importance of each column at `importance`, or 0.

    d f16 | dmin f16 | scales 12 x u8 | qs 128 x u8, 144 bytes.
    """
    for _ in range(n_rows):
        for i in range(0, n, 512):
            n_left = min(n - i, 512)
            x, w = padded(src + 4 * i, n_left, 512, scratch + PADDED_X), importance
            if importance != 0:
                w = padded(importance + 4 * i, n_left, 512, scratch + PADDED_W)
            _search_pair(x, w, scratch, 15, np.float32(-1), 20)
            for half in range(n_left >> 8):
                finish_scales(x + 1024 * half, dst, half, importance, 15, scratch)
                for j in range(4):
                    pack_nibbles(scratch + LINEAR + 64 * j, 32, dst + 16 + 32 * j)
                dst += 144
        src += 4 * n


@entry(*PARAMS)
def quantize_q5_K(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
    """As `quantize_q4_K`.

    d f16 | dmin f16 | scales 12 x u8 | qh 32 x u8 | qs 128 x u8, 176 bytes.
    """
    for _ in range(n_rows):
        for i in range(0, n, 512):
            n_left = min(n - i, 512)
            x, w = padded(src + 4 * i, n_left, 512, scratch + PADDED_X), importance
            if importance != 0:
                w = padded(importance + 4 * i, n_left, 512, scratch + PADDED_W)
            _search_pair(x, w, scratch, 31, np.float32(-0.5), 15)
            for half in range(n_left >> 8):
                finish_scales(x + 1024 * half, dst, half, importance, 31, scratch)
                pack_bits(scratch + LINEAR, 0, dst + 16)
                for j in range(4):
                    pack_nibbles(scratch + LINEAR + 64 * j, 32, dst + 48 + 32 * j)
                dst += 176
        src += 4 * n
