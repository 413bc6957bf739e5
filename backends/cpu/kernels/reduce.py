"""Reductions and prefix sums along rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.types import rows_ok
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import (
    equal,
    iota_i32x16,
    is_nan,
    less,
    lowest_bit,
    maximum,
    quotient,
    select,
    splat_f32x16,
    splat_i32x16,
    zero_f32x16,
)
from ggmlpy.backends.cpu.simd.convert import bits_of_mask
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16,
    load_f32x16_part,
    load_i32,
    store_f32,
    store_f32x16_part,
    store_i32,
    store_i64,
)
from ggmlpy.backends.cpu.simd.reduce import max_lanes, sum_lanes

ARGS = np.dtype([("y", TENSOR), ("x", TENSOR)], align=True)
EQUAL_ARGS = np.dtype([("y", TENSOR), ("a", TENSOR), ("b", TENSOR)], align=True)

_NEVER = float("-inf")


def _rows(node: Any) -> bool:
    return rows_ok(node.src[0])


@inline
def sum_row(x: Int, n: Int) -> Any:
    """The sum of n f32. Lane i adds up elements i, i + 16, ...; then a tree."""
    sums = zero_f32x16()
    for i in range(0, n, 16):
        if n - i >= 16:
            sums = sums + load_f32x16(x + 4 * i)
        else:
            sums = sums + load_f32x16_part(x + 4 * i, n - i)
    return sum_lanes(sums)


@kernel("sum", ("f32",), args=ARGS, requires=_rows)
def sum_f32(p: Record, ith: Int, nth: Int) -> None:
    """The sums of the rows, added in order: by one thread, so that the order never changes."""
    if ith == 0:
        total = np.float64(0)
        for row in range(n_rows(p.x)):
            total += np.float64(sum_row(row_ptr(p.x, row), p.x.ne0))
        store_f32(p.y.ptr, np.float32(total))


@kernel("sum_rows", ("f32",), args=ARGS, requires=_rows)
def sum_rows_f32(p: Record, ith: Int, nth: Int) -> None:
    """y[0] = the sum of a row."""
    rows = n_rows(p.x)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        store_f32(row_ptr(p.y, row), sum_row(row_ptr(p.x, row), p.x.ne0))


@kernel("mean", ("f32",), args=ARGS, requires=_rows)
def mean_f32(p: Record, ith: Int, nth: Int) -> None:
    """y[0] = the mean of a row."""
    rows = n_rows(p.x)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        total = sum_row(row_ptr(p.x, row), p.x.ne0)
        store_f32(row_ptr(p.y, row), total / np.float32(p.x.ne0))


@kernel("cumsum", ("f32",), args=ARGS, requires=_rows)
def cumsum_f32(p: Record, ith: Int, nth: Int) -> None:
    """y[i] = x[0] + ... + x[i], carried along in f64."""
    rows = n_rows(p.x)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        x = row_ptr(p.x, row)
        y = row_ptr(p.y, row)
        total = np.float64(0)
        for i in range(p.x.ne0):
            total += np.float64(load_f32(x + 4 * i))
            store_f32(y + 4 * i, np.float32(total))


@kernel("repeat_back", ("f32",), args=ARGS, requires=_rows)
def repeat_back_f32(p: Record, ith: Int, nth: Int) -> None:
    """y[i] = the sum of the copies of i, in the order in which they lie; 16 columns at a time."""
    rows = n_rows(p.y)
    n1, n2, n3 = (
        quotient(p.x.ne1, p.y.ne1),
        quotient(p.x.ne2, p.y.ne2),
        quotient(p.x.ne3, p.y.ne3),
    )
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        plane = quotient(row, p.y.ne1)
        i1 = row - plane * p.y.ne1
        i3 = quotient(plane, p.y.ne2)
        i2 = plane - i3 * p.y.ne2
        for i in range(0, p.y.ne0, 16):
            m = min(16, p.y.ne0 - i)
            total = zero_f32x16()
            for copy in range(n1 * n2 * n3):
                c2 = quotient(copy, n1)
                c3 = quotient(c2, n2)
                x = p.x.ptr + (i1 + (copy - c2 * n1) * p.y.ne1) * p.x.nb1
                x += (i2 + (c2 - c3 * n2) * p.y.ne2) * p.x.nb2 + (i3 + c3 * p.y.ne3) * p.x.nb3
                for start in range(i, p.x.ne0, p.y.ne0):
                    total = total + load_f32x16_part(x + 4 * start, m)
            store_f32x16_part(row_ptr(p.y, row) + 4 * i, total, m)


@kernel("count_equal", ("i32", "i32"), args=EQUAL_ARGS)
def count_equal_i32(p: Record, ith: Int, nth: Int) -> None:
    """By one thread: a count is one number."""
    if ith == 0:
        count = 0
        for row in range(n_rows(p.a)):
            a, b = row_ptr(p.a, row), row_ptr(p.b, row)
            for i in range(p.a.ne0):
                if load_i32(a + 4 * i) == load_i32(b + 4 * i):
                    count += 1
        store_i64(p.y.ptr, count)


@inline
def first_index(x: Int, n: Int, value: Any) -> Int:
    """The index of the first element that equals `value`; of the first NaN if `value` is one."""
    for i in range(0, n, 16):
        m = min(16, n - i)
        v = load_f32x16_part(x + 4 * i, m)
        found = bits_of_mask(equal(v, value))
        if value != value:
            found = bits_of_mask(is_nan(v))
        found &= (1 << m) - 1
        if found != 0:
            return i + lowest_bit(found)
    return 0


@kernel("argmax", ("f32",), args=ARGS, requires=_rows)
def argmax_f32(p: Record, ith: Int, nth: Int) -> None:
    """y[row] = the index of the first largest element, or of the first NaN if there is one."""
    n = p.x.ne0
    for row in range(share(p.x.ne1, ith, nth), share(p.x.ne1, ith + 1, nth)):
        x = row_ptr(p.x, row)
        largest, nans = splat_f32x16(_NEVER), 0
        for i in range(0, n, 16):
            m = min(16, n - i)
            v = load_f32x16_part(x + 4 * i, m)
            v = select(less(iota_i32x16(), splat_i32x16(m)), v, _NEVER)
            nans |= bits_of_mask(is_nan(v))
            largest = maximum(v, largest)
        value = max_lanes(largest) if nans == 0 else np.float32(np.nan)
        store_i32(p.y.ptr + row * p.y.nb0, first_index(x, n, value))
