"""iq1_s and iq1_m: -1, 0 and 1 in groups of eight on a grid of 2048 points, all shifted by 1/8.

The elements of a sub-block are sorted, and all pairs of places are tried that split them into those
that become -1, 0 and 1, for either shift: sums up to each place tell the scale and the error. Then
groups that are no point of the grid go to the neighbour with the least weighted error.
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
    store_i16,
)
from ggmlpy.quantize.kernels.grid_search import place_of
from ggmlpy.quantize.kernels.grids import iq1_lists, iq1_map, iq1_points
from ggmlpy.quantize.kernels.k_16 import PARAMS
from ggmlpy.quantize.kernels.layout import nearest_one, sum_of_squares

# Scratch memory, in bytes.
_W = 0  # weights of the sub-block's elements, f32
_ORDER = 128  # the elements in ascending order, a byte each
_LEVELS = 160  # of the elements, a byte each
_SPLIT = 192  # the places of the best split, and its shifts, a byte each
_SHIFTS = 200  # of the sub-blocks, a byte each
_SCALES = 256  # of the sub-blocks, f32
_SUM_X = 320  # of w x up to each place in the order, f32; iq1_m: of each half, 68 bytes apart
_SUM_W = 512
_HALF = 68

_LEAST_ERROR = np.float32(-3.4028234663852886e38)
_DELTA = np.float32(0.125)
_UP, _DOWN = np.float32(1.125), np.float32(0.875)  # what 1 is, shifted


@inline
def _weigh(x: Int, importance: Int, spread: Int, size: Int, scratch: Int) -> None:
    """Weights importance * sqrt(spread + x^2), without importances x^2."""
    for i in range(size):
        value = load_f32(x + 4 * i)
        weight = value * value
        if importance != 0:
            weight = load_f32(importance + 4 * i) * sqrt(spread + value * value)
        store_f32(scratch + _W + 4 * i, weight)


@inline
def _largest(x: Int, size: Int) -> Int:
    most = abs(load_f32(x))
    for i in range(1, size):
        most = max(most, abs(load_f32(x + 4 * i)))
    return most


@inline
def _sort(x: Int, size: Int, scratch: Int) -> None:
    """The order of the elements; equal ones stay in theirs."""
    for i in range(size):
        value, at = load_f32(x + 4 * i), i
        while at > 0 and load_f32(x + 4 * load_u8(scratch + _ORDER + at - 1)) > value:
            store_i8(scratch + _ORDER + at, load_u8(scratch + _ORDER + at - 1))
            at -= 1
        store_i8(scratch + _ORDER + at, i)


@inline
def _set_levels(first: Int, second: Int, size: Int, scratch: Int) -> None:
    """Level 0 before the first place of the order, 1 before the second, 2 from there on."""
    for at in range(size):
        level = int(at >= first) + int(at >= second)
        store_i8(scratch + _LEVELS + load_u8(scratch + _ORDER + at), level)


@inline
def _reverse_levels(size: Int, scratch: Int) -> None:
    for i in range(size):
        store_i8(scratch + _LEVELS + i, 2 - load_u8(scratch + _LEVELS + i))


@inline
def _value(level: Int, shift: Int) -> Int:
    """What a level is; `shift` is 1 or -1."""
    return np.float32(level - 1) + np.float32(shift) * _DELTA


@inline
def _to_grid(x: Int, at: Int, scale: Int, shift: Int, scratch: Int) -> Int:
    """Move the levels of the group at element `at` to the grid. Returns the point; -1 less it where
    they were not on the grid."""
    place = load_i32(iq1_map() + 4 * place_of(scratch + _LEVELS + at, 8))
    if place >= 0:
        return place
    near = iq1_lists() + 2 * (-1 - place)
    best, least = 0, -_LEAST_ERROR
    for j in range(1, load_u16(near) + 1):
        point = load_u16(near + 2 * j)
        error = np.float32(0)
        for i in range(8):
            level = load_u8(iq1_points() + 8 * point + i)
            diff = scale * _value(level, shift) - load_f32(x + 4 * (at + i))
            error += load_f32(scratch + _W + 4 * (at + i)) * diff * diff
        if error < least:
            best, least = point, error
    return -1 - best


@inline
def _sums_to_places(x: Int, scratch: Int) -> None:
    """The sums of 32 sorted elements up to each place."""
    sum_x, sum_w = np.float32(0), np.float32(0)
    store_f32(scratch + _SUM_X, sum_x)
    store_f32(scratch + _SUM_W, sum_w)
    for at in range(32):
        i = load_u8(scratch + _ORDER + at)
        w = load_f32(scratch + _W + 4 * i)
        sum_x += w * load_f32(x + 4 * i)
        sum_w += w
        store_f32(scratch + _SUM_X + 4 * at + 4, sum_x)
        store_f32(scratch + _SUM_W + 4 * at + 4, sum_w)


@inline
def _sums_of(sums: Int, first: Int, second: Int) -> tuple[Int, Int, Int]:
    """The sums of the three parts of a split."""
    low, middle, all_of = (
        load_f32(sums + 4 * first),
        load_f32(sums + 4 * second),
        load_f32(sums + 128),
    )
    return low, middle - low, all_of - middle


@inline
def _split_32(most: Int, scratch: Int) -> Int:
    """The scale of the best split of 32 elements. _SPLIT has its places and its shift, 0 or 2."""
    best, scale = _LEAST_ERROR, most
    store_i8(scratch + _SPLIT + 2, 1)
    for first in range(33):
        for second in range(first, 33):
            x0, x1, x2 = _sums_of(scratch + _SUM_X, first, second)
            w0, w1, w2 = _sums_of(scratch + _SUM_W, first, second)
            for shift in range(1, -2, -2):
                v0, v1, v2 = _value(0, shift), _value(1, shift), _value(2, shift)
                sum_xq = x0 * v0 + x1 * v1 + x2 * v2
                sum_q2 = w0 * v0 * v0 + w1 * v1 * v1 + w2 * v2 * v2
                if sum_q2 > 0 and sum_xq * sum_xq > best * sum_q2:
                    scale = sum_xq / sum_q2
                    best = scale * sum_xq
                    store_i8(scratch + _SPLIT, first)
                    store_i8(scratch + _SPLIT + 1, second)
                    store_i8(scratch + _SPLIT + 2, shift + 1)
    return scale


@inline
def _s_sub_block(x: Int, dst: Int, j: Int, most: Int, scratch: Int) -> Int:
    """Search a sub-block, and store its points. Returns the scale."""
    _sort(x, 32, scratch)
    _sums_to_places(x, scratch)
    scale = _split_32(most, scratch)
    shift = load_u8(scratch + _SPLIT + 2) - 1
    if shift == 0:
        return np.float32(0)
    _set_levels(load_u8(scratch + _SPLIT), load_u8(scratch + _SPLIT + 1), 32, scratch)
    if scale < 0:
        _reverse_levels(32, scratch)
        scale, shift = -scale, -shift
    high, n_moved = 0, 0
    sum_xq, sum_q2 = np.float32(0), np.float32(0)
    for k in range(4):
        point = _to_grid(x, 8 * k, scale, shift, scratch)
        if point < 0:
            n_moved += 1
            point = -1 - point
        store_i8(dst + 2 + 4 * j + k, point & 255)
        high |= (point >> 8) << (3 * k)
        for i in range(8):
            w = load_f32(scratch + _W + 4 * (8 * k + i))
            q = _value(load_u8(iq1_points() + 8 * point + i), shift)
            sum_xq += w * q * load_f32(x + 4 * (8 * k + i))
            sum_q2 += w * q * q
    if n_moved > 0 and sum_xq > 0 and sum_q2 > 0:
        scale = sum_xq / sum_q2
    store_i16(dst + 34 + 2 * j, high)
    store_i8(scratch + _SHIFTS + j, int(shift < 0))
    return scale


@inline
def _s_block(src: Int, dst: Int, importance: Int, scratch: Int) -> None:
    for i in range(50):
        store_i8(dst + i, 0)
    spread = np.float32(2) * sum_of_squares(src, 256) / np.float32(256)
    most_scale = np.float32(0)
    for j in range(8):
        x = src + 128 * j
        _weigh(x, importance + 128 * j, spread, 32, scratch)
        most = _largest(x, 32)
        store_i8(scratch + _SHIFTS + j, 0)
        scale = np.float32(0)
        if most >= np.float32(1e-12):
            scale = _s_sub_block(x, dst, j, most, scratch)
            most_scale = max(most_scale, scale)
        store_f32(scratch + _SCALES + 4 * j, scale)
    if most_scale == 0:
        return
    d = most_scale / np.float32(15)
    store_f16(dst, d * np.float32(1.125))
    for j in range(8):
        code = _scale_code(d, j, scratch) | (load_u8(scratch + _SHIFTS + j) << 3)
        store_i16(dst + 34 + 2 * j, load_u16(dst + 34 + 2 * j) | (code << 12))


@inline
def _scale_code(d: Int, j: Int, scratch: Int) -> Int:
    """The scale of sub-block j as 3 bits: d (2 code + 1)."""
    inverse = np.float32(1) / d
    scale = load_f32(scratch + _SCALES + 4 * j)
    return max(0, min(7, nearest_one(np.float32(0.5) * (inverse * scale - np.float32(1)))))


@inline
def _sums_of_halves(x: Int, scratch: Int) -> None:
    """The sums of 16 sorted elements up to each place, of each half of the sub-block."""
    for half in range(2):
        sum_x, sum_w = np.float32(0), np.float32(0)
        into = scratch + _HALF * half
        store_f32(into + _SUM_X, sum_x)
        store_f32(into + _SUM_W, sum_w)
        for at in range(16):
            i = load_u8(scratch + _ORDER + at)
            if i >> 3 == half:
                w = load_f32(scratch + _W + 4 * i)
                sum_x += w * load_f32(x + 4 * i)
                sum_w += w
            store_f32(into + _SUM_X + 4 * at + 4, sum_x)
            store_f32(into + _SUM_W + 4 * at + 4, sum_w)


@inline
def _half_sums(half: Int, first: Int, second: Int, scratch: Int) -> tuple[Int, Int, Int, Int]:
    """(sum w x q, sum w q^2) of one half, shifted up, and the same shifted down."""
    x, w = scratch + _SUM_X + _HALF * half, scratch + _SUM_W + _HALF * half
    all_x, all_w = load_f32(x + 64), load_f32(w + 64)
    w1, w2 = load_f32(w + 4 * first), load_f32(w + 4 * second)
    sum_x = load_f32(x + 4 * first) + load_f32(x + 4 * second)
    up = all_w * _UP * _UP + w1 * np.float32(0.75) + w2 * np.float32(-1.25)
    down = all_w * _DOWN * _DOWN + w1 * np.float32(1.25) + w2 * np.float32(-0.75)
    return all_x * _UP - sum_x, up, all_x * _DOWN - sum_x, down


@inline
def _split_16(most: Int, scratch: Int) -> Int:
    """The scale of the best split of 16 elements. _SPLIT has its places, and its shifts: bit 1 is
    set where the first half is shifted down, bit 0 where the second half is; 4: there is none."""
    best, scale = _LEAST_ERROR, most
    store_i8(scratch + _SPLIT + 2, 4)
    for first in range(17):
        for second in range(first, 17):
            up_x0, up_q0, down_x0, down_q0 = _half_sums(0, first, second, scratch)
            up_x1, up_q1, down_x1, down_q1 = _half_sums(1, first, second, scratch)
            for k in range(4):
                sum_xq, sum_q2 = up_x0, up_q0
                if k >= 2:
                    sum_xq, sum_q2 = down_x0, down_q0
                if k & 1:
                    sum_xq, sum_q2 = sum_xq + down_x1, sum_q2 + down_q1
                else:
                    sum_xq, sum_q2 = sum_xq + up_x1, sum_q2 + up_q1
                if sum_q2 > 0 and sum_xq * sum_xq > best * sum_q2:
                    scale = sum_xq / sum_q2
                    best = scale * sum_xq
                    store_i8(scratch + _SPLIT, first)
                    store_i8(scratch + _SPLIT + 1, second)
                    store_i8(scratch + _SPLIT + 2, k)
    return scale


@inline
def _shift_of(shifts: Int, k: Int) -> Int:
    """The shift of half k of a sub-block: 1 or -1."""
    return 1 - 2 * ((shifts >> (1 - k)) & 1)


@inline
def _m_sub_block(x: Int, dst: Int, j: Int, most: Int, scratch: Int) -> Int:
    """Search a sub-block, and store its points. Returns the scale."""
    _sort(x, 16, scratch)
    _sums_of_halves(x, scratch)
    scale = _split_16(most, scratch)
    shifts = load_u8(scratch + _SPLIT + 2)
    if shifts == 4:
        return np.float32(0)
    _set_levels(load_u8(scratch + _SPLIT), load_u8(scratch + _SPLIT + 1), 16, scratch)
    if scale < 0:
        _reverse_levels(16, scratch)
        scale, shifts = -scale, 3 - shifts
    high, n_moved = 0, 0
    sum_xq, sum_q2 = np.float32(0), np.float32(0)
    for k in range(2):
        shift = _shift_of(shifts, k)
        point = _to_grid(x, 8 * k, scale, shift, scratch)
        if point < 0:
            n_moved += 1
            point = -1 - point
        store_i8(dst + 2 * j + k, point & 255)
        high |= (point >> 8) << (4 * k)
        for i in range(8):
            w = load_f32(scratch + _W + 4 * (8 * k + i))
            q = _value(load_u8(iq1_points() + 8 * point + i), shift)
            sum_xq += w * q * load_f32(x + 4 * (8 * k + i))
            sum_q2 += w * q * q
    if n_moved > 0 and sum_xq > 0 and sum_q2 > 0:
        scale = sum_xq / sum_q2
    store_i8(dst + 32 + j, high)
    store_i8(scratch + _SHIFTS + j, shifts)
    return scale


@inline
def _m_block(src: Int, dst: Int, importance: Int, scratch: Int) -> None:
    for i in range(56):
        store_i8(dst + i, 0)
    spread = np.float32(2) * sum_of_squares(src, 256) / np.float32(256)
    most_scale = np.float32(0)
    for j in range(16):
        x, weights = src + 64 * j, importance
        if importance != 0:
            weights += 64 * j
        _weigh(x, weights, spread, 16, scratch)
        most = _largest(x, 16)
        store_i8(scratch + _SHIFTS + j, 0)
        scale = np.float32(0)
        if most >= np.float32(1e-7):
            scale = _m_sub_block(x, dst, j, most, scratch)
            most_scale = max(most_scale, scale)
        store_f32(scratch + _SCALES + 4 * j, scale)
    if most_scale != 0:
        _finish_m(src, dst, importance, spread, most_scale / np.float32(15), scratch)


@inline
def _finish_m(src: Int, dst: Int, importance: Int, spread: Int, d: Int, scratch: Int) -> None:
    """The scales of an iq1_m superblock, and the scale of these, of which each u16 has 4 bits."""
    sum_xq, sum_q2 = np.float32(0), np.float32(0)
    for j in range(16):
        code = _scale_code(d, j, scratch)
        at = dst + 48 + 2 * (j >> 2)
        store_i16(at, load_u16(at) | (code << (3 * (j & 3))))
        shifts, high = load_u8(scratch + _SHIFTS + j), load_u8(dst + 32 + j)
        high |= ((shifts & 1) << 7) | ((shifts >> 1) << 3)
        store_i8(dst + 32 + j, high)
        x, weights = src + 64 * j, importance
        if importance != 0:
            weights += 64 * j
        _weigh(x, weights, spread, 16, scratch)
        for k in range(2):
            point = load_u8(dst + 2 * j + k) | ((high << (8 - 4 * k)) & 0x700)
            for i in range(8):
                w = load_f32(scratch + _W + 4 * (8 * k + i))
                level = load_u8(iq1_points() + 8 * point + i)
                q = _value(level, _shift_of(shifts, k)) * np.float32(2 * code + 1)
                sum_xq += w * q * load_f32(x + 4 * (8 * k + i))
                sum_q2 += w * q * q
    if sum_q2 > 0:
        d = sum_xq / sum_q2
    store_f16(scratch + _SUM_X, d * np.float32(1.1125))
    bits = load_u16(scratch + _SUM_X)
    for k in range(4):
        at = dst + 48 + 2 * k
        store_i16(at, load_u16(at) | (((bits >> (4 * k)) & 15) << 12))


@entry(*PARAMS)
def quantize_iq1_s(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
    """Rows of n f32, a multiple of 256, and the importance of each column.

    d f16 | points 32 x u8 | their high bits, a scale of 3 bits and the shift, 8 x u16, 50 bytes.
    """
    for _ in range(n_rows):
        for i in range(0, n, 256):
            _s_block(src + 4 * i, dst, importance + 4 * i, scratch)
            dst += 50
        src += 4 * n


@entry(*PARAMS)
def quantize_iq1_m(src: Int, dst: Int, n_rows: Int, n: Int, importance: Int, scratch: Int) -> None:
    """As `quantize_iq1_s`; the importances may be 0.

    points 32 x u8 | their high bits and shifts 16 x u8 | scales and theirs 4 x u16, 56 bytes.
    """
    for _ in range(n_rows):
        for i in range(0, n, 256):
            weights = importance
            if importance != 0:
                weights += 4 * i
            _m_block(src + 4 * i, dst, weights, scratch)
            dst += 56
        src += 4 * n
