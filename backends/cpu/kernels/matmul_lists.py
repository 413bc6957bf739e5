"""Which rows of x and of the result each weight matrix serves, as lists of addresses.

    starts (matrices + 3) i64 | x n i64 | y n i64        n = rows of the result

Matrix j has the entries starts[j] to starts[j + 1] - 1 of both lists. With them a product
depends neither on the strides of x, nor on whether matrices are selected by position (mul_mat) or
by id (mul_mat_id). Every thread makes its own lists: a few ns a row, no barrier.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.builder import PlanBuilder
from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, report
from ggmlpy.backends.cpu.kernels.matmul_activations import COPY
from ggmlpy.backends.cpu.kernels.types import rows_ok
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import quotient, zero_f32x16
from ggmlpy.backends.cpu.simd.memory import load_i32, load_i64, store_f32x16_part, store_i64
from ggmlpy.graph.tensor import Tensor

FIELDS: list[tuple[str, Any]] = [  # that a record needs for its lists
    ("y", TENSOR),
    ("x", TENSOR),
    ("ids", TENSOR),  # zeros for mul_mat
    ("a2", "i8"),  # the weight's dimensions 2 and 3
    ("a3", "i8"),
    ("rows", "i8"),  # prepared x, row after row; 0: its own rows are used
    ("row_bytes", "i8"),
    ("scratch", "i8"),
    ("scratch_stride", "i8"),  # from one thread's scratch memory to the next: at least its lists
]


def list_bytes(node: Tensor) -> int:
    """Bytes of one thread's lists."""
    weight = node.src[0]
    return 8 * (weight.ne[2] * weight.ne[3] + 3 + 2 * node.spec.n_rows)


def bind_lists(node: Tensor, rows: int, row_bytes: int) -> dict[str, Any]:
    """The fields that are not operands."""
    weight = node.src[0]
    fields: dict[str, Any] = {
        "a2": weight.ne[2],
        "a3": weight.ne[3],
        "rows": rows,
        "row_bytes": row_bytes,
    }
    return fields if len(node.src) == 3 else fields | {"ids": np.zeros((), TENSOR)}


def bind_float_rows(node: Tensor, builder: PlanBuilder) -> dict[str, Any]:
    """The same for kernels that want x as contiguous rows of f32: copied where it is not."""
    x = node.src[1]
    row_bytes = 4 * x.ne[0]
    if x.type.name == "f32" and rows_ok(x):
        return bind_lists(node, 0, row_bytes)
    rows = builder.activations(x, COPY[x.type.name], row_bytes * x.spec.n_rows)
    return bind_lists(node, rows, row_bytes)


@inline
def list_addresses(p: Record, scratch: Int) -> Any:
    """The addresses of starts, x and y in a thread's scratch memory, and of its end."""
    xs = scratch + 8 * (p.a2 * p.a3 + 3)
    ys = xs + 8 * n_rows(p.y)
    return scratch, xs, ys, ys + 8 * n_rows(p.y)


@inline
def make_lists(p: Record, starts: Int, xs: Int, ys: Int) -> None:
    """Fills the lists. Rows whose id is out of range are reported, and come after the last
    matrix: from starts[matrices] to starts[matrices + 1]."""
    if p.ids.ptr == 0:
        _list_by_place(p, starts, xs, ys)
    else:
        _list_by_id(p, starts, xs, ys)


@inline
def _x_row(p: Record, row: Int) -> Int:
    return p.rows + row * p.row_bytes if p.rows != 0 else row_ptr(p.x, row)


@inline
def _list_by_place(p: Record, starts: Int, xs: Int, ys: Int) -> None:
    """Matrix (j2, j3) serves the rows with i2 // r2 == j2 and i3 // r3 == j3."""
    n1, n2 = p.x.ne1, p.x.ne2
    r2, r3 = quotient(n2, p.a2), quotient(p.x.ne3, p.a3)
    n_matrices = p.a2 * p.a3
    at = 0
    for j in range(n_matrices):
        store_i64(starts + 8 * j, at)
        j3 = quotient(j, p.a2)
        j2 = j - j3 * p.a2
        for i3 in range(j3 * r3, (j3 + 1) * r3):
            first = (i3 * n2 + j2 * r2) * n1
            for row in range(first, first + r2 * n1):
                store_i64(xs + 8 * at, _x_row(p, row))
                store_i64(ys + 8 * at, row_ptr(p.y, row))
                at += 1
    store_i64(starts + 8 * n_matrices, at)
    store_i64(starts + 8 * n_matrices + 8, at)


@inline
def _id(p: Record, used: Int, token: Int) -> Int:
    return np.int64(load_i32(p.ids.ptr + used * p.ids.nb0 + token * p.ids.nb1))


@inline
def _matrix(p: Record, used: Int, token: Int) -> Int:
    """The matrix of one row of the result; an id out of range counts as one after the last."""
    id = _id(p, used, token)
    return id if 0 <= id < p.a2 else p.a2


@inline
def _list_by_id(p: Record, starts: Int, xs: Int, ys: Int) -> None:
    """A counting sort by id. While it runs, starts[j + 1] is the index of matrix j's next row."""
    n_used, n_tokens = p.ids.ne0, p.ids.ne1
    for i in range(p.a2 + 3):
        store_i64(starts + 8 * i, 0)
    for token in range(n_tokens):
        for used in range(n_used):
            count = starts + 8 * (_matrix(p, used, token) + 2)
            store_i64(count, load_i64(count) + 1)
    for i in range(2, p.a2 + 3):
        store_i64(starts + 8 * i, load_i64(starts + 8 * i) + load_i64(starts + 8 * (i - 1)))
    for token in range(n_tokens):
        for used in range(n_used):
            matrix = _matrix(p, used, token)
            if matrix == p.a2:
                report(p, _id(p, used, token))
            address = starts + 8 * (matrix + 1)
            at = load_i64(address)
            x_row = token * p.x.ne1 + used - quotient(used, p.x.ne1) * p.x.ne1
            store_i64(xs + 8 * at, _x_row(p, x_row))
            store_i64(ys + 8 * at, row_ptr(p.y, token * n_used + used))
            store_i64(address, at + 1)


@inline
def clear_rows_without_matrix(p: Record, starts: Int, ys: Int, ith: Int, nth: Int) -> None:
    """Zeros in the rows of the result whose id is out of range: thread `ith`'s share of them."""
    last = starts + 8 * p.a2 * p.a3
    first, n = load_i64(last), load_i64(last + 8) - load_i64(last)
    for i in range(first + share(n, ith, nth), first + share(n, ith + 1, nth)):
        y = load_i64(ys + 8 * i)
        for j in range(0, p.y.ne0, 16):
            store_f32x16_part(y + 4 * j, zero_f32x16(), p.y.ne0 - j)
