"""Pooling over windows, by plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import maximum, quotient
from ggmlpy.backends.cpu.simd.memory import load_f32, store_f32

ARGS = np.dtype(
    [
        ("y", TENSOR),
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
