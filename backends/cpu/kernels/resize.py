"""Images of another size, by tables of weights; and embeddings of time steps.

The tables are those of the op, made along with the plan: for each index of y along a dimension the
first element of x, and the weights of it and those that follow.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, kernel
from ggmlpy.backends.cpu.kernels.types import rows_ok
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import fma, quotient
from ggmlpy.backends.cpu.simd.math import cos_f64, sin_f64
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f64x16,
    load_i32,
    store_f32,
    store_f32x16_part,
)
from ggmlpy.graph.buffer import HostBuffer, aligned_bytes

_TABLES = ("first0", "first1", "plane2", "plane3", "weights0", "weights1")
ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("x", TENSOR),
        *((name, "i8") for name in (*_TABLES, "n_taps0", "n_taps1")),
    ],
    align=True,
)
STEP_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("frequencies", "i8")], align=True)


def _buffer(values: Any) -> HostBuffer:
    data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    buffer = HostBuffer(aligned_bytes(data.nbytes))
    buffer.data[:] = data
    return buffer


def _taps(weights: Any) -> tuple[Any, Any]:
    """From [ne, n]: the first element of each row that counts, and the weights from there on."""
    n_y, n = weights.shape
    used = weights != 0
    first = np.where(used.any(axis=1), used.argmax(axis=1), 0)
    end = np.where(used.any(axis=1), n - used[:, ::-1].argmax(axis=1), 1)
    width = int((end - first).max())
    first = np.minimum(first, n - width)
    taps = weights[np.arange(n_y)[:, None], first[:, None] + np.arange(width)]
    return first.astype(np.int32), taps.astype(np.float32)


@lru_cache(maxsize=64)
def _tables(op: Any, ne: tuple[int, ...]) -> tuple[list[HostBuffer], int, int]:
    (first0, taps0), (first1, taps1) = (_taps(op.weights(dim, ne[dim])) for dim in (0, 1))
    planes = [op.nearest(dim, ne[dim]).astype(np.int32) for dim in (2, 3)]
    tables = [first0, first1, *planes, taps0, taps1]
    return [_buffer(table) for table in tables], taps0.shape[1], taps1.shape[1]


def _bind(node: Any, builder: Any) -> dict[str, int]:
    tables, n_taps0, n_taps1 = _tables(node.op, tuple(map(int, node.src[0].ne)))
    builder.keep.extend(tables)
    addresses = {name: table.address for name, table in zip(_TABLES, tables, strict=True)}
    return {**addresses, "n_taps0": n_taps0, "n_taps1": n_taps1}


def _rows(node: Any) -> bool:
    return rows_ok(node.src[0])


@kernel("upscale", ("f32",), args=ARGS, requires=_rows, bind=_bind)
def upscale_f32(p: Record, ith: Int, nth: Int) -> None:
    """Rows of y: of each tap's row the sum over the taps of a column, times the row's weight."""
    rows = n_rows(p.y)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        plane = quotient(row, p.y.ne1)
        i1 = row - plane * p.y.ne1
        i3 = quotient(plane, p.y.ne2)
        i2 = plane - i3 * p.y.ne2
        x = p.x.ptr + load_i32(p.plane2 + 4 * i2) * p.x.nb2 + load_i32(p.plane3 + 4 * i3) * p.x.nb3
        x += load_i32(p.first1 + 4 * i1) * p.x.nb1
        y = row_ptr(p.y, row)
        of_rows = p.weights1 + 4 * i1 * p.n_taps1
        for i in range(p.y.ne0):
            at = x + 4 * load_i32(p.first0 + 4 * i)
            of_columns = p.weights0 + 4 * i * p.n_taps0
            total = np.float32(0)
            for r in range(p.n_taps1):
                across = np.float32(0)
                for c in range(p.n_taps0):
                    element = load_f32(at + r * p.x.nb1 + 4 * c)
                    across = fma(element, load_f32(of_columns + 4 * c), across)
                total = fma(across, load_f32(of_rows + 4 * r), total)
            store_f32(y + 4 * i, total)


@lru_cache(maxsize=64)
def _frequencies(op: Any) -> HostBuffer:
    padded = np.zeros(-(-max(op.dim // 2, 1) // 16) * 16)
    padded[: op.dim // 2] = op.frequencies()
    return _buffer(padded)


def _bind_steps(node: Any, builder: Any) -> dict[str, int]:
    buffer = _frequencies(node.op)
    builder.keep.append(buffer)
    return {"frequencies": buffer.address}


@kernel("timestep_embedding", ("f32",), args=STEP_ARGS, bind=_bind_steps)
def timestep_embedding_f32(p: Record, ith: Int, nth: Int) -> None:
    """Cosines, then sines, of a time step; angles are f64."""
    half = p.y.ne0 >> 1
    for row in range(share(p.y.ne1, ith, nth), share(p.y.ne1, ith + 1, nth)):
        step = np.float64(load_f32(p.x.ptr + 4 * row))
        y = row_ptr(p.y, row)
        for i in range(0, half, 16):
            m = min(16, half - i)
            angles = load_f64x16(p.frequencies + 8 * i) * step
            store_f32x16_part(y + 4 * i, cos_f64(angles), m)
            store_f32x16_part(y + 4 * (half + i), sin_f64(angles), m)
        if p.y.ne0 > 2 * half:
            store_f32(y + 8 * half, np.float32(0))
