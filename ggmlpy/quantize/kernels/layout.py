"""Scratch memory of the quantisers, and sub-blocks laid side by side.

A search works on 16 sub-blocks of 16 or 32 elements: vector i of an area holds element i of each.
"""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, inline
from ggmlpy.backends.cpu.simd.arith import maximum, minimum, sqrt, zero_f32x16
from ggmlpy.backends.cpu.simd.convert import bits_from_f32, bits_of_f32, i32_to_f32
from ggmlpy.backends.cpu.simd.gather import gather_f32x16
from ggmlpy.backends.cpu.simd.memory import load_f32, load_f32x16, store_f32, store_f32x16

LANES = 16
_AREA = 4 * LANES * 32
X = 0  # the elements
W = _AREA  # their weights in the error
TRIAL = 2 * _AREA  # codes that are tried
CODES = 3 * _AREA  # the codes with the least error
PADDED_X = 4 * _AREA  # elements in order, then zeros
PADDED_W = 5 * _AREA
LINEAR = 6 * _AREA  # codes in order, a byte each
SCALES = LINEAR + LANES * 32  # f32, one for each sub-block
MINS = SCALES + 4 * LANES
SUM_W = MINS + 4 * LANES
SCALE_CODES = SUM_W + 4 * LANES  # a byte each
MIN_CODES = SCALE_CODES + LANES
BYTES = MIN_CODES + LANES

_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: after adding it, the low bits are the whole number


@inline
def nearest(x: Int) -> Int:
    """16 f32 to the nearest i32, ties to even; beyond 2^22 the low 23 bits, as in ggml."""
    return (bits_of_f32(x + _ROUND) & 0x7FFFFF) - 0x400000


@inline
def nearest_one(x: Int) -> Int:
    """As `nearest`, one f32."""
    return (np.int64(bits_from_f32(x + _ROUND)) & 0x7FFFFF) - 0x400000


@inline
def clamped(codes: Int, low: Int, high: Int) -> Int:
    """16 i32 as f32, within bounds."""
    return i32_to_f32(maximum(minimum(codes, high), low))


@inline
def side_by_side(src: Int, size: Int, area: Int) -> None:
    """16 consecutive sub-blocks of `size` f32 at `src` to an area."""
    for i in range(size):
        store_f32x16(area + 64 * i, gather_f32x16(src + 4 * i, 4 * size))


@inline
def padded(src: Int, n: Int, total: Int, area: Int) -> Int:
    """`src` if it has `total` elements or more, else `area`, with those n and zeros."""
    if n >= total:
        return src
    for i in range(n):
        store_f32(area + 4 * i, load_f32(src + 4 * i))
    for i in range(n, total):
        store_f32(area + 4 * i, np.float32(0))
    return area


@inline
def sum_of_squares(src: Int, n: Int) -> Int:
    """The sum of n squares, f32, from the first to the last."""
    total = np.float32(0)
    for i in range(n):
        x = load_f32(src + 4 * i)
        total += x * x
    return total


@inline
def weigh_by_size(scratch: Int, size: Int) -> None:
    """Weights x^2."""
    for i in range(size):
        x = load_f32x16(scratch + X + 64 * i)
        store_f32x16(scratch + W + 64 * i, x * x)


@inline
def weigh_by_importance(scratch: Int, size: Int, spread: Int) -> None:
    """Weights importance * sqrt(spread + x^2), of the importances in W; `spread` has 16 lanes."""
    for i in range(size):
        x = load_f32x16(scratch + X + 64 * i)
        w = load_f32x16(scratch + W + 64 * i)
        store_f32x16(scratch + W + 64 * i, w * sqrt(spread + x * x))


@inline
def add_up_weights(scratch: Int, size: Int) -> None:
    """The sums of the sub-blocks' weights to SUM_W."""
    total = zero_f32x16()
    for i in range(size):
        total = total + load_f32x16(scratch + W + 64 * i)
    store_f32x16(scratch + SUM_W, total)
