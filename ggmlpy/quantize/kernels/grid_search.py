"""Scales and codes on a grid (the iq2 and iq3 types): one sub-block of 16 or 32 at a time.

Magnitudes lie by fours or eights on a grid of odd numbers 2 level + 1, signs are apart. For each
scale that is tried the elements go to the nearest levels, and groups that are no point of the grid
to that of their neighbours (grids.py) with the least weighted error.
"""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, inline
from ggmlpy.backends.cpu.simd.arith import sqrt
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_i32,
    load_u8,
    load_u16,
    store_f32,
    store_i8,
)
from ggmlpy.quantize.kernels.layout import nearest_one

# Scratch memory, in bytes.
X = 0  # magnitudes of the sub-block, f32
W = 128  # their weights in the error
_ROOT_W = 256  # the weights' roots, by which neighbours are chosen
CODES = 384  # levels, a byte each
_TRIAL = 416
_ON_GRID = 448  # whether a group was on the grid as it was, a byte each
_TRIAL_ON_GRID = 456
SIGNS = 464  # bits of 8 elements each, a byte each
SCALES = 512  # of the superblock's sub-blocks, f32

# Which groups are rounded again by the scale that was found.
MOVED, ALL_IF_ANY_MOVED, ALL = 0, 1, 2


@inline
def place_of(codes: Int, group: Int) -> Int:
    """The place of the levels of a group: 4 of 3 bits, or 8 of 2 bits."""
    place, bits = 0, 3
    if group == 8:
        bits = 2
    for i in range(group):
        place |= load_u8(codes + i) << (bits * i)
    return place


@inline
def _nearest_point(
    place: Int, points: Int, lists: Int, x: Int, w: Int, scale: Int, group: Int
) -> Int:
    """The neighbour of a place (its entry in the map) with the least error."""
    near = lists + 2 * (-1 - place)
    best, least = 0, np.float32(3.4028234663852886e38)
    for j in range(1, load_u16(near) + 1):
        point = load_u16(near + 2 * j)
        error = np.float32(0)
        for i in range(group):
            q = np.float32(2 * load_u8(points + group * point + i) + 1)
            diff = scale * q - load_f32(x + 4 * i)
            error += load_f32(w + 4 * i) * diff * diff
        if error < least:
            best, least = point, error
    return best


@inline
def _to_grid(
    codes: Int, at: Int, points: Int, places: Int, lists: Int, scale: Int, group: Int, scratch: Int
) -> Int:
    """Move the levels of the group at element `at` to the grid. Returns whether they were on it."""
    place = load_i32(places + 4 * place_of(codes + at, group))
    if place >= 0:
        return 1
    x, w = scratch + X + 4 * at, scratch + _ROOT_W + 4 * at
    point = _nearest_point(place, points, lists, x, w, scale, group)
    for i in range(group):
        store_i8(codes + at + i, load_u8(points + group * point + i))
    return 0


@inline
def _round_group(codes: Int, at: Int, inverse: Int, group: Int, scratch: Int) -> None:
    """The nearest levels of a group."""
    top = 7
    if group == 8:
        top = 2
    for i in range(at, at + group):
        x = load_f32(scratch + X + 4 * i)
        level = nearest_one(np.float32(0.5) * (inverse * x - np.float32(1)))
        store_i8(codes + i, max(0, min(top, level)))


@inline
def _products(codes: Int, size: Int, scratch: Int) -> tuple[Int, Int]:
    """(sum w x q, sum w q^2) of the sub-block."""
    sum_xq, sum_q2 = np.float32(0), np.float32(0)
    for i in range(size):
        w = load_f32(scratch + W + 4 * i)
        q = np.float32(2 * load_u8(codes + i) + 1)
        sum_xq += w * load_f32(scratch + X + 4 * i) * q
        sum_q2 += w * q * q
    return sum_xq, sum_q2


@inline
def search(
    points: Int,
    places: Int,
    lists: Int,
    most: Int,
    first_scale: Int,
    step: Int,
    n_tried: Int,
    again: Int,
    size: Int,
    group: Int,
    scratch: Int,
) -> Int:
    """The scale of a sub-block of `size`, whose magnitudes go to `most`, and its levels in CODES.

    `n_tried` scales below and above the one at which `most` has the highest level are tried, `step`
    apart; `first_scale` is what they must improve on. `again` says which groups are rounded again.
    """
    highest = np.float32(15)
    if group == 8:
        highest = np.float32(5)
    best, scale = np.float32(0), first_scale
    for i in range(size):
        store_i8(scratch + CODES + i, 0)
    for k in range(8):
        store_i8(scratch + _ON_GRID + k, int(again == MOVED))
    for n in range(-n_tried, n_tried + 1):
        inverse = (highest + np.float32(n) * step) / most
        tried = np.float32(1) / inverse
        for at in range(0, size, group):
            _round_group(scratch + _TRIAL, at, inverse, group, scratch)
            on_grid = _to_grid(scratch + _TRIAL, at, points, places, lists, tried, group, scratch)
            store_i8(scratch + _TRIAL_ON_GRID + at // group, on_grid)
        sum_xq, sum_q2 = _products(scratch + _TRIAL, size, scratch)
        if sum_q2 > 0 and sum_xq * sum_xq > best * sum_q2:
            scale = sum_xq / sum_q2
            best = scale * sum_xq
            for i in range(size):
                store_i8(scratch + CODES + i, load_u8(scratch + _TRIAL + i))
            for k in range(size // group):
                store_i8(scratch + _ON_GRID + k, load_u8(scratch + _TRIAL_ON_GRID + k))
    n_moved = int(again == ALL)
    for k in range(size // group):
        n_moved += 1 - load_u8(scratch + _ON_GRID + k)
    if n_moved > 0 and scale > 0:
        inverse = np.float32(1) / scale
        for at in range(0, size, group):
            if again != MOVED or load_u8(scratch + _ON_GRID + at // group) == 0:
                _round_group(scratch + CODES, at, inverse, group, scratch)
                _to_grid(scratch + CODES, at, points, places, lists, scale, group, scratch)
        sum_xq, sum_q2 = _products(scratch + CODES, size, scratch)
        if sum_q2 > 0:
            scale = sum_xq / sum_q2
    return scale


@inline
def weigh(x: Int, importance: Int, spread: Int, plain: Int, size: Int, scratch: Int) -> None:
    """Weights of the elements at x: importance * sqrt(spread + x^2), without importances
    plain + x^2."""
    for i in range(size):
        value = load_f32(x + 4 * i)
        weight = plain + value * value
        if importance != 0:
            weight = load_f32(importance + 4 * i) * sqrt(spread + value * value)
        store_f32(scratch + W + 4 * i, weight)
        store_f32(scratch + _ROOT_W + 4 * i, sqrt(weight))


@inline
def split_signs(x: Int, is_even: Int, size: Int, scratch: Int) -> Int:
    """Magnitudes and signs of the elements at x. Returns the largest magnitude.

    With `is_even` an even number of 8 have their sign changed, so that 7 bits tell it: the one that
    matters least gets the wrong sign where the number would be odd.
    """
    for k in range(size // 8):
        signs, n_negative = 0, 0
        for i in range(8):
            value = load_f32(x + 32 * k + 4 * i)
            if not value >= 0:
                value = -value
                signs |= 1 << i
                n_negative += 1
            store_f32(scratch + X + 32 * k + 4 * i, value)
        if is_even != 0 and n_negative & 1:
            least, at = np.float32(0), 0
            for i in range(8):
                value = load_f32(x + 32 * k + 4 * i)
                error = load_f32(scratch + W + 32 * k + 4 * i) * value * value
                if i == 0 or error < least:
                    least, at = error, i
            into = scratch + X + 32 * k + 4 * at
            store_f32(into, -load_f32(into))
            signs ^= 1 << at
        if is_even != 0:
            signs &= 127
        store_i8(scratch + SIGNS + k, signs)
    most = load_f32(scratch + X)
    for i in range(1, size):
        most = max(most, load_f32(scratch + X + 4 * i))
    return most


@inline
def flip(scale: Int, mask: Int, scratch: Int) -> Int:
    """A scale that is not negative: of one that is, all signs change."""
    if scale < 0:
        for k in range(4):
            store_i8(scratch + SIGNS + k, ~load_u8(scratch + SIGNS + k) & mask)
        return -scale
    return scale


@inline
def scale_code(d: Int, j: Int, scratch: Int) -> Int:
    """The scale of sub-block j as 4 bits: d (2 code + 1)."""
    inverse = np.float32(1) / d
    scale = load_f32(scratch + SCALES + 4 * j)
    return max(0, min(15, nearest_one(np.float32(0.5) * (inverse * scale - np.float32(1)))))
