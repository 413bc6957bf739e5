"""iq2_xxs, iq2_xs and iq2_s: groups of eight on a grid of 256, 512 or 1024 points."""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, entry, inline
from ggmlpy.backends.cpu.simd.memory import (
    load_i32,
    load_u8,
    store_f16,
    store_f32,
    store_i8,
    store_i16,
    store_i32,
)
from ggmlpy.quantize.kernels.grid_search import (
    ALL,
    CODES,
    MOVED,
    SCALES,
    SIGNS,
    W,
    X,
    flip,
    place_of,
    scale_code,
    search,
    split_signs,
    weigh,
)
from ggmlpy.quantize.kernels.grids import (
    iq2_s_lists,
    iq2_s_map,
    iq2_s_points,
    iq2_xs_lists,
    iq2_xs_map,
    iq2_xs_points,
    iq2_xxs_lists,
    iq2_xxs_map,
    iq2_xxs_points,
)
from ggmlpy.quantize.kernels.k_16 import PARAMS
from ggmlpy.quantize.kernels.layout import sum_of_squares
from ggmlpy.quantize.kernels.scales import fit_scales

_LEAST = np.float32(1e-15)


@inline
def _xxs_block(src: Int, dst: Int, importance: Int, scratch: Int) -> None:
    for i in range(66):
        store_i8(dst + i, 0)
    spread = sum_of_squares(src, 256) / np.float32(256)
    most_scale = np.float32(0)
    for j in range(8):
        x = src + 128 * j
        weigh(x, importance + 128 * j, spread, np.float32(0), 32, scratch)
        most = split_signs(x, 1, 32, scratch)
        scale = np.float32(0)
        if most >= _LEAST:
            fitted = fit_scales(scratch + X, scratch + W, 32, 4, scratch + CODES)
            most = fitted * np.float32(3)
            if most > 0:
                scale = search(
                    iq2_xxs_points(), iq2_xxs_map(), iq2_xxs_lists(), most, fitted,
                    np.float32(0.1), 6, ALL, 32, 8, scratch,
                )  # fmt: skip
                scale = flip(scale, 127, scratch)
                bits = 0
                for k in range(4):
                    place = place_of(scratch + CODES + 8 * k, 8)
                    store_i8(dst + 2 + 8 * j + k, load_i32(iq2_xxs_map() + 4 * place))
                    bits |= load_u8(scratch + SIGNS + k) << (7 * k)
                store_i32(dst + 6 + 8 * j, bits)
                most_scale = max(most_scale, scale)
        store_f32(scratch + SCALES + 4 * j, scale)
    if most_scale == 0:
        for i in range(66):
            store_i8(dst + i, 0)
        return
    d = most_scale / np.float32(31)
    store_f16(dst, d)
    for j in range(8):
        bits = load_i32(dst + 6 + 8 * j)
        store_i32(dst + 6 + 8 * j, bits | (scale_code(d, j, scratch) << 28))


@inline
def _store_scales(dst: Int, d: Int, scratch: Int) -> None:
    """The 16 scales of 4 bits."""
    for j in range(0, 16, 2):
        low, high = scale_code(d, j, scratch), scale_code(d, j + 1, scratch)
        store_i8(dst + (j >> 1), low | (high << 4))


@inline
def _xs_block(src: Int, dst: Int, importance: Int, scratch: Int) -> None:
    for i in range(74):
        store_i8(dst + i, 0)
    spread = sum_of_squares(src, 256) / np.float32(256)
    most_scale = np.float32(0)
    for j in range(16):
        x = src + 64 * j
        weigh(x, importance + 64 * j, spread, np.float32(0), 16, scratch)
        most = split_signs(x, 1, 16, scratch)
        scale = np.float32(0)
        if most >= _LEAST:
            scale = search(
                iq2_xs_points(), iq2_xs_map(), iq2_xs_lists(), most, most / np.float32(5),
                np.float32(0.1), 9, MOVED, 16, 8, scratch,
            )  # fmt: skip
            scale = flip(scale, 127, scratch)
            for k in range(2):
                point = load_i32(iq2_xs_map() + 4 * place_of(scratch + CODES + 8 * k, 8))
                signs = load_u8(scratch + SIGNS + k)
                store_i16(dst + 2 + 4 * j + 2 * k, point | (signs << 9))
            most_scale = max(most_scale, scale)
        store_f32(scratch + SCALES + 4 * j, scale)
    if most_scale == 0:
        for i in range(74):
            store_i8(dst + i, 0)
        return
    d = most_scale / np.float32(31)
    store_f16(dst, d)
    _store_scales(dst + 66, d, scratch)


@inline
def _s_block(src: Int, dst: Int, importance: Int, scratch: Int) -> None:
    for i in range(82):
        store_i8(dst + i, 0)
    spread = np.float32(2) * sum_of_squares(src, 256) / np.float32(256)
    most_scale = np.float32(0)
    for j in range(16):
        x, weights = src + 64 * j, importance
        if importance != 0:
            weights += 64 * j
        weigh(x, weights, spread, np.float32(0.25) * spread, 16, scratch)
        most = split_signs(x, 0, 16, scratch)
        scale = np.float32(0)
        if most >= np.float32(1e-8):
            scale = search(
                iq2_s_points(), iq2_s_map(), iq2_s_lists(), most, most / np.float32(5),
                np.float32(0.1), 9, MOVED, 16, 8, scratch,
            )  # fmt: skip
            scale = flip(scale, 255, scratch)
            for k in range(2):
                at = 2 * j + k
                point = load_i32(iq2_s_map() + 4 * place_of(scratch + CODES + 8 * k, 8))
                store_i8(dst + 2 + at, point & 255)
                store_i8(dst + 34 + at, load_u8(scratch + SIGNS + k))
                high = dst + 66 + (at >> 2)
                store_i8(high, load_u8(high) | ((point >> 8) << (2 * (at & 3))))
            most_scale = max(most_scale, scale)
        store_f32(scratch + SCALES + 4 * j, scale)
    if most_scale == 0:
        return
    d = most_scale / np.float32(31)
    store_f16(dst, d * np.float32(0.9875))
    _store_scales(dst + 74, d, scratch)


@entry(*PARAMS)
def quantize_iq2_xxs(
    src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int
) -> None:
    """Rows of n f32, a multiple of 256, and the importance of each column.

    d f16 | 8 x (points 4 x u8 | signs 4 x 7 bits and a scale of 4 bits, u32), 66 bytes.
    """
    for _ in range(n_rows):
        for i in range(0, n, 256):
            _xxs_block(src + 4 * i, dst, importance + 4 * i, scratch)
            dst += 66
        src += 4 * n


@entry(*PARAMS)
def quantize_iq2_xs(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
    """As `quantize_iq2_xxs`.

    d f16 | points of 9 bits and signs of 7 bits, 32 x u16 | scales 8 x u8, 74 bytes.
    """
    for _ in range(n_rows):
        for i in range(0, n, 256):
            _xs_block(src + 4 * i, dst, importance + 4 * i, scratch)
            dst += 74
        src += 4 * n


@entry(*PARAMS)
def quantize_iq2_s(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
    """As `quantize_iq2_xxs`; the importances may be 0.

    d f16 | points 32 x u8 | signs 32 x u8 | points' high bits 8 x u8 | scales 8 x u8, 82 bytes.
    """
    for _ in range(n_rows):
        for i in range(0, n, 256):
            weights = importance
            if importance != 0:
                weights += 4 * i
            _s_block(src + 4 * i, dst, weights, scratch)
            dst += 82
        src += 4 * n
