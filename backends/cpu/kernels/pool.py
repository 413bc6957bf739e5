"""Pooling over windows and its gradient, by plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import maximum, quotient
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.memory import load_f16, load_f32, store_f32

ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("x", TENSOR),
        *((name, "i8") for name in ("op", "k0", "k1", "s0", "s1", "p0", "p1")),
    ],
    align=True,
)

LINE_ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), *((name, "i8") for name in ("op", "k0", "s0", "p0"))], align=True
)
BACK_ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("grad", TENSOR),
        ("x", TENSOR),
        *((name, "i8") for name in ("op", "k0", "k1", "s0", "s1", "p0", "p1")),
    ],
    align=True,
)


@inline
def window(p: Record, plane: Int, column: Int, row: Int) -> Any:
    """The largest element of a window (op 0; NaN if one is), or the average with padding as 0."""
    largest, total = np.float32(-np.inf), np.float32(0)
    for j in range(max(0, -row), min(p.k1, p.x.ne1 - row)):
        for i in range(max(0, -column), min(p.k0, p.x.ne0 - column)):
            v = load_f32(plane + (row + j) * p.x.nb1 + 4 * (column + i))
            if largest == largest:
                largest = maximum(largest, v)
            total += v
    return largest if p.op == 0 else total / np.float32(p.k0 * p.k1)


@kernel("pool_2d", ("f32",), args=ARGS)
def pool_2d_f32(p: Record, ith: Int, nth: Int) -> None:
    """A row of y at a time."""
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        y = row_ptr(p.y, row)
        which = quotient(row, p.y.ne1)
        plane = row_ptr(p.x, which * p.x.ne1)
        at = (row - which * p.y.ne1) * p.s1 - p.p1
        for i in range(p.y.ne0):
            store_f32(y + 4 * i, window(p, plane, i * p.s0 - p.p0, at))


def _pool_1d(type: str, load: Intrinsic, size: int) -> None:
    @kernel("pool_1d", (type,), args=LINE_ARGS, name=f"pool_1d_{type}")
    def pool_1d(p: Record, ith: Int, nth: Int) -> None:
        """A row of y at a time; an average is over the elements of x in the window."""
        rows = n_rows(p.y)
        for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
            x, y = row_ptr(p.x, row), row_ptr(p.y, row)
            for i in range(p.y.ne0):
                first = i * p.s0 - p.p0
                begin, end = max(first, 0), min(first + p.k0, p.x.ne0)
                largest, total = np.float32(-np.inf), np.float32(0)
                for j in range(begin, end):
                    v = load(x + size * j)
                    if largest == largest:
                        largest = maximum(largest, v)
                    total += v
                found = largest if p.op == 0 else total / np.float32(end - begin)
                store_f32(y + 4 * i, found)


_pool_1d("f32", load_f32, 4)
_pool_1d("f16", load_f16, 2)


@inline
def first_largest(p: Record, plane: Int, column: Int, row: Int) -> Int:
    """The byte, in a plane, of the first largest element of a window, or of its first NaN."""
    largest, at = np.float32(-np.inf), -1
    for j in range(max(0, -row), min(p.k1, p.x.ne1 - row)):
        for i in range(max(0, -column), min(p.k0, p.x.ne0 - column)):
            place = 4 * ((row + j) * p.x.ne0 + column + i)
            v = load_f32(plane + place)
            if largest == largest and (at < 0 or v > largest or v != v):
                largest, at = v, place
    return at


@kernel("pool_2d_back", ("f32", "f32"), args=BACK_ARGS)
def pool_2d_back_f32(p: Record, ith: Int, nth: Int) -> None:
    """A plane at a time, whose windows add to it in order."""
    planes = p.y.ne2 * p.y.ne3
    n, n_windows = p.y.ne0 * p.y.ne1, p.grad.ne0 * p.grad.ne1
    share_of_all = np.float32(p.k0 * p.k1)
    for plane in range(share(planes, ith, nth), share(planes, ith + 1, nth)):
        x, y = p.x.ptr + 4 * n * plane, p.y.ptr + 4 * n * plane
        for i in range(n):
            store_f32(y + 4 * i, np.float32(0))
        for v in range(p.grad.ne1):
            for u in range(p.grad.ne0):
                grad = load_f32(p.grad.ptr + 4 * (n_windows * plane + v * p.grad.ne0 + u))
                column, row = u * p.s0 - p.p0, v * p.s1 - p.p1
                if p.op == 0:
                    at = y + first_largest(p, x, column, row)
                    store_f32(at, load_f32(at) + grad)
                else:
                    for j in range(max(0, -row), min(p.k1, p.y.ne1 - row)):
                        for i in range(max(0, -column), min(p.k0, p.y.ne0 - column)):
                            at = y + 4 * ((row + j) * p.y.ne0 + column + i)
                            store_f32(at, load_f32(at) + grad / share_of_all)
