"""iq3_xxs and iq3_s: magnitudes by fours on a grid, signs apart; one sub-block of 32 at a time.

The scale is searched for: for each that is tried the elements go to the nearest levels, and groups
that are no point of the grid to that of their neighbours with the least weighted error.
"""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, entry, inline
from ggmlpy.backends.cpu.simd.arith import sqrt
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_i32,
    load_u8,
    load_u16,
    store_f16,
    store_f32,
    store_i8,
    store_i32,
)
from ggmlpy.quantize.kernels.grids import (
    s_lists,
    s_map,
    s_points,
    xxs_lists,
    xxs_map,
    xxs_points,
)
from ggmlpy.quantize.kernels.k_16 import PARAMS
from ggmlpy.quantize.kernels.layout import nearest_one, sum_of_squares

# Scratch memory, in bytes.
_X = 0  # magnitudes of the sub-block, f32
_W = 128  # their weights in the error
_ROOT_W = 256  # the weights' roots: those of a group's error
_CODES = 384  # levels, a byte each
_TRIAL = 416
_ON_GRID = 448  # whether a group was on the grid as it was, a byte each
_TRIAL_ON_GRID = 456
_SIGNS = 464  # bits of 8 elements each, a byte each
_SCALES = 512  # of the superblock's sub-blocks, f32


@inline
def _level(inverse: Int, x: Int) -> Int:
    level = nearest_one(np.float32(0.5) * (inverse * x - np.float32(1)))
    return max(0, min(7, level))


@inline
def _place(codes: Int) -> Int:
    """The place of four levels."""
    first = load_u8(codes) | (load_u8(codes + 1) << 3)
    return first | (load_u8(codes + 2) << 6) | (load_u8(codes + 3) << 9)


@inline
def _nearest_point(place: Int, points: Int, lists: Int, x: Int, w: Int, scale: Int) -> Int:
    """The neighbour of a place (its entry in the map) with the least error for four elements."""
    near = lists + 2 * (-1 - place)
    best, least = 0, np.float32(3.4028234663852886e38)
    for j in range(1, load_u16(near) + 1):
        point = load_u16(near + 2 * j)
        error = np.float32(0)
        for i in range(4):
            diff = scale * np.float32(load_u8(points + 4 * point + i)) - load_f32(x + 4 * i)
            error += load_f32(w + 4 * i) * diff * diff
        if error < least:
            best, least = point, error
    return best


@inline
def _to_grid(
    codes: Int, group: Int, points: Int, places: Int, lists: Int, scale: Int, scratch: Int
) -> Int:
    """Move the levels of a group to the grid. Returns whether they were on it."""
    place = load_i32(places + 4 * _place(codes + 4 * group))
    if place >= 0:
        return 1
    x, w = scratch + _X + 16 * group, scratch + _ROOT_W + 16 * group
    point = _nearest_point(place, points, lists, x, w, scale)
    for i in range(4):
        store_i8(codes + 4 * group + i, (load_u8(points + 4 * point + i) - 1) >> 1)
    return 0


@inline
def _round_group(codes: Int, group: Int, inverse: Int, scratch: Int) -> None:
    """The nearest levels of a group."""
    for i in range(4 * group, 4 * group + 4):
        store_i8(codes + i, _level(inverse, load_f32(scratch + _X + 4 * i)))


@inline
def _products(codes: Int, scratch: Int) -> tuple[Int, Int]:
    """(sum w x q, sum w q^2) of the sub-block."""
    sum_xq, sum_q2 = np.float32(0), np.float32(0)
    for i in range(32):
        w = load_f32(scratch + _W + 4 * i)
        q = np.float32(2 * load_u8(codes + i) + 1)
        sum_xq += w * load_f32(scratch + _X + 4 * i) * q
        sum_q2 += w * q * q
    return sum_xq, sum_q2


@inline
def _search(
    points: Int, places: Int, lists: Int, most: Int, n_tried: Int, refits_all: Int, scratch: Int
) -> Int:
    """The scale of the sub-block, whose largest magnitude is `most`, and its levels in _CODES.

    `refits_all`: once any group was moved to the grid, all are rounded again by the scale found.
    """
    best = np.float32(0)
    scale = most / np.float32(15)
    for i in range(32):
        store_i8(scratch + _CODES + i, 0)
    for k in range(8):
        store_i8(scratch + _ON_GRID + k, 1 - refits_all)
    for step in range(-n_tried, n_tried + 1):
        inverse = (np.float32(15) + np.float32(step) * np.float32(0.2)) / most
        for k in range(8):
            _round_group(scratch + _TRIAL, k, inverse, scratch)
            on_grid = _to_grid(
                scratch + _TRIAL, k, points, places, lists, np.float32(1) / inverse, scratch
            )
            store_i8(scratch + _TRIAL_ON_GRID + k, on_grid)
        sum_xq, sum_q2 = _products(scratch + _TRIAL, scratch)
        if sum_q2 > 0 and sum_xq * sum_xq > best * sum_q2:
            scale = sum_xq / sum_q2
            best = scale * sum_xq
            for i in range(32):
                store_i8(scratch + _CODES + i, load_u8(scratch + _TRIAL + i))
            for k in range(8):
                store_i8(scratch + _ON_GRID + k, load_u8(scratch + _TRIAL_ON_GRID + k))
    n_moved = 0
    for k in range(8):
        n_moved += 1 - load_u8(scratch + _ON_GRID + k)
    if n_moved > 0 and scale > 0:
        for k in range(8):
            if refits_all != 0 or load_u8(scratch + _ON_GRID + k) == 0:
                _round_group(scratch + _CODES, k, np.float32(1) / scale, scratch)
                _to_grid(scratch + _CODES, k, points, places, lists, scale, scratch)
        sum_xq, sum_q2 = _products(scratch + _CODES, scratch)
        if sum_q2 > 0:
            scale = sum_xq / sum_q2
    return scale


@inline
def _weigh(x: Int, importance: Int, spread: Int, scratch: Int) -> None:
    """Weights of the 32 elements at x: x^2, or with importances these times sqrt(spread + x^2)."""
    for i in range(32):
        value = load_f32(x + 4 * i)
        weight = value * value
        if importance != 0:
            weight = load_f32(importance + 4 * i) * sqrt(spread + weight)
        store_f32(scratch + _W + 4 * i, weight)
        store_f32(scratch + _ROOT_W + 4 * i, sqrt(weight))


@inline
def _split_signs(x: Int, is_even: Int, scratch: Int) -> Int:
    """Magnitudes and signs of the 32 elements at x. Returns the largest magnitude.

    With `is_even` an even number of 8 have their sign changed: the one that matters least gets
    the wrong sign, where there would be an odd one.
    """
    for k in range(4):
        signs, n_negative = 0, 0
        for i in range(8):
            value = load_f32(x + 32 * k + 4 * i)
            if not value >= 0:
                value = -value
                signs |= 1 << i
                n_negative += 1
            store_f32(scratch + _X + 32 * k + 4 * i, value)
        if is_even != 0 and n_negative & 1:
            least, at = np.float32(0), 0
            for i in range(8):
                value = load_f32(x + 32 * k + 4 * i)
                size = load_f32(scratch + _W + 32 * k + 4 * i) * value * value
                if i == 0 or size < least:
                    least, at = size, i
            into = scratch + _X + 32 * k + 4 * at
            store_f32(into, -load_f32(into))
            signs ^= 1 << at
        if is_even != 0:
            signs &= 127
        store_i8(scratch + _SIGNS + k, signs)
    most = load_f32(scratch + _X)
    for i in range(1, 32):
        most = max(most, load_f32(scratch + _X + 4 * i))
    return most


@inline
def _flip(scale: Int, mask: Int, scratch: Int) -> Int:
    """A scale that is not negative: of one that is, all signs change."""
    if scale < 0:
        for k in range(4):
            store_i8(scratch + _SIGNS + k, ~load_u8(scratch + _SIGNS + k) & mask)
        return -scale
    return scale


@inline
def _scale_code(inverse: Int, scale: Int) -> Int:
    """4 bits."""
    return max(0, min(15, nearest_one(np.float32(0.5) * (inverse * scale - np.float32(1)))))


@inline
def _xxs_block(src: Int, dst: Int, importance: Int, scratch: Int) -> None:
    for i in range(0, 96, 4):
        store_i32(dst + 2 + i, 0)
    spread = np.float32(2) * sum_of_squares(src, 256) / np.float32(256)
    most_scale = np.float32(0)
    for j in range(8):
        x, weights = src + 128 * j, importance
        if importance != 0:
            weights += 128 * j
        _weigh(x, weights, spread, scratch)
        most = _split_signs(x, 1, scratch)
        scale = np.float32(0)
        if most >= np.float32(1e-8):
            scale = _search(xxs_points(), xxs_map(), xxs_lists(), most, 15, 0, scratch)
            scale = _flip(scale, 127, scratch)
            for k in range(8):
                place = _place(scratch + _CODES + 4 * k)
                store_i8(dst + 2 + 8 * j + k, load_i32(xxs_map() + 4 * place))
            bits = 0
            for k in range(4):
                bits |= load_u8(scratch + _SIGNS + k) << (7 * k)
            store_i32(dst + 66 + 4 * j, bits)
            most_scale = max(most_scale, scale)
        store_f32(scratch + _SCALES + 4 * j, scale)
    if most_scale == 0:
        store_f16(dst, np.float32(0))
        for i in range(0, 96, 4):
            store_i32(dst + 2 + i, 0)
        return
    d = most_scale / np.float32(31)
    store_f16(dst, d * np.float32(1.0125))
    for j in range(8):
        code = _scale_code(np.float32(1) / d, load_f32(scratch + _SCALES + 4 * j))
        store_i32(dst + 66 + 4 * j, load_i32(dst + 66 + 4 * j) | (code << 28))


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
        _weigh(x, weights, spread, scratch)
        most = _split_signs(x, 0, scratch)
        scale = np.float32(0)
        if most != 0:
            scale = _search(s_points(), s_map(), s_lists(), most, 9, 1, scratch)
            scale = _flip(scale, 255, scratch)
            high = 0
            for k in range(8):
                point = load_i32(s_map() + 4 * _place(scratch + _CODES + 4 * k))
                store_i8(dst + 2 + 8 * j + k, point & 255)
                high |= (point >> 8) << k
            store_i8(dst + 66 + j, high)
            for k in range(4):
                store_i8(dst + 74 + 4 * j + k, load_u8(scratch + _SIGNS + k))
            most_scale = max(most_scale, scale)
        store_f32(scratch + _SCALES + 4 * j, scale)
    if most_scale == 0:
        return
    d = most_scale / np.float32(31)
    store_f16(dst, d * np.float32(1.033))
    for j in range(0, 8, 2):
        low = _scale_code(np.float32(1) / d, load_f32(scratch + _SCALES + 4 * j))
        high = _scale_code(np.float32(1) / d, load_f32(scratch + _SCALES + 4 * j + 4))
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
