"""q2_K, q3_K and q6_K: superblocks of 256 in 16 sub-blocks of 16, one superblock at a time."""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, entry, inline
from ggmlpy.backends.cpu.simd.arith import absolute, splat_f32x16
from ggmlpy.backends.cpu.simd.core import i64, void
from ggmlpy.backends.cpu.simd.memory import (
    load_f16,
    load_f32,
    load_f32x16,
    load_i8,
    load_u8,
    store_f16,
    store_f32x16,
    store_i8,
)
from ggmlpy.quantize.kernels.layout import (
    LINEAR,
    MIN_CODES,
    MINS,
    SCALE_CODES,
    SCALES,
    SUM_W,
    W,
    X,
    add_up_weights,
    nearest_one,
    side_by_side,
    sum_of_squares,
    weigh_by_importance,
    weigh_by_size,
)
from ggmlpy.quantize.kernels.pack import (
    codes_with_min,
    pack_bits,
    pack_sixes,
    pack_twos,
    signed_codes,
)
from ggmlpy.quantize.kernels.scales import (
    farthest_scale,
    fit_scales,
    fit_signed_scales,
    round_scales,
)
from ggmlpy.quantize.kernels.search import improve_scale, search_scale, search_scale_and_min

PARAMS = (void, i64, i64, i64, i64, i64, i64)  # the result, then the parameters


@inline
def _weigh(src: Int, importance: Int, scratch: Int, factor: Int) -> None:
    """Weights from the importances, with a spread of `factor` times the mean square, and sums."""
    side_by_side(importance, 16, scratch + W)
    spread = np.float32(factor) * sum_of_squares(src, 256) / np.float32(256)
    weigh_by_importance(scratch, 16, splat_f32x16(spread))
    add_up_weights(scratch, 16)


@inline
def _block_q2_K(src: Int, dst: Int, importance: Int, scratch: Int) -> None:
    """scales 16 x u8 | qs 64 x u8 | d f16 | dmin f16, 84 bytes."""
    side_by_side(src, 16, scratch + X)
    if importance != 0:
        _weigh(src, importance, scratch, 1)
        scale, least = search_scale_and_min(
            scratch, 16, 3, np.float32(-0.9), np.float32(0.05), 36, False
        )
        store_f32x16(scratch + SCALES, scale)
        store_f32x16(scratch + MINS, least)
        w = scratch + SUM_W
        store_f16(dst + 80, fit_scales(scratch + SCALES, w, 16, 15, scratch + SCALE_CODES))
        store_f16(dst + 82, fit_scales(scratch + MINS, w, 16, 15, scratch + MIN_CODES))
    else:
        for i in range(16):
            store_f32x16(scratch + W + 64 * i, absolute(load_f32x16(scratch + X + 64 * i)))
        scale, least = search_scale_and_min(
            scratch, 16, 3, np.float32(-0.5), np.float32(0.1), 15, True
        )
        store_f32x16(scratch + SCALES, scale)
        store_f32x16(scratch + MINS, least)
        round_scales(scratch + SCALES, 16, 15, scratch + SCALE_CODES, dst + 80)
        round_scales(scratch + MINS, 16, 15, scratch + MIN_CODES, dst + 82)
    for j in range(16):
        scale_code, min_code = load_u8(scratch + SCALE_CODES + j), load_u8(scratch + MIN_CODES + j)
        store_i8(dst + j, scale_code | (min_code << 4))
        d = load_f16(dst + 80) * np.float32(scale_code)
        m = load_f16(dst + 82) * np.float32(min_code)
        codes_with_min(scratch, j, 16, src + 64 * j, d, m, 3, scratch + LINEAR + 16 * j)
    pack_twos(scratch + LINEAR, dst + 16)


@inline
def _round_q3_scales(scratch: Int, dst: Int) -> None:
    """Codes 0 to 63 for scales, that of the farthest 0, and their scale as f16."""
    far = farthest_scale(scratch + SCALES, 16)
    if far != 0:
        inverse = np.float32(-32) / far
        store_f16(dst, np.float32(1) / inverse)
        for j in range(16):
            code = nearest_one(inverse * load_f32(scratch + SCALES + 4 * j))
            store_i8(scratch + SCALE_CODES + j, max(min(code, 31), -32) + 32)
    else:
        store_f16(dst, np.float32(0))
        for j in range(16):
            store_i8(scratch + SCALE_CODES + j, 0)


@inline
def _pack_q3_scales(codes: Int, dst: Int) -> None:
    """16 codes of 6 bits: 8 bytes of low nibbles, j and j + 8, then 4 of high pairs of bits."""
    for j in range(8):
        low, high = load_u8(codes + j), load_u8(codes + j + 8)
        store_i8(dst + j, (low & 15) | ((high & 15) << 4))
    for j in range(4):
        pairs = (load_u8(codes + j) >> 4) | ((load_u8(codes + j + 4) >> 4) << 2)
        pairs |= ((load_u8(codes + j + 8) >> 4) << 4) | ((load_u8(codes + j + 12) >> 4) << 6)
        store_i8(dst + 8 + j, pairs)


@inline
def _block_q3_K(src: Int, dst: Int, importance: Int, scratch: Int) -> None:
    """hmask 32 x u8 | qs 64 x u8 | scales 12 x u8 | d f16, 110 bytes."""
    side_by_side(src, 16, scratch + X)
    if importance != 0:
        _weigh(src, importance, scratch, 2)
        store_f32x16(scratch + SCALES, search_scale(scratch, 16, 4))
        codes, w = scratch + SCALE_CODES, scratch + SUM_W
        store_f16(dst + 108, fit_signed_scales(scratch + SCALES, w, 16, 32, codes))
    else:
        store_f32x16(scratch + SCALES, improve_scale(scratch, 16, 4))
        _round_q3_scales(scratch, dst + 108)
    for j in range(16):
        d = load_f16(dst + 108) * np.float32(load_u8(scratch + SCALE_CODES + j) - 32)
        signed_codes(scratch, j, src + 64 * j, d, 4, scratch + LINEAR + 16 * j)
    pack_bits(scratch + LINEAR, 1, dst)
    pack_twos(scratch + LINEAR, dst + 32)
    _pack_q3_scales(scratch + SCALE_CODES, dst + 96)


@inline
def _block_q6_K(src: Int, dst: Int, importance: Int, scratch: Int) -> None:
    """ql 128 x u8 | qh 64 x u8 | scales 16 x i8 | d f16, 210 bytes."""
    side_by_side(src, 16, scratch + X)
    if importance != 0:
        side_by_side(importance, 16, scratch + W)
    else:
        weigh_by_size(scratch, 16)
    store_f32x16(scratch + SCALES, search_scale(scratch, 16, 32))
    far = farthest_scale(scratch + SCALES, 16)
    if abs(far) < np.float32(1e-15):
        for i in range(210):
            store_i8(dst + i, 0)
    else:
        inverse = np.float32(-128) / far
        store_f16(dst + 208, np.float32(1) / inverse)
        for j in range(16):
            code = nearest_one(inverse * load_f32(scratch + SCALES + 4 * j))
            store_i8(dst + 192 + j, min(code, 127))
            d = load_f16(dst + 208) * np.float32(load_i8(dst + 192 + j))
            signed_codes(scratch, j, src + 64 * j, d, 32, scratch + LINEAR + 16 * j)
        pack_sixes(scratch + LINEAR, dst)


@entry(*PARAMS)
def quantize_q2_K(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
    """Rows of n f32, a multiple of 256; the importance of each column at `importance`, or 0."""
    for _ in range(n_rows):
        for i in range(0, n, 256):
            weights = importance + 4 * i if importance != 0 else 0
            _block_q2_K(src + 4 * i, dst, weights, scratch)
            dst += 84
        src += 4 * n


@entry(*PARAMS)
def quantize_q3_K(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
    """As `quantize_q2_K`."""
    for _ in range(n_rows):
        for i in range(0, n, 256):
            weights = importance + 4 * i if importance != 0 else 0
            _block_q3_K(src + 4 * i, dst, weights, scratch)
            dst += 110
        src += 4 * n


@entry(*PARAMS)
def quantize_q6_K(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
    """As `quantize_q2_K`."""
    for _ in range(n_rows):
        for i in range(0, n, 256):
            weights = importance + 4 * i if importance != 0 else 0
            _block_q6_K(src + 4 * i, dst, weights, scratch)
            dst += 210
        src += 4 * n
