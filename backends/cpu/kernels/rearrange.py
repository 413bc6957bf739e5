"""Elements moved as they are, 4 bytes each: roll, mirror images, diagonals, triangles, windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, kernel
from ggmlpy.backends.cpu.kernels.copy import copy_bytes
from ggmlpy.backends.cpu.kernels.shape import clear_f32, element_ptr, wrapped
from ggmlpy.backends.cpu.kernels.types import rows_ok
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import quotient, remainder
from ggmlpy.backends.cpu.simd.memory import load_i32, store_i32

ROLL_ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), *((f"shift{i}", "i8") for i in range(4))], align=True
)
REFLECT_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("p0", "i8")], align=True)
DIAG_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR)], align=True)
TRI_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("upper", "i8"), ("shift", "i8")], align=True)
WINDOW_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("w", "i8")], align=True)
POSITION_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("bytes", "i8")], align=True)


def _rows(node: Any) -> bool:
    return rows_ok(node.src[0])


@kernel("roll", ("f32",), args=ROLL_ARGS, requires=_rows)
def roll_f32(p: Record, ith: Int, nth: Int) -> None:
    """Each row of y from a row of x, in two parts."""
    n = p.y.ne0
    head = wrapped(p.shift0, n)  # the first element of x comes here
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        plane = quotient(row, p.y.ne1)
        i1 = wrapped(row - plane * p.y.ne1 - p.shift1, p.y.ne1)
        i3 = quotient(plane, p.y.ne2)
        i2 = wrapped(plane - i3 * p.y.ne2 - p.shift2, p.y.ne2)
        x = element_ptr(p.x, i1, i2, wrapped(i3 - p.shift3, p.y.ne3))
        y = row_ptr(p.y, row)
        copy_bytes(x, y + 4 * head, 4 * (n - head))
        copy_bytes(x + 4 * (n - head), y, 4 * head)


@kernel("pad_reflect_1d", ("f32",), args=REFLECT_ARGS, requires=_rows)
def pad_reflect_1d_f32(p: Record, ith: Int, nth: Int) -> None:
    """A mirror image, a row of x, a mirror image."""
    n, last = p.x.ne0, p.x.ne0 - 1
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        x, y = row_ptr(p.x, row), row_ptr(p.y, row)
        copy_bytes(x, y + 4 * p.p0, 4 * n)
        for i in range(p.p0):
            store_i32(y + 4 * i, load_i32(x + 4 * (p.p0 - i)))
        for i in range(p.p0 + n, p.y.ne0):
            store_i32(y + 4 * i, load_i32(x + 4 * (2 * last - (i - p.p0))))


@kernel("diag", ("f32",), args=DIAG_ARGS, requires=_rows)
def diag_f32(p: Record, ith: Int, nth: Int) -> None:
    """Row i of a matrix is zeros but for element i."""
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        plane = quotient(row, p.y.ne1)
        i = row - plane * p.y.ne1
        y = row_ptr(p.y, row)
        clear_f32(y, 0, p.y.ne0)
        store_i32(y + 4 * i, load_i32(row_ptr(p.x, plane) + 4 * i))


def _bind_tri(node: Any, builder: Any) -> dict[str, int]:
    """Kept is j >= i + shift of an upper part, j < i + shift of a lower one."""
    kind = int(node.op.type)
    return {"upper": int(kind < 2), "shift": int(kind in (1, 2))}


@kernel("tri", ("f32",), args=TRI_ARGS, requires=_rows, bind=_bind_tri)
def tri_f32(p: Record, ith: Int, nth: Int) -> None:
    """Each row: what is kept of it, and zeros."""
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        border = min(remainder(row, p.y.ne1) + p.shift, p.y.ne0)
        x, y = row_ptr(p.x, row), row_ptr(p.y, row)
        if p.upper != 0:
            clear_f32(y, 0, border)
            copy_bytes(x + 4 * border, y + 4 * border, 4 * (p.y.ne0 - border))
        else:
            copy_bytes(x, y, 4 * border)
            clear_f32(y, border, p.y.ne0)


@kernel("win_part", ("f32",), args=WINDOW_ARGS)
def win_part_f32(p: Record, ith: Int, nth: Int) -> None:
    """Each row of y, the channels of a pixel, from x; or zeros beyond the image."""
    n_across = quotient(p.x.ne1 + p.w - 1, p.w)
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        line = quotient(row, p.w)
        window = quotient(line, p.w)
        down = quotient(window, n_across)
        i1 = (window - down * n_across) * p.w + row - line * p.w
        i2 = down * p.w + line - window * p.w
        y = row_ptr(p.y, row)
        if i1 < p.x.ne1 and i2 < p.x.ne2:
            copy_bytes(element_ptr(p.x, i1, i2, 0), y, 4 * p.y.ne0)
        else:
            clear_f32(y, 0, p.y.ne0)


@kernel("win_unpart", ("f32",), args=WINDOW_ARGS)
def win_unpart_f32(p: Record, ith: Int, nth: Int) -> None:
    """Each row of y, the channels of a pixel, from its window."""
    n_across = quotient(p.y.ne1 + p.w - 1, p.w)
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        line = quotient(row, p.y.ne1)
        column = row - line * p.y.ne1
        across, down = quotient(column, p.w), quotient(line, p.w)
        x = element_ptr(p.x, column - across * p.w, line - down * p.w, down * n_across + across)
        copy_bytes(x, row_ptr(p.y, row), 4 * p.y.ne0)


def _bind_bytes(node: Any, builder: Any) -> dict[str, int]:
    return {"bytes": node.type.type_size}


@kernel(
    "get_rel_pos",
    ("f32",),
    args=POSITION_ARGS,
    requires=_rows,
    bind=_bind_bytes,
    also=[("get_rel_pos", ("f16",))],
)
def get_rel_pos(p: Record, ith: Int, nth: Int) -> None:
    """Row (k, q) of y is row n - 1 - k + q of x."""
    n = p.y.ne1
    for row in range(share(n * n, ith, nth), share(n * n, ith + 1, nth)):
        query = quotient(row, n)
        key = row - query * n
        x = p.x.ptr + (n - 1 - key + query) * p.x.nb1
        copy_bytes(x, row_ptr(p.y, row), p.bytes * p.y.ne0)
