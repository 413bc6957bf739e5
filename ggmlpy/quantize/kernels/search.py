"""Scales and codes of 16 sub-blocks at a time, with the least weighted error of those tried.

Elements and weights are in the areas X and W (layout.py). Codes go to CODES as f32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, inline
from ggmlpy.backends.cpu.kernels.dequantize import iq4_values
from ggmlpy.backends.cpu.kernels.quantize import iq4_codes
from ggmlpy.backends.cpu.simd.arith import (
    absolute,
    equal,
    less,
    select,
    splat_f32x16,
    zero_f32x16,
)
from ggmlpy.backends.cpu.simd.convert import i8_to_i32, i32_to_f32, i32_to_i8, lookup_i8x16
from ggmlpy.backends.cpu.simd.memory import load_f32x16, store_f32x16
from ggmlpy.quantize.kernels.layout import CODES, TRIAL, W, X, clamped, nearest

_LEAST = np.float32(1e-15)  # sub-blocks of smaller magnitudes are zeros


@inline
def _bounds(scratch: Int, size: Int) -> Any:
    """(min, max) of each sub-block."""
    low = load_f32x16(scratch + X)
    high = low
    for i in range(1, size):
        x = load_f32x16(scratch + X + 64 * i)
        low = select(less(x, low), x, low)
        high = select(less(high, x), x, high)
    return low, high


@inline
def _farthest(scratch: Int, size: Int) -> Any:
    """(magnitude, element): of each sub-block, the first element of the largest magnitude."""
    size_of, farthest = zero_f32x16(), zero_f32x16()
    for i in range(size):
        x = load_f32x16(scratch + X + 64 * i)
        farther = less(size_of, absolute(x))
        size_of = select(farther, absolute(x), size_of)
        farthest = select(farther, x, farthest)
    return size_of, farthest


@inline
def _error(scratch: Int, size: Int, scale: Int, least: Int, by_magnitude: Int) -> Int:
    """The weighted error of the codes in TRIAL."""
    error = zero_f32x16()
    for i in range(size):
        code = load_f32x16(scratch + TRIAL + 64 * i)
        diff = scale * code + least - load_f32x16(scratch + X + 64 * i)
        far = absolute(diff) if by_magnitude else diff * diff
        error = error + load_f32x16(scratch + W + 64 * i) * far
    return error


@inline
def search_scale_and_min(
    scratch: Int, size: Int, top: Int, first: Int, step: Int, n_steps: Int, by_magnitude: Int
) -> Any:
    """(scale, min), min >= 0, for x = scale * code - min with codes 0 to `top`.

    Tries `n_steps` + 1 times: codes for the range divided into top + first + step * i parts, then
    the scale and min that suit these codes best. The error is weighted squares, or magnitudes.
    """
    low, high = _bounds(scratch, size)
    sum_w, sum_x = zero_f32x16(), zero_f32x16()
    for i in range(size):
        w = load_f32x16(scratch + W + 64 * i)
        sum_w = sum_w + w
        sum_x = sum_x + w * load_f32x16(scratch + X + 64 * i)
    low = select(less(zero_f32x16(), low), zero_f32x16(), low)
    one = splat_f32x16(np.float32(1))
    is_flat = equal(low, high)
    inverse = splat_f32x16(np.float32(top)) / (high - low)
    scale = one / inverse
    least = low
    _set_codes(scratch + TRIAL, scratch, size, inverse, least, top)
    error = _error(scratch, size, scale, least, by_magnitude)
    best_inverse, best_from = inverse, least
    for i in range(n_steps + 1):
        parts = first + step * np.float32(i) + np.float32(top)
        inverse = splat_f32x16(parts) / (high - least)
        _set_codes(scratch + TRIAL, scratch, size, inverse, least, top)
        sum_l, sum_l2, sum_xl = zero_f32x16(), zero_f32x16(), zero_f32x16()
        for j in range(size):
            code = load_f32x16(scratch + TRIAL + 64 * j)
            wl = load_f32x16(scratch + W + 64 * j) * code
            sum_l = sum_l + wl
            sum_l2 = sum_l2 + wl * code
            sum_xl = sum_xl + wl * load_f32x16(scratch + X + 64 * j)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_least = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        above = less(zero_f32x16(), new_least)
        new_scale = select(above, sum_xl / sum_l2, new_scale)
        new_least = select(above, zero_f32x16(), new_least)
        new_error = _error(scratch, size, new_scale, new_least, by_magnitude)
        solvable = less(zero_f32x16(), determinant)
        better = less(select(solvable, new_error, splat_f32x16(np.float32(np.inf))), error)
        error = select(better, new_error, error)
        best_inverse = select(better, inverse, best_inverse)
        best_from = select(better, least, best_from)
        scale = select(better, new_scale, scale)
        least = select(better, new_least, least)
    _set_codes(scratch + CODES, scratch, size, best_inverse, best_from, top)
    for i in range(size):
        code = load_f32x16(scratch + CODES + 64 * i)
        store_f32x16(scratch + CODES + 64 * i, select(is_flat, zero_f32x16(), code))
    return (
        select(is_flat, zero_f32x16(), scale),
        select(is_flat, low, least) * np.float32(-1),
    )


@inline
def _set_codes(into: Int, scratch: Int, size: Int, inverse: Int, least: Int, top: Int) -> None:
    for i in range(size):
        x = load_f32x16(scratch + X + 64 * i)
        store_f32x16(into + 64 * i, clamped(nearest(inverse * (x - least)), 0, top))


@inline
def _products(scratch: Int, size: Int, inverse: Int, top: Int) -> Any:
    """(sum w x l, sum w l^2) for codes l = nearest(inverse * x) from -top to top - 1."""
    sum_xl, sum_l2 = zero_f32x16(), zero_f32x16()
    for i in range(size):
        x, w = load_f32x16(scratch + X + 64 * i), load_f32x16(scratch + W + 64 * i)
        code = clamped(nearest(inverse * x), -top, top - 1)
        sum_xl = sum_xl + w * x * code
        sum_l2 = sum_l2 + w * code * code
    return sum_xl, sum_l2


@inline
def search_scale(scratch: Int, size: Int, top: Int) -> Int:
    """The scale for x = scale * (code - top) with codes 0 to 2 * top - 1.

    Tries 19 inverse scales about that which makes the farthest x code 0.
    """
    magnitude, far = _farthest(scratch, size)
    is_zero = less(magnitude, splat_f32x16(_LEAST))
    best_inverse = splat_f32x16(np.float32(-top)) / far
    sum_xl, sum_l2 = _products(scratch, size, best_inverse, top)
    scale = select(equal(sum_l2, zero_f32x16()), zero_f32x16(), sum_xl / sum_l2)
    best = scale * sum_xl
    for i in range(19):
        if i != 9:
            parts = np.float32(top) + np.float32(0.1) * np.float32(i - 9)
            inverse = splat_f32x16(-parts) / far
            sum_xl, sum_l2 = _products(scratch, size, inverse, top)
            gain = select(less(zero_f32x16(), sum_l2), sum_xl * sum_xl, -np.inf)
            better = less(best * sum_l2, gain)
            best_inverse = select(better, inverse, best_inverse)
            scale = select(better, sum_xl / sum_l2, scale)
            best = select(better, scale * sum_xl, best)
    for i in range(size):
        code = clamped(nearest(best_inverse * load_f32x16(scratch + X + 64 * i)), -top, top - 1)
        code = select(is_zero, zero_f32x16(), code + np.float32(top))
        store_f32x16(scratch + CODES + 64 * i, code)
    return select(is_zero, zero_f32x16(), scale)


@inline
def improve_scale(scratch: Int, size: Int, top: Int) -> Int:
    """As `search_scale`, with weights x^2: one code after another is changed if that helps."""
    magnitude, far = _farthest(scratch, size)
    is_zero = less(magnitude, splat_f32x16(_LEAST))
    inverse = splat_f32x16(np.float32(-top)) / far
    sum_xl, sum_l2 = zero_f32x16(), zero_f32x16()
    for i in range(size):
        x = load_f32x16(scratch + X + 64 * i)
        code = clamped(nearest(inverse * x), -top, top - 1)
        store_f32x16(scratch + CODES + 64 * i, code)
        sum_xl = sum_xl + x * x * x * code
        sum_l2 = sum_l2 + x * x * code * code
    for _ in range(5):
        for i in range(size):
            x = load_f32x16(scratch + X + 64 * i)
            code = load_f32x16(scratch + CODES + 64 * i)
            w = x * x
            xl = sum_xl - w * x * code
            l2 = sum_l2 - w * code * code
            new = clamped(nearest(x * l2 / xl), -top, top - 1)
            new = select(less(zero_f32x16(), xl), new, code)
            new_xl = xl + w * x * new
            new_l2 = l2 + w * new * new
            gain = select(less(zero_f32x16(), new_l2), new_xl * new_xl * sum_l2, -np.inf)
            gain = select(equal(new, code), splat_f32x16(np.float32(-np.inf)), gain)
            better = less(sum_xl * sum_xl * new_l2, gain)
            store_f32x16(scratch + CODES + 64 * i, select(better, new, code))
            sum_xl = select(better, new_xl, sum_xl)
            sum_l2 = select(better, new_l2, sum_l2)
    for i in range(size):
        code = load_f32x16(scratch + CODES + 64 * i) + np.float32(top)
        store_f32x16(scratch + CODES + 64 * i, select(is_zero, zero_f32x16(), code))
    known = select(less(zero_f32x16(), sum_l2), sum_xl / sum_l2, zero_f32x16())
    return select(is_zero, zero_f32x16(), known)


@inline
def iq4_products(scratch: Int, size: Int, inverse: Int) -> Any:
    """(sum w q x, sum w q^2) for the values q of iq4_nl that are nearest to inverse * x."""
    sum_qx, sum_q2 = zero_f32x16(), zero_f32x16()
    for i in range(size):
        x, w = load_f32x16(scratch + X + 64 * i), load_f32x16(scratch + W + 64 * i)
        codes = i32_to_i8(iq4_codes(inverse * x))
        q = i32_to_f32(i8_to_i32(lookup_i8x16(iq4_values(), codes)))
        sum_qx = sum_qx + w * q * x
        sum_q2 = sum_q2 + w * q * q
    return sum_qx, sum_q2


@inline
def search_iq4_scale(scratch: Int, size: Int) -> Int:
    """The scale d for x = d * value, of 16 tried: the farthest x is given each of -134 to -120."""
    magnitude, far = _farthest(scratch, size)
    is_zero = less(magnitude, splat_f32x16(_LEAST))
    inverse = splat_f32x16(np.float32(1)) / ((zero_f32x16() - far) / splat_f32x16(np.float32(-127)))
    sum_qx, sum_q2 = iq4_products(scratch, size, inverse)
    scale = select(less(zero_f32x16(), sum_q2), sum_qx / sum_q2, zero_f32x16())
    best = scale * sum_qx
    for i in range(15):
        inverse = splat_f32x16(np.float32(i - 134)) / far
        sum_qx, sum_q2 = iq4_products(scratch, size, inverse)
        gain = select(less(zero_f32x16(), sum_q2), sum_qx * sum_qx, -np.inf)
        better = less(best * sum_q2, gain)
        scale = select(better, sum_qx / sum_q2, scale)
        best = select(better, scale * sum_qx, best)
    return select(is_zero, zero_f32x16(), scale)
