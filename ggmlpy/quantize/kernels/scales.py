"""The scales of a superblock's sub-blocks as small integers, one superblock at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, inline
from ggmlpy.backends.cpu.simd.memory import load_f32, load_u8, store_f16, store_i8
from ggmlpy.quantize.kernels.layout import nearest_one

_LEAST = np.float32(1e-15)


@inline
def largest(x: Int, n: Int) -> Int:
    """The largest of n f32, at least 0."""
    most = np.float32(0)
    for i in range(n):
        most = max(most, load_f32(x + 4 * i))
    return most


@inline
def farthest_scale(x: Int, n: Int) -> Int:
    """The first of n f32 of the largest magnitude; 0 if all are zeros."""
    most, far = np.float32(0), np.float32(0)
    for i in range(n):
        value = load_f32(x + 4 * i)
        if abs(value) > most:
            most, far = abs(value), value
    return far


@inline
def _products(x: Int, w: Int, n: Int, inverse: Int, top: Int, codes: Int) -> Any:
    """(sum w x l, sum w l^2) for codes l = nearest(inverse * x) up to `top`, which are stored."""
    sum_xl, sum_l2 = np.float32(0), np.float32(0)
    for i in range(n):
        value, weight = load_f32(x + 4 * i), load_f32(w + 4 * i)
        code = min(nearest_one(inverse * value), top)
        store_i8(codes + i, code)
        sum_xl += weight * value * np.float32(code)
        sum_l2 += weight * np.float32(code) * np.float32(code)
    return sum_xl, sum_l2


@inline
def _error(x: Int, w: Int, n: Int, inverse: Int, top: Int) -> Int:
    scale = np.float32(1) / inverse
    error = np.float32(0)
    for i in range(n):
        value = load_f32(x + 4 * i)
        code = nearest_one(inverse * value)
        if top == 255:
            code &= 255  # llama.cpp keeps these as bytes: of an x below 0 that is a large code
        diff = value - scale * np.float32(min(code, top))
        error += load_f32(w + 4 * i) * diff * diff
    return error


@inline
def fit_scales(x: Int, w: Int, n: Int, top: Int, codes: Int) -> Int:
    """The scale d of n f32 x with weights w, x = d * code; codes 0 to `top`, a byte each."""
    most = largest(x, n)
    if most < _LEAST:
        for i in range(n):
            store_i8(codes + i, 0)
        return np.float32(0)
    inverse = np.float32(top) / most
    least_error = _error(x, w, n, inverse, 255)
    for i in range(9):
        if i != 4:
            tried = (np.float32(0.1) * np.float32(i - 4) + np.float32(top)) / most
            error = _error(x, w, n, tried, top)
            if error < least_error:
                least_error, inverse = error, tried
    sum_xl, sum_l2 = _products(x, w, n, inverse, top, codes)
    for _ in range(5):
        for i in range(n):
            value, weight = load_f32(x + 4 * i), load_f32(w + 4 * i)
            code = np.float32(load_u8(codes + i))
            xl = sum_xl - weight * value * code
            l2 = sum_l2 - weight * code * code
            if xl > 0 and l2 > 0:
                new_code = min(nearest_one(value * l2 / xl), top)
                if new_code != load_u8(codes + i):
                    new = np.float32(new_code)
                    xl += weight * value * new
                    l2 += weight * new * new
                    if xl * xl * sum_l2 > sum_xl * sum_xl * l2:
                        store_i8(codes + i, new_code)
                        sum_xl, sum_l2 = xl, l2
    return sum_xl / sum_l2 if sum_l2 > 0 else np.float32(0)


@inline
def _signed_products(x: Int, w: Int, n: Int, inverse: Int, top: Int) -> Any:
    sum_xl, sum_l2 = np.float32(0), np.float32(0)
    for i in range(n):
        value, weight = load_f32(x + 4 * i), load_f32(w + 4 * i)
        code = np.float32(max(min(nearest_one(inverse * value), top - 1), -top))
        sum_xl += weight * value * code
        sum_l2 += weight * code * code
    return sum_xl, sum_l2


@inline
def fit_signed_scales(x: Int, w: Int, n: Int, top: Int, codes: Int) -> Int:
    """As `search_scale` of search.py, for n f32: codes 0 to 2 * top - 1, a byte each."""
    far = farthest_scale(x, n)
    if abs(far) < _LEAST:
        for i in range(n):
            store_i8(codes + i, 0)
        return np.float32(0)
    best_inverse = np.float32(-top) / far
    sum_xl, sum_l2 = _signed_products(x, w, n, best_inverse, top)
    scale = np.float32(0)
    if sum_l2 != 0:
        scale = sum_xl / sum_l2
    best = scale * sum_xl
    for i in range(19):
        if i != 9:
            parts = np.float32(top) + np.float32(0.1) * np.float32(i - 9)
            inverse = -parts / far
            sum_xl, sum_l2 = _signed_products(x, w, n, inverse, top)
            if sum_l2 > 0 and sum_xl * sum_xl > best * sum_l2:
                best_inverse = inverse
                scale = sum_xl / sum_l2
                best = scale * sum_xl
    for i in range(n):
        code = max(min(nearest_one(best_inverse * load_f32(x + 4 * i)), top - 1), -top)
        store_i8(codes + i, code + top)
    return scale


@inline
def round_scales(x: Int, n: Int, top: Int, codes: Int, dst: Int) -> None:
    """n f32 x >= 0 as codes 0 to `top`, the largest as `top`, and their scale as f16."""
    most = largest(x, n)
    inverse = np.float32(0)
    if most > 0:
        inverse = np.float32(top) / most
    for i in range(n):
        store_i8(codes + i, min(nearest_one(inverse * load_f32(x + 4 * i)) & 255, top))
    store_f16(dst, most / np.float32(top))
