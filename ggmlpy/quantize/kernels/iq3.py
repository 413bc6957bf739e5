"""iq3_xxs and iq3_s: groups of four on a grid of 256 or 512 points."""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, entry, inline
from ggmlpy.backends.cpu.simd.memory import (
    load_i32,
    load_u8,
    store_f16,
    store_f32,
    store_i8,
    store_i32,
)
from ggmlpy.quantize.kernels.grid_search import (
    ALL_IF_ANY_MOVED,
    CODES,
    MOVED,
    SCALES,
    SIGNS,
    flip,
    place_of,
    scale_code,
    search,
    split_signs,
    weigh,
)
from ggmlpy.quantize.kernels.grids import (
    iq3_s_lists,
    iq3_s_map,
    iq3_s_points,
    iq3_xxs_lists,
    iq3_xxs_map,
    iq3_xxs_points,
)
from ggmlpy.quantize.kernels.k_16 import PARAMS
from ggmlpy.quantize.kernels.layout import sum_of_squares


@inline
def _xxs_block(src: Int, dst: Int, importance: Int, scratch: Int) -> None:
    for i in range(98):
        store_i8(dst + i, 0)
    spread = np.float32(2) * sum_of_squares(src, 256) / np.float32(256)
    most_scale = np.float32(0)
    for j in range(8):
        x, weights = src + 128 * j, importance
        if importance != 0:
            weights += 128 * j
        weigh(x, weights, spread, np.float32(0), 32, scratch)
        most = split_signs(x, 1, 32, scratch)
        scale = np.float32(0)
        if most >= np.float32(1e-8):
            scale = search(
                iq3_xxs_points(), iq3_xxs_map(), iq3_xxs_lists(), most, most / np.float32(15),
                np.float32(0.2), 15, MOVED, 32, 4, scratch,
            )  # fmt: skip
            scale = flip(scale, 127, scratch)
            for k in range(8):
                place = place_of(scratch + CODES + 4 * k, 4)
                store_i8(dst + 2 + 8 * j + k, load_i32(iq3_xxs_map() + 4 * place))
            bits = 0
            for k in range(4):
                bits |= load_u8(scratch + SIGNS + k) << (7 * k)
            store_i32(dst + 66 + 4 * j, bits)
            most_scale = max(most_scale, scale)
        store_f32(scratch + SCALES + 4 * j, scale)
    if most_scale == 0:
        for i in range(98):
            store_i8(dst + i, 0)
        return
    d = most_scale / np.float32(31)
    store_f16(dst, d * np.float32(1.0125))
    for j in range(8):
        bits = load_i32(dst + 66 + 4 * j)
        store_i32(dst + 66 + 4 * j, bits | (scale_code(d, j, scratch) << 28))


@inline
def _s_block(src: Int, dst: Int, importance: Int, scratch: Int) -> None:
    for i in range(110):
        store_i8(dst + i, 0)
    spread = np.float32(2) * sum_of_squares(src, 256) / np.float32(256)
    most_scale = np.float32(0)
    for j in range(8):
        x, weights = src + 128 * j, importance
        if importance != 0:
            weights += 128 * j
        weigh(x, weights, spread, np.float32(0), 32, scratch)
        most = split_signs(x, 0, 32, scratch)
        scale = np.float32(0)
        if most != 0:
            scale = search(
                iq3_s_points(), iq3_s_map(), iq3_s_lists(), most, most / np.float32(15),
                np.float32(0.2), 9, ALL_IF_ANY_MOVED, 32, 4, scratch,
            )  # fmt: skip
            scale = flip(scale, 255, scratch)
            high = 0
            for k in range(8):
                point = load_i32(iq3_s_map() + 4 * place_of(scratch + CODES + 4 * k, 4))
                store_i8(dst + 2 + 8 * j + k, point & 255)
                high |= (point >> 8) << k
            store_i8(dst + 66 + j, high)
            for k in range(4):
                store_i8(dst + 74 + 4 * j + k, load_u8(scratch + SIGNS + k))
            most_scale = max(most_scale, scale)
        store_f32(scratch + SCALES + 4 * j, scale)
    if most_scale == 0:
        return
    d = most_scale / np.float32(31)
    store_f16(dst, d * np.float32(1.033))
    for j in range(0, 8, 2):
        low, high = scale_code(d, j, scratch), scale_code(d, j + 1, scratch)
        store_i8(dst + 106 + (j >> 1), low | (high << 4))


@entry(*PARAMS)
def quantize_iq3_xxs(
    src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int
) -> None:
    """Rows of n f32, a multiple of 256; the importance of each column at `importance`, or 0.

    d f16 | points 64 x u8 | signs 4 x 7 bits and a scale of 4 bits, 8 x u32, 98 bytes.
    """
    for _ in range(n_rows):
        for i in range(0, n, 256):
            weights = importance
            if importance != 0:
                weights += 4 * i
            _xxs_block(src + 4 * i, dst, weights, scratch)
            dst += 98
        src += 4 * n


@entry(*PARAMS)
def quantize_iq3_s(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
    """As `quantize_iq3_xxs`.

    d f16 | points 64 x u8 | their high bits 8 x u8 | signs 32 x u8 | scales 4 x u8, 110 bytes.
    """
    for _ in range(n_rows):
        for i in range(0, n, 256):
            weights = importance
            if importance != 0:
                weights += 4 * i
            _s_block(src + 4 * i, dst, weights, scratch)
            dst += 110
        src += 4 * n
