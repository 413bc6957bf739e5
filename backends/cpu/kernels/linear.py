"""Products and systems of matrices that are no weights: out_prod, solve_tri.

Each element of y is summed in the order of k, by one thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Record, kernel
from ggmlpy.backends.cpu.kernels.dequantize_k import READERS
from ggmlpy.backends.cpu.kernels.segments import n_segments
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import fma, quotient, splat_f32x16, zero_f32x16
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16_part,
    store_f32x16_part,
)

PRODUCT_ARGS = np.dtype(
    [("y", TENSOR), ("a", TENSOR), ("b", TENSOR), ("scratch", "i8"), ("stride", "i8")], align=True
)
SOLVE_ARGS = np.dtype([("y", TENSOR), ("a", TENSOR), ("b", TENSOR)], align=True)
_COLUMNS = 64  # of a task: four vectors


def _stride(node: Any) -> int:
    return -(-4 * int(node.ne[0]) // 64) * 64


def _scratch_bytes(node: Any, n_threads: int) -> int:
    """A row of a as f32 for each thread."""
    return n_threads * _stride(node)


def _bind(node: Any, builder: Any) -> dict[str, int]:
    return {"stride": _stride(node)}


@kernel("out_prod", ("f32", "f32"), args=PRODUCT_ARGS, bind=_bind, scratch_bytes=_scratch_bytes)
def out_prod_f32(p: Record, ith: Int, nth: Int) -> None:
    """64 columns of a row of y at a time, in registers."""
    per_row = n_segments(p.y.ne0, _COLUMNS)
    tasks = n_rows(p.y) * per_row
    r2, r3 = quotient(p.b.ne2, p.a.ne2), quotient(p.b.ne3, p.a.ne3)
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        row = quotient(task, per_row)
        begin = (task - row * per_row) * _COLUMNS
        plane = quotient(row, p.y.ne1)
        i1 = row - plane * p.y.ne1
        i3 = quotient(plane, p.y.ne2)
        i2 = plane - i3 * p.y.ne2
        a = p.a.ptr + quotient(i2, r2) * p.a.nb2 + quotient(i3, r3) * p.a.nb3
        b = p.b.ptr + i1 * p.b.nb0 + i2 * p.b.nb2 + i3 * p.b.nb3
        for i in range(begin, min(begin + _COLUMNS, p.y.ne0), 16):
            m = min(16, p.y.ne0 - i)
            total = zero_f32x16()
            for k in range(p.a.ne1):
                factor = splat_f32x16(load_f32(b + k * p.b.nb1))
                total = fma(load_f32x16_part(a + k * p.a.nb1 + 4 * i, m), factor, total)
            store_f32x16_part(row_ptr(p.y, row) + 4 * i, total, m)


def _out_prod(type: str, read: Inline) -> None:
    @kernel(
        "out_prod",
        (type, "f32"),
        args=PRODUCT_ARGS,
        bind=_bind,
        scratch_bytes=_scratch_bytes,
        name=f"out_prod_{type}",
    )
    def out_prod(p: Record, ith: Int, nth: Int) -> None:
        """Each row of a is read once for all rows of a thread's share of a matrix of y."""
        n_planes = p.y.ne2 * p.y.ne3
        r2, r3 = quotient(p.b.ne2, p.a.ne2), quotient(p.b.ne3, p.a.ne3)
        begin, end = share(p.y.ne1, ith, nth), share(p.y.ne1, ith + 1, nth)
        stored = p.scratch + ith * p.stride
        for plane in range(n_planes):
            i3 = quotient(plane, p.y.ne2)
            i2 = plane - i3 * p.y.ne2
            a = p.a.ptr + quotient(i2, r2) * p.a.nb2 + quotient(i3, r3) * p.a.nb3
            b = p.b.ptr + i2 * p.b.nb2 + i3 * p.b.nb3
            y = p.y.ptr + i2 * p.y.nb2 + i3 * p.y.nb3
            for k in range(p.a.ne1):
                if begin < end:
                    read(a + k * p.a.nb1, stored, p.a.ne0)
                for i1 in range(begin, end):
                    factor = splat_f32x16(load_f32(b + i1 * p.b.nb0 + k * p.b.nb1))
                    at = y + i1 * p.y.nb1
                    for i in range(0, p.y.ne0, 16):
                        m = min(16, p.y.ne0 - i)
                        total = zero_f32x16()
                        if k > 0:
                            total = load_f32x16_part(at + 4 * i, m)
                        total = fma(load_f32x16_part(stored + 4 * i, m), factor, total)
                        store_f32x16_part(at + 4 * i, total, m)


for _type, _read in READERS.items():
    if _type != "f32":
        _out_prod(_type, _read)


@kernel("solve_tri", ("f32", "f32"), args=SOLVE_ARGS)
def solve_tri_f32(p: Record, ith: Int, nth: Int) -> None:
    """16 columns of a matrix of x at a time, row by row; sums in the order of rows."""
    per_plane = n_segments(p.y.ne0, 16)
    tasks = per_plane * p.y.ne2 * p.y.ne3
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        plane = quotient(task, per_plane)
        column = (task - plane * per_plane) * 16
        m = min(16, p.y.ne0 - column)
        a = row_ptr(p.a, plane * p.a.ne1)
        b = row_ptr(p.b, plane * p.b.ne1) + 4 * column
        y = row_ptr(p.y, plane * p.y.ne1) + 4 * column
        for i in range(p.y.ne1):
            known = zero_f32x16()
            for t in range(i):
                factor = splat_f32x16(load_f32(a + i * p.a.nb1 + 4 * t))
                known = fma(factor, load_f32x16_part(y + t * p.y.nb1, m), known)
            rest = load_f32x16_part(b + i * p.b.nb1, m) - known
            diagonal = splat_f32x16(load_f32(a + i * p.a.nb1 + 4 * i))
            store_f32x16_part(y + i * p.y.nb1, rest / diagonal, m)
