"""Normalisation of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.reduce import sum_row
from ggmlpy.backends.cpu.kernels.types import rows_ok
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import (
    fma,
    iota_i32x16,
    less,
    maximum,
    quotient,
    select,
    splat_i32x16,
    sqrt,
    zero_f32x16,
)
from ggmlpy.backends.cpu.simd.memory import (
    load_f32x16,
    load_f32x16_part,
    store_f32x16,
    store_f32x16_part,
)
from ggmlpy.backends.cpu.simd.reduce import sum_lanes

FIELDS = [("y", TENSOR), ("x", TENSOR), ("eps", "f4")]
ARGS = np.dtype(FIELDS, align=True)
GROUP_ARGS = np.dtype([*FIELDS, ("n_groups", "i8")], align=True)


def requires(node: Any) -> bool:
    return rows_ok(node.src[0]) and rows_ok(node)


@inline
def sum_of_squares(x: Int, n: Int, minus: Any) -> Any:
    """The sum of (x - minus)^2. Lane i adds up elements i, i + 16, ...; then a tree."""
    squares = zero_f32x16()
    for i in range(0, n, 16):
        if n - i >= 16:
            v = load_f32x16(x + 4 * i) - minus
            squares = fma(v, v, squares)
        else:
            there = less(iota_i32x16(), splat_i32x16(n - i))
            v = select(there, load_f32x16_part(x + 4 * i, n - i) - minus, 0.0)
            squares = fma(v, v, squares)
    return sum_lanes(squares)


@inline
def shift_and_scale(x: Int, y: Int, n: Int, minus: Any, factor: Any) -> None:
    """y = (x - minus) * factor."""
    for i in range(0, n, 16):
        if n - i >= 16:
            store_f32x16(y + 4 * i, (load_f32x16(x + 4 * i) - minus) * factor)
        else:
            v = (load_f32x16_part(x + 4 * i, n - i) - minus) * factor
            store_f32x16_part(y + 4 * i, v, n - i)


@inline
def rms_of_row(x: Int, n: Int, eps: Any) -> Any:
    """What rms_norm subtracts from a row (nothing) and multiplies it by."""
    mean_square = sum_of_squares(x, n, np.float32(0)) / np.float32(n)
    return np.float32(0), np.float32(1) / sqrt(mean_square + eps)


@inline
def moments_of_row(x: Int, n: Int, eps: Any) -> Any:
    """What norm takes off a row and multiplies it by."""
    mean = sum_row(x, n) / np.float32(n)
    variance = sum_of_squares(x, n, mean) / np.float32(n)
    return mean, np.float32(1) / sqrt(variance + eps)


@kernel("rms_norm", ("f32",), args=ARGS, requires=requires)
def rms_norm_f32(p: Record, ith: Int, nth: Int) -> None:
    """y = x / sqrt(mean(x^2) + eps) along ne0."""
    n = p.x.ne0
    rows = n_rows(p.x)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        x = row_ptr(p.x, row)
        minus, factor = rms_of_row(x, n, p.eps)
        shift_and_scale(x, row_ptr(p.y, row), n, minus, factor)


@kernel("norm", ("f32",), args=ARGS, requires=requires)
def norm_f32(p: Record, ith: Int, nth: Int) -> None:
    """y = (x - mean) / sqrt(variance + eps) along ne0."""
    n = p.x.ne0
    rows = n_rows(p.x)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        x = row_ptr(p.x, row)
        mean, factor = moments_of_row(x, n, p.eps)
        shift_and_scale(x, row_ptr(p.y, row), n, mean, factor)


@kernel("l2_norm", ("f32",), args=ARGS, requires=requires)
def l2_norm_f32(p: Record, ith: Int, nth: Int) -> None:
    """y = x / max(sqrt(sum(x^2)), eps) along ne0."""
    n = p.x.ne0
    rows = n_rows(p.x)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        x = row_ptr(p.x, row)
        length = sqrt(sum_of_squares(x, n, np.float32(0)))
        factor = np.float32(1) / maximum(p.eps, length)
        shift_and_scale(x, row_ptr(p.y, row), n, np.float32(0), factor)


@kernel("group_norm", ("f32",), args=GROUP_ARGS)
def group_norm_f32(p: Record, ith: Int, nth: Int) -> None:
    """As norm, with a group of channels (contiguous planes) as one row."""
    per_group = quotient(p.x.ne2 + p.n_groups - 1, p.n_groups)
    groups = quotient(p.x.ne2 + per_group - 1, per_group)  # that have channels
    tasks = groups * p.x.ne3
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        i3 = quotient(task, groups)
        channel = (task - i3 * groups) * per_group
        n = p.x.ne0 * p.x.ne1 * min(per_group, p.x.ne2 - channel)
        x = p.x.ptr + channel * p.x.nb2 + i3 * p.x.nb3
        mean, factor = moments_of_row(x, n, p.eps)
        shift_and_scale(x, p.y.ptr + channel * p.y.nb2 + i3 * p.y.nb3, n, mean, factor)
