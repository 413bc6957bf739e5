"""Copies: the elements of y in ne order are those of x in ne order, for any shapes and strides.

Work is cut into pieces of a row of y; a piece is filled by stretches, each of which ends with the
piece or with a row of x. Where rows have one shape, each is one stretch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.dequantize_k import READERS
from ggmlpy.backends.cpu.kernels.elements import PIECE, read_elements, write_elements
from ggmlpy.backends.cpu.kernels.quantize import WRITERS
from ggmlpy.backends.cpu.kernels.segments import n_segments
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import quotient, remainder
from ggmlpy.backends.cpu.simd.memory import (
    load_i8,
    load_i8x16_part,
    load_i8x64,
    load_i16,
    load_i32,
    load_i64,
    store_i8,
    store_i8x16_part,
    store_i8x64,
    store_i16,
    store_i32,
    store_i64,
)
from ggmlpy.graph.types import TYPES

FIELDS = [("y", TENSOR), ("x", TENSOR)]
UNIT_ARGS = np.dtype([*FIELDS, ("unit", "i8"), ("block", "i8")], align=True)
CONVERT_ARGS = np.dtype(
    [*FIELDS, ("y_type", "i4"), ("x_type", "i4"), ("scratch", "i8")], align=True
)
_RUN = 4096  # units of a piece: small enough that one long row is shared too
_SHORT = 16  # units of a row of x: shorter ones are copied column by column

Served = list[tuple[str, tuple[str, ...]]]
_PLAIN = ("f32", "f16", "bf16", "i32")


def _same_type(node: Any) -> bool:
    return node.type is node.src[0].type


def _bind_unit(node: Any, builder: Any) -> dict[str, float]:
    return {"unit": node.type.type_size, "block": node.type.block_size}


@inline
def copy_bytes(x: Int, y: Int, n: Int) -> None:
    """n contiguous bytes."""
    whole = n & -64
    for i in range(0, whole, 64):
        store_i8x64(y + i, load_i8x64(x + i))
    for i in range(whole, n, 16):
        m = min(16, n - i)
        store_i8x16_part(y + i, load_i8x16_part(x + i, m), m)


@inline
def copy_units(x: Int, x_stride: Int, y: Int, y_stride: Int, n: Int, unit: Int) -> None:
    """n units of `unit` bytes, each `stride` bytes after the one before."""
    if x_stride == unit and y_stride == unit:
        copy_bytes(x, y, n * unit)
    elif unit == 4:
        for i in range(n):
            store_i32(y + i * y_stride, load_i32(x + i * x_stride))
    elif unit == 2:
        for i in range(n):
            store_i16(y + i * y_stride, load_i16(x + i * x_stride))
    elif unit == 8:
        for i in range(n):
            store_i64(y + i * y_stride, load_i64(x + i * x_stride))
    elif unit == 1:
        for i in range(n):
            store_i8(y + i * y_stride, load_i8(x + i * x_stride))
    else:
        for i in range(n):
            copy_bytes(x + i * x_stride, y + i * y_stride, unit)


@inline
def copy_columns(p: Record, x: Int, row: Int, n: Int, y: Int, n_units: Int) -> Int:
    """At most n_units of rows of n units that follow each other in a plane of x, from `row` on,
    which is at address x; how many. A call for each short row would cost more than its units."""
    n_rows_here = min(quotient(n_units, n), p.x.ne1 - remainder(row, p.x.ne1))
    for j in range(n):
        copy_units(x + j * p.x.nb0, p.x.nb1, y + j * p.y.nb0, n * p.y.nb0, n_rows_here, p.unit)
    return n * n_rows_here


@kernel(
    "cont",
    ("f32",),
    args=UNIT_ARGS,
    requires=_same_type,
    bind=_bind_unit,
    name="copy_same_type",
    also=[
        (op, (type,) * n_sources)
        for type in TYPES
        for op, n_sources in (("cont", 1), ("dup", 1), ("cast", 1), ("cpy", 2))
        if (op, type) != ("cont", "f32")
    ],
)
def copy_same_type(p: Record, ith: Int, nth: Int) -> None:
    """Bytes as they are, in units of an element or a block."""
    row_y, row_x = quotient(p.y.ne0, p.block), quotient(p.x.ne0, p.block)
    per_row = n_segments(row_y, _RUN)
    tasks = n_rows(p.y) * per_row
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        row = quotient(task, per_row)
        at = (task - row * per_row) * _RUN
        end = min(at + _RUN, row_y)
        y = row_ptr(p.y, row)
        while at < end:
            source = row * row_y + at
            source_row = quotient(source, row_x)
            column = source - source_row * row_x
            x = row_ptr(p.x, source_row) + column * p.x.nb0
            if column == 0 and row_x < _SHORT and end - at >= 2 * row_x:
                at += copy_columns(p, x, source_row, row_x, y + at * p.y.nb0, end - at)
            else:
                n = min(end - at, row_x - column)
                copy_units(x, p.x.nb0, y + at * p.y.nb0, p.y.nb0, n, p.unit)
                at += n


def _convertible(node: Any) -> bool:
    return node.type.name in _PLAIN


def _bind_types(node: Any, builder: Any) -> dict[str, float]:
    return {"y_type": types.type_field(node), "x_type": types.type_field(node.src[0])}


def _scratch_bytes(node: Any, n_threads: int) -> int:
    return 4 * PIECE * n_threads


def _pairs(sources: tuple[str, ...], targets: tuple[str, ...]) -> Served:
    """The ops that convert: the target of cpy is a source, that of cast is its result."""
    cpy: Served = [("cpy", (x, y)) for x in sources for y in targets if x != y]
    cast: Served = [("cast", (x,)) for x in sources]
    return cpy + cast


@inline
def gather_piece(p: Record, start: Int, n: Int, piece: Int) -> None:
    """Elements start .. start + n - 1 of x, counted in ne order, as f32."""
    done = 0
    while done < n:
        row = quotient(start + done, p.x.ne0)
        column = start + done - row * p.x.ne0
        m = min(n - done, p.x.ne0 - column)
        x = row_ptr(p.x, row) + column * p.x.nb0
        read_elements(p.x_type, x, p.x.nb0, m, piece + 4 * done)
        done += m


_CONVERT = _pairs(_PLAIN, _PLAIN)


@kernel(
    *_CONVERT[0],
    args=CONVERT_ARGS,
    requires=_convertible,
    bind=_bind_types,
    scratch_bytes=_scratch_bytes,
    name="convert_plain",
    also=_CONVERT[1:],
)
def convert_plain(p: Record, ith: Int, nth: Int) -> None:
    """Between f32, f16, bf16 and i32, through pieces of f32."""
    per_row = n_segments(p.y.ne0, PIECE)
    tasks = n_rows(p.y) * per_row
    piece = p.scratch + 4 * PIECE * ith
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        row = quotient(task, per_row)
        start = (task - row * per_row) * PIECE
        n = min(PIECE, p.y.ne0 - start)
        gather_piece(p, row * p.y.ne0 + start, n, piece)
        write_elements(p.y_type, piece, row_ptr(p.y, row) + start * p.y.nb0, p.y.nb0, n)


def _quantize(type: str, write: Inline) -> None:
    served = _pairs(types.FLOATS, (type,))
    block, unit = TYPES[type].block_size, TYPES[type].type_size

    @kernel(
        *served[0],
        args=CONVERT_ARGS,
        requires=lambda node: node.type.name == type,
        bind=_bind_types,
        scratch_bytes=_scratch_bytes,
        name=f"quantize_{type}",
        also=served[1:],
    )
    def quantize(p: Record, ith: Int, nth: Int) -> None:
        """f32, f16 or bf16 of any strides to blocks."""
        per_row = n_segments(p.y.ne0, PIECE)
        tasks = n_rows(p.y) * per_row
        piece = p.scratch + 4 * PIECE * ith
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            row = quotient(task, per_row)
            start = (task - row * per_row) * PIECE
            n = min(PIECE, p.y.ne0 - start)
            gather_piece(p, row * p.y.ne0 + start, n, piece)
            write(piece, row_ptr(p.y, row) + quotient(start, block) * unit, n)


def _dequantize(type: str, read: Inline) -> None:
    block, unit = TYPES[type].block_size, TYPES[type].type_size

    @kernel(
        "cast",
        (type,),
        args=CONVERT_ARGS,
        requires=lambda node: node.type.name == "f32",
        bind=_bind_types,
        scratch_bytes=_scratch_bytes,
        name=f"dequantize_{type}",
        also=[("cpy", (type, "f32"))],
    )
    def dequantize(p: Record, ith: Int, nth: Int) -> None:
        """Blocks to f32 of any strides."""
        per_row = n_segments(p.x.ne0, PIECE)
        tasks = n_rows(p.x) * per_row
        piece = p.scratch + 4 * PIECE * ith
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            row = quotient(task, per_row)
            start = (task - row * per_row) * PIECE
            n = min(PIECE, p.x.ne0 - start)
            read(row_ptr(p.x, row) + quotient(start, block) * unit, piece, n)
            done = 0
            while done < n:
                at = row * p.x.ne0 + start + done
                target = quotient(at, p.y.ne0)
                column = at - target * p.y.ne0
                m = min(n - done, p.y.ne0 - column)
                y = row_ptr(p.y, target) + column * p.y.nb0
                write_elements(p.y_type, piece + 4 * done, y, p.y.nb0, m)
                done += m


for _type, _write in WRITERS.items():
    if TYPES[_type].is_quantized:
        _quantize(_type, _write)
for _type, _read in READERS.items():
    if TYPES[_type].is_quantized:
        _dequantize(_type, _read)
