"""Regions of a tensor: acc, set, and the relative positions that add_rel_pos adds."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.copy import copy_bytes
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16_part,
    store_f32x16_part,
)

_NUMBERS = ("nb1", "nb2", "nb3", "offset", "unit")
ARGS = np.dtype(
    [("y", TENSOR), ("a", TENSOR), ("b", TENSOR), *((name, "i8") for name in _NUMBERS)], align=True
)
POSITION_ARGS = np.dtype([(name, TENSOR) for name in ("y", "a", "pw", "ph")], align=True)

_PLAIN = ("f32", "f16", "f64", "i8", "i16", "i32", "i64")


def _bind_unit(node: Any, builder: Any) -> dict[str, int]:
    return {"unit": node.type.type_size}


@inline
def region_row(p: Record, row: Int) -> Int:
    """The byte of y at which row `row` of b comes."""
    plane = quotient(row, p.b.ne1)
    i1 = row - plane * p.b.ne1
    i3 = quotient(plane, p.b.ne2)
    i2 = plane - i3 * p.b.ne2
    return p.offset + i1 * p.nb1 + i2 * p.nb2 + i3 * p.nb3


@inline
def add_row(x: Int, y: Int, n: Int) -> None:
    """y += x, n f32."""
    for i in range(0, n, 16):
        m = min(16, n - i)
        total = load_f32x16_part(y + 4 * i, m) + load_f32x16_part(x + 4 * i, m)
        store_f32x16_part(y + 4 * i, total, m)


@kernel("acc", ("f32", "f32"), args=ARGS, bind=_bind_unit)
def acc_f32(p: Record, ith: Int, nth: Int) -> None:
    """A stretch of y for each thread: a, then what of the region falls into it."""
    n = n_rows(p.y) * p.y.ne0
    begin, end = 4 * share(n, ith, nth), 4 * share(n, ith + 1, nth)
    copy_bytes(p.a.ptr + begin, p.y.ptr + begin, end - begin)
    for row in range(n_rows(p.b)):
        at = region_row(p, row)
        first, last = max(at, begin), min(at + 4 * p.b.ne0, end)
        if first < last:
            add_row(row_ptr(p.b, row) + first - at, p.y.ptr + first, quotient(last - first, 4))


@kernel(
    "set",
    ("f32", "f32"),
    args=ARGS,
    bind=_bind_unit,
    name="set_region",
    also=[("set", (type, type)) for type in _PLAIN[1:]],
)
def set_region(p: Record, ith: Int, nth: Int) -> None:
    """A stretch of y for each thread: a, then what of the region falls into it."""
    n = n_rows(p.y) * p.y.ne0
    begin, end = p.unit * share(n, ith, nth), p.unit * share(n, ith + 1, nth)
    copy_bytes(p.a.ptr + begin, p.y.ptr + begin, end - begin)
    for row in range(n_rows(p.b)):
        at = region_row(p, row)
        first, last = max(at, begin), min(at + p.unit * p.b.ne0, end)
        if first < last:
            copy_bytes(row_ptr(p.b, row) + first - at, p.y.ptr + first, last - first)


@kernel("add_rel_pos", ("f32", "f32", "f32"), args=POSITION_ARGS)
def add_rel_pos_f32(p: Record, ith: Int, nth: Int) -> None:
    """A row of y, n rows of n keys each: (a + pw[w]) + ph[h]."""
    n = p.pw.ne0
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        a, y = row_ptr(p.a, row), row_ptr(p.y, row)
        of_columns, of_rows = row_ptr(p.pw, row), row_ptr(p.ph, row)
        for h in range(n):
            for w in range(0, n, 16):
                m = min(16, n - w)
                total = load_f32x16_part(a + 4 * (h * n + w), m)
                total = total + load_f32x16_part(of_columns + 4 * w, m)
                total = total + load_f32(of_rows + 4 * h)
                store_f32x16_part(y + 4 * (h * n + w), total, m)
