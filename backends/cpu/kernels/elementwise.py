"""Arithmetic on two tensors, element by element, the second repeated to the shape of the first.

f32 with contiguous rows has kernels of its own; other types and strides go through f32 pieces.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Record, kernel, report
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.dequantize_k import READERS
from ggmlpy.backends.cpu.kernels.elements import PIECE, read_elements, write_elements
from ggmlpy.backends.cpu.kernels.quantize import WRITERS
from ggmlpy.backends.cpu.kernels.segments import SEGMENT, n_segments, repeated_row_ptr
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd import arith
from ggmlpy.backends.cpu.simd.arith import quotient, splat_f32x16
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16,
    load_f32x16_part,
    load_i32,
    store_f32,
    store_f32x16,
    store_f32x16_part,
)
from ggmlpy.graph.types import TYPES

FIELDS = [("y", TENSOR), ("a", TENSOR), ("b", TENSOR)]
ARGS = np.dtype(FIELDS, align=True)
ANY_ARGS = np.dtype(
    [*FIELDS, ("y_type", "i4"), ("b_type", "i4"), ("scratch", "i8")],
    align=True,
)
ID_ARGS = np.dtype([*FIELDS, ("ids", TENSOR)], align=True)


def _rows(node: Any) -> bool:
    return all(types.rows_ok(tensor) for tensor in (node, *node.src))


def _bind(node: Any, builder: Any) -> dict[str, float]:
    return {"y_type": types.type_field(node), "b_type": types.type_field(node.src[1])}


def _scratch_bytes(node: Any, n_threads: int) -> int:
    return 8 * PIECE * n_threads


def _binary(op: str, combine: Intrinsic) -> None:
    """The kernels of one op, `combine(vector of a, vector of b)`."""

    @kernel(op, ("f32", "f32"), args=ARGS, requires=_rows, name=f"{op}_f32")
    def binary(p: Record, ith: Int, nth: Int) -> None:
        """y = combine(a, b) by segments of a row: b's whole row, 1024 elements, or b's period."""
        n = p.y.ne0
        n_b = p.b.ne0
        length = SEGMENT if n_b == n or n_b == 1 else n_b
        per_row = n_segments(n, length)
        tasks = n_rows(p.y) * per_row
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            row = quotient(task, per_row)
            start = (task - row * per_row) * length
            a = row_ptr(p.a, row) + 4 * start
            y = row_ptr(p.y, row) + 4 * start
            b = repeated_row_ptr(p.b, p.a, row)
            m = min(length, n - start)
            whole = m & -16
            if n_b == 1:
                number = splat_f32x16(load_f32(b))
                for i in range(0, whole, 16):
                    store_f32x16(y + 4 * i, combine(load_f32x16(a + 4 * i), number))
                v = combine(load_f32x16_part(a + 4 * whole, m - whole), number)
            else:
                if n_b == n:
                    b += 4 * start
                for i in range(0, whole, 16):
                    v = combine(load_f32x16(a + 4 * i), load_f32x16(b + 4 * i))
                    store_f32x16(y + 4 * i, v)
                v = load_f32x16_part(b + 4 * whole, m - whole)
                v = combine(load_f32x16_part(a + 4 * whole, m - whole), v)
            store_f32x16_part(y + 4 * whole, v, m - whole)

    @kernel(
        op,
        ("f32", "f32"),
        args=ANY_ARGS,
        bind=_bind,
        scratch_bytes=_scratch_bytes,
        name=f"{op}_any",
        also=[(op, (a, b)) for a in types.FLOATS for b in types.FLOATS if (a, b) != ("f32", "f32")],
    )
    def binary_any(p: Record, ith: Int, nth: Int) -> None:
        """The same for any strides, f32, f16 and bf16: by pieces as f32 in scratch memory."""
        n = p.y.ne0
        period = n if p.b.ne0 == 1 else p.b.ne0
        per_period = n_segments(period, PIECE)
        per_row = quotient(n, period) * per_period
        tasks = n_rows(p.y) * per_row
        left = p.scratch + 8 * PIECE * ith
        right = left + 4 * PIECE
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            row = quotient(task, per_row)
            which = quotient(task - row * per_row, per_period)
            in_b = (task - row * per_row - which * per_period) * PIECE
            start = which * period + in_b
            m = min(PIECE, period - in_b)
            read_elements(p.y_type, row_ptr(p.a, row) + start * p.a.nb0, p.a.nb0, m, left)
            b = repeated_row_ptr(p.b, p.a, row)
            if p.b.ne0 == 1:
                read_elements(p.b_type, b, 4, 1, right)
                number = splat_f32x16(load_f32(right))
                for i in range(0, 4 * m, 64):
                    store_f32x16(right + i, number)
            else:
                read_elements(p.b_type, b + in_b * p.b.nb0, p.b.nb0, m, right)
            for i in range(0, 4 * m, 64):
                store_f32x16(left + i, combine(load_f32x16(left + i), load_f32x16(right + i)))
            write_elements(p.y_type, left, row_ptr(p.y, row) + start * p.y.nb0, p.y.nb0, m)


for _op, _combine in (
    ("add", arith.add),
    ("sub", arith.sub),
    ("mul", arith.mul),
    ("div", arith.div),
    ("add1", arith.add),
):
    _binary(_op, _combine)


def _add_to_blocks(type: str, read: Inline, write: Inline) -> None:
    block, unit = TYPES[type].block_size, TYPES[type].type_size

    @kernel(
        "add",
        (type, "f32"),
        args=ANY_ARGS,
        requires=lambda node: types.rows_ok(node.src[1]) and node.src[1].ne[0] == node.ne[0],
        bind=_bind,
        scratch_bytes=_scratch_bytes,
        name=f"add_{type}",
    )
    def add_to_blocks(p: Record, ith: Int, nth: Int) -> None:
        """a + b as f32, then quantised again."""
        per_row = n_segments(p.y.ne0, PIECE)
        tasks = n_rows(p.y) * per_row
        piece = p.scratch + 8 * PIECE * ith
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            row = quotient(task, per_row)
            start = (task - row * per_row) * PIECE
            n = min(PIECE, p.y.ne0 - start)
            stored = quotient(start, block) * unit
            read(row_ptr(p.a, row) + stored, piece, n)
            b = repeated_row_ptr(p.b, p.a, row) + 4 * start
            for i in range(0, 4 * n, 64):  # rows are whole blocks, so n is a multiple of 32
                store_f32x16(piece + i, load_f32x16(piece + i) + load_f32x16(b + i))
            write(piece, row_ptr(p.y, row) + stored, n)


for _type, _write in WRITERS.items():
    if TYPES[_type].is_quantized:
        _add_to_blocks(_type, READERS[_type], _write)


@kernel("add_id", ("f32", "f32", "i32"), args=ID_ARGS, requires=_rows)
def add_id_f32(p: Record, ith: Int, nth: Int) -> None:
    """y[:, u, t] = a[:, u, t] + b[:, ids[u, t]]."""
    n = p.y.ne0
    whole = n & -16
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        t = quotient(row, p.y.ne1)
        id = load_i32(p.ids.ptr + (row - t * p.y.ne1) * p.ids.nb0 + t * p.ids.nb1)
        if 0 <= id < p.b.ne1:
            a = row_ptr(p.a, row)
            b = p.b.ptr + id * p.b.nb1
            y = row_ptr(p.y, row)
            for i in range(0, 4 * whole, 64):
                store_f32x16(y + i, load_f32x16(a + i) + load_f32x16(b + i))
            for i in range(4 * whole, 4 * n, 4):
                store_f32(y + i, load_f32(a + i) + load_f32(b + i))
        else:
            report(p, id)
