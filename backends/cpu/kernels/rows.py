"""Gathering and scattering rows by index.

Rows of a quantised weight in a mapped file are read from the file instead: through the map a
token's row would bring the whole folio around it into memory, up to some hundred KB (Linux 6.18),
and 512 tokens most of a table.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import (
    TENSOR,
    UNREADABLE,
    Inline,
    Int,
    Record,
    inline,
    kernel,
    report,
)
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.dequantize import read_f16
from ggmlpy.backends.cpu.kernels.dequantize_k import READERS
from ggmlpy.backends.cpu.kernels.quantize import WRITERS
from ggmlpy.backends.cpu.pieces import read_bytes
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import quotient, remainder
from ggmlpy.backends.cpu.simd.memory import load_i32, load_i64

GET_ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("x", TENSOR),
        ("ids", TENSOR),
        ("file", "i8"),  # descriptor of the file that rows are read from; -1: they are in memory
        ("position", "i8"),  # of x in it
        ("scratch", "i8"),
    ],
    align=True,
)
SET_ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("x", TENSOR),
        ("ids", TENSOR),
        ("ids_type", "i4"),
        ("x_type", "i4"),
        ("scratch", "i8"),
    ],
    align=True,
)

_I64, _F16 = types.I64, types.F16


def _bind_get(node: Any, builder: Any) -> dict[str, int]:
    file, position = builder.rows_in_file(node.src[0])
    return {"file": file, "position": position}


def _scratch_bytes_get(node: Any, n_threads: int) -> int:
    """A stored row for each thread, where rows may be read from a file (builder.rows_in_file)."""
    x = node.src[0]
    return x.nb[1] * n_threads if x.type.is_quantized and x.is_leaf else 0


def _get_rows(type: str, read: Inline) -> None:
    @kernel(
        "get_rows",
        (type, "i32"),
        args=GET_ARGS,
        name=f"get_rows_{type}",
        bind=_bind_get,
        scratch_bytes=_scratch_bytes_get,
    )
    def get_rows(p: Record, ith: Int, nth: Int) -> None:
        """y[:, i, a, b] = x[:, ids[i, a, b], a, b] as f32 (the bits of i32 as they are)."""
        rows = n_rows(p.y)
        for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
            plane = quotient(row, p.y.ne1)
            i1 = row - plane * p.y.ne1
            i3 = quotient(plane, p.y.ne2)
            i2 = plane - i3 * p.y.ne2
            id = load_i32(p.ids.ptr + i1 * p.ids.nb0 + i2 * p.ids.nb1 + i3 * p.ids.nb2)
            if 0 <= id < p.x.ne1:
                at = id * p.x.nb1 + i2 * p.x.nb2 + i3 * p.x.nb3
                x = p.x.ptr + at
                if p.file >= 0:
                    x = p.scratch + ith * p.x.nb1
                    if read_bytes(p.file, p.position + at, x, p.x.nb1) == 0:
                        report(p, UNREADABLE)
                read(x, row_ptr(p.y, row), p.x.ne0)
            else:
                report(p, id)


for _type, _read in READERS.items():
    _get_rows(_type, _read)
_get_rows("i32", READERS["f32"])


@inline
def load_id(ptr: Int, type: Int) -> Int:
    """An index, i32 or i64."""
    return load_i64(ptr) if type == _I64 else load_i32(ptr)


@inline
def first_bad_id(ids: Record, type: Int, limit: Int) -> Int:
    """The address of the first index that is not in 0 .. limit - 1; 0 where all are."""
    for i2 in range(ids.ne2):
        for i1 in range(ids.ne1):
            for i0 in range(ids.ne0):
                at = ids.ptr + i0 * ids.nb0 + i1 * ids.nb1 + i2 * ids.nb2
                id = load_id(at, type)
                if id < 0 or id >= limit:
                    return at
    return 0


def _bind(node: Any, builder: Any) -> dict[str, float]:
    x, ids, _ = node.src
    return {"x_type": types.type_field(x), "ids_type": types.type_field(ids)}


def _scratch_bytes(node: Any, n_threads: int) -> int:
    """A row as f32 for each thread, unless x has it."""
    return 0 if node.src[0].type.name == "f32" else 4 * node.ne[0] * n_threads


def _set_rows(type: str, write: Inline) -> None:
    served = [("set_rows", (x, ids, type)) for x in ("f32", "f16") for ids in ("i64", "i32")]

    @kernel(
        *served[0],
        args=SET_ARGS,
        name=f"set_rows_{type}",
        also=served[1:],
        bind=_bind,
        scratch_bytes=_scratch_bytes,
    )
    def set_rows(p: Record, ith: Int, nth: Int) -> None:
        """y[:, ids[i, a % A1, b % B1], a, b] = x[:, i, a, b]; nothing if any index is out of range.

        A thread owns the rows of y whose number is `ith` modulo `nth` and goes through x in order,
        so of several rows for one index the last wins, for any number of threads.
        """
        bad = first_bad_id(p.ids, p.ids_type, p.y.ne1)
        if bad != 0:
            report(p, load_id(bad, p.ids_type))
            return
        row_f32 = p.scratch + 4 * p.x.ne0 * ith
        for i3 in range(p.x.ne3):
            for i2 in range(p.x.ne2):
                ids = p.ids.ptr + remainder(i2, p.ids.ne1) * p.ids.nb1
                ids += remainder(i3, p.ids.ne2) * p.ids.nb2
                for i1 in range(p.x.ne1):
                    id = load_id(ids + i1 * p.ids.nb0, p.ids_type)
                    if nth == 1 or remainder(id, nth) == ith:
                        x = p.x.ptr + i1 * p.x.nb1 + i2 * p.x.nb2 + i3 * p.x.nb3
                        if p.x_type == _F16:
                            read_f16(x, row_f32, p.x.ne0)
                            x = row_f32
                        write(x, p.y.ptr + id * p.y.nb1 + i2 * p.y.nb2 + i3 * p.y.nb3, p.x.ne0)


for _type, _write in WRITERS.items():
    _set_rows(_type, _write)
