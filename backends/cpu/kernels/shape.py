"""Building tensors: concat, repeat, pad, fill, arange. Bytes are copied as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.copy import copy_units
from ggmlpy.backends.cpu.kernels.segments import repeated_row_ptr
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import quotient, remainder
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.memory import store_f16, store_f32
from ggmlpy.graph.types import TYPES

CONCAT_ARGS = np.dtype(
    [("y", TENSOR), ("a", TENSOR), ("b", TENSOR), ("dim", "i8"), ("unit", "i8")], align=True
)
REPEAT_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("unit", "i8")], align=True)
PAD_ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), *((f"lp{i}", "i8") for i in range(4)), ("circular", "i8")],
    align=True,
)
FILL_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("c", "f4")], align=True)
ARANGE_ARGS = np.dtype([("y", TENSOR), ("start", "f8"), ("step", "f8")], align=True)

_PLAIN = [name for name, type in TYPES.items() if not type.is_quantized]


def _bind_unit(node: Any, builder: Any) -> dict[str, float]:
    return {"unit": node.type.type_size}


@inline
def clear_f32(y: Int, start: Int, end: Int) -> None:
    """Elements start to end - 1 of a row are 0."""
    for i in range(start, end):
        store_f32(y + 4 * i, np.float32(0))


@inline
def element_ptr(t: Record, i1: Int, i2: Int, i3: Int) -> Int:
    """The address of a row by its coordinates."""
    return t.ptr + i1 * t.nb1 + i2 * t.nb2 + i3 * t.nb3


@kernel(
    "concat",
    (_PLAIN[0], _PLAIN[0]),
    args=CONCAT_ARGS,
    bind=_bind_unit,
    name="concat",
    also=[("concat", (type, type)) for type in _PLAIN[1:]],
)
def concat(p: Record, ith: Int, nth: Int) -> None:
    """Each row of y from a, from b, or (along dimension 0) from both."""
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        plane = quotient(row, p.y.ne1)
        i1 = row - plane * p.y.ne1
        i3 = quotient(plane, p.y.ne2)
        i2 = plane - i3 * p.y.ne2
        y = row_ptr(p.y, row)
        if p.dim == 0:
            a, b = element_ptr(p.a, i1, i2, i3), element_ptr(p.b, i1, i2, i3)
            copy_units(a, p.a.nb0, y, p.unit, p.a.ne0, p.unit)
            copy_units(b, p.b.nb0, y + p.a.ne0 * p.unit, p.unit, p.b.ne0, p.unit)
        elif i1 < p.a.ne1 and i2 < p.a.ne2 and i3 < p.a.ne3:
            copy_units(element_ptr(p.a, i1, i2, i3), p.a.nb0, y, p.unit, p.a.ne0, p.unit)
        else:
            b1 = i1 - p.a.ne1 if p.dim == 1 else i1
            b2 = i2 - p.a.ne2 if p.dim == 2 else i2
            b3 = i3 - p.a.ne3 if p.dim == 3 else i3
            copy_units(element_ptr(p.b, b1, b2, b3), p.b.nb0, y, p.unit, p.b.ne0, p.unit)


@kernel(
    "repeat",
    (_PLAIN[0],),
    args=REPEAT_ARGS,
    bind=_bind_unit,
    name="repeat",
    also=[("repeat", (type,)) for type in _PLAIN[1:]],
)
def repeat(p: Record, ith: Int, nth: Int) -> None:
    """Each row of y as copies of a row of x."""
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        x = repeated_row_ptr(p.x, p.y, row)
        y = row_ptr(p.y, row)
        for start in range(0, p.y.ne0, p.x.ne0):
            copy_units(x, p.x.nb0, y + start * p.unit, p.unit, p.x.ne0, p.unit)


@inline
def wrapped(i: Int, n: Int) -> Int:
    """i modulo n, from 0 to n - 1 for a negative i too."""
    return remainder(i, n) if i >= 0 else n - 1 - remainder(-i - 1, n)


@kernel("pad", ("f32",), args=PAD_ARGS)
def pad_f32(p: Record, ith: Int, nth: Int) -> None:
    """Each row of y: zeros, a row of x, zeros; or zeros alone; or x over and over."""
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        plane = quotient(row, p.y.ne1)
        i1 = row - plane * p.y.ne1 - p.lp1
        i3 = quotient(plane, p.y.ne2)
        i2 = plane - i3 * p.y.ne2 - p.lp2
        i3 -= p.lp3
        y = row_ptr(p.y, row)
        if p.circular != 0:
            x = element_ptr(p.x, wrapped(i1, p.x.ne1), wrapped(i2, p.x.ne2), wrapped(i3, p.x.ne3))
            at, column = 0, wrapped(-p.lp0, p.x.ne0)
            while at < p.y.ne0:
                n = min(p.y.ne0 - at, p.x.ne0 - column)
                copy_units(x + column * p.x.nb0, p.x.nb0, y + 4 * at, 4, n, 4)
                at, column = at + n, 0
        else:
            start, end = p.y.ne0, p.y.ne0  # where x lies
            if 0 <= i1 < p.x.ne1 and 0 <= i2 < p.x.ne2 and 0 <= i3 < p.x.ne3:
                start, end = p.lp0, p.lp0 + p.x.ne0
                copy_units(element_ptr(p.x, i1, i2, i3), p.x.nb0, y + 4 * start, 4, p.x.ne0, 4)
            clear_f32(y, 0, start)
            clear_f32(y, end, p.y.ne0)


def _fill(type: str, store: Intrinsic, size: int) -> None:
    @kernel("fill", (type,), args=FILL_ARGS, name=f"fill_{type}")
    def fill(p: Record, ith: Int, nth: Int) -> None:
        """Every element is c."""
        rows = n_rows(p.y)
        for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
            y = row_ptr(p.y, row)
            for i in range(p.y.ne0):
                store(y + size * i, p.c)


_fill("f32", store_f32, 4)
_fill("f16", store_f16, 2)


@kernel("arange", (), args=ARANGE_ARGS)
def arange_f32(p: Record, ith: Int, nth: Int) -> None:
    """y[i] = start + step * i."""
    for i in range(share(p.y.ne0, ith, nth), share(p.y.ne0, ith + 1, nth)):
        store_f32(p.y.ptr + 4 * i, np.float32(p.start + p.step * np.float64(i)))
