"""A gated linear unit with the two products that it reads: act(gate x) * (up x).

    MATMUL_GLU[weight type]   y = gated(gate x, up x)    both weights of one type and shape

One kernel serves all ops of gated units, told apart by a field of its record: their own code is
small beside that of the products.

A unit of work is a group of 16 rows of each weight times a chunk of rows of x, by the code of
matmul.py; each number is rounded as by three separate kernels. Only a tile of each product exists
at a time, 16 by up to 8 numbers (64 with AMX) in the thread's scratch memory. Where one tile has
all rows of x, weights may come from memory, and a thread reads them in long streams: many groups of
the gate's, then as many of the other's. Alternating between single groups took 8 % longer
(q4_0 and f16 [2048, 8192], one row of x, one core of a Sapphire Rapids Xeon).

    a thread's scratch   lists (matmul_lists.py) | tiles of gate x | a tile of up x | addresses |
                         memory of a unit (matmul_units.py)

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.builder import PlanBuilder
from ggmlpy.backends.cpu.formats.base import GROUP, Format
from ggmlpy.backends.cpu.kernel import Choice, Inline, Int, Kernel, Record, inline, kernel
from ggmlpy.backends.cpu.kernels import matmul, matmul_lists
from ggmlpy.backends.cpu.kernels.glu import GATED
from ggmlpy.backends.cpu.kernels.matmul import FORMATS, lists_stride
from ggmlpy.backends.cpu.kernels.matmul_lists import (
    clear_rows_without_matrix,
    list_addresses,
    make_lists,
)
from ggmlpy.backends.cpu.kernels.matmul_units import chunk_rows, unit_of, work_bytes
from ggmlpy.backends.cpu.kernels.types import FLOATS
from ggmlpy.backends.cpu.rows import n_rows, share
from ggmlpy.backends.cpu.simd.amx import TILES_BY
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.memory import (
    load_f32x16,
    load_i64,
    store_f32x16_part,
    store_i64,
)
from ggmlpy.graph.tensor import Tensor

GLUS = tuple(GATED)  # the field `glu` of a record is an index of it
PARAMS = {name for params, _ in GATED.values() for name in params}
FIELDS = [
    *matmul_lists.FIELDS,
    *(
        (name, "i8")
        for name in ("weight", "weight_up", "group_bytes", "matrix_bytes", "tiles", "work", "glu")
    ),
    *((name, "f4") for name in sorted(PARAMS)),
]
ROWS, ROWS_BY_TILES = 8, 64  # of x at a time; with AMX weights unpacked once serve all of them
RUN = 256  # sums of a group each, all of them less than half an L1 cache
_SUM_BYTES = 4 * GROUP
_TILE_BYTES = ROWS_BY_TILES * _SUM_BYTES
_UP = RUN * _SUM_BYTES  # where the tile of up x is, and after it the addresses of the first one
_ADDRESSES = _UP + _TILE_BYTES
_TILES_BYTES = _ADDRESSES + 8 * ROWS_BY_TILES


@inline
def _rows() -> Int:
    return ROWS


@inline
def _rows_by_tiles() -> Int:
    return ROWS_BY_TILES


def _stride(format: Format, gate: Tensor) -> int:
    return lists_stride(gate) + _TILES_BYTES + work_bytes(format, gate.spec.n_rows)


def _requires(node: Tensor) -> bool:
    return all(matmul.requires(product) for product in node.src)


def _bind(format: Format, node: Tensor, builder: PlanBuilder) -> dict[str, Any]:
    """`node` is the gated unit, whose sources are the two products."""
    gate, up = node.src
    fields = matmul.bind(format, gate, builder)
    assert node.op is not None
    return {
        **fields,
        "tiles": lists_stride(gate),
        "work": lists_stride(gate) + _TILES_BYTES,
        "weight_up": format.address(up.src[0], builder),
        "scratch_stride": _stride(format, gate),
        "glu": GLUS.index(node.op.name),
        **dict.fromkeys(PARAMS - node.op.params().keys(), 0.0),  # those that the op does not have
    }


def _first_of(i_glu: int) -> Inline:
    """gated(p, gate, up) of the op that the record names, one of GLUS[i_glu:]."""
    gated = GATED[GLUS[i_glu]][1]
    if i_glu == len(GLUS) - 1:
        return gated
    other = _first_of(i_glu + 1)

    @inline
    def named(p: Record, gate: Any, up: Any) -> Any:
        if p.glu == i_glu:
            return gated(p, gate, up)
        return other(p, gate, up)

    return named


_gated = _first_of(0)


def _declare(format: Format) -> Kernel:
    unit = unit_of(format)
    begin, multiply_unit, end_units, row_step = unit.begin, unit.multiply, unit.end, unit.row_step
    rows_at_once = _rows if format.tiles is None else Choice(TILES_BY, _rows_by_tiles, _rows)

    @inline
    def combine(p: Record, gate: Int, up: Int, ys: Int, n: Int, at: Int, n_lanes: Int) -> None:
        """The gated unit of two tiles, to the result."""
        for i in range(n):
            v = _gated(p, load_f32x16(gate + _SUM_BYTES * i), load_f32x16(up + _SUM_BYTES * i))
            store_f32x16_part(load_i64(ys + 8 * i) + at, v, n_lanes)

    @inline
    def multiply(
        p: Record, w: Int, xs: Int, ys: Int, n: Int, scratch: Int, ith: Int, nth: Int
    ) -> None:
        """Thread `ith`'s share of the matrices at `w` times the `n` rows of x that need them."""
        n_groups = quotient(p.y.ne0 + GROUP - 1, GROUP)
        chunk = chunk_rows(n, n_groups, p.row_bytes, row_step(), nth)
        n_units = n_groups * quotient(n + chunk - 1, chunk)
        rows = rows_at_once()
        run = quotient(RUN, n) if n <= min(rows, chunk) else 1
        tiles, work = scratch + p.tiles, scratch + p.work
        end = share(n_units, ith + 1, nth)
        for start in range(share(n_units, ith, nth), end, run):
            i_chunk = quotient(start, n_groups)
            group = start - i_chunk * n_groups
            last = min(n, (i_chunk + 1) * chunk)
            for row in range(i_chunk * chunk, last, rows):
                n_here = min(rows, last - row)
                x = xs + 8 * row
                for is_up in range(2):
                    for i in range(min(run, end - start)):
                        w_group = w + is_up * (p.weight_up - p.weight)
                        w_group += (group + i) * p.group_bytes
                        gate = i * n_here * _SUM_BYTES
                        to = _UP if is_up == 1 else gate
                        sums, n_lanes = tiles + _ADDRESSES, p.y.ne0 - GROUP * (group + i)
                        multiply_unit(w_group, p.x.ne0, x, sums, n_here, to, n_lanes, 0, work)
                        if is_up == 1:
                            at, y = _SUM_BYTES * (group + i), ys + 8 * row
                            combine(p, tiles + gate, tiles + _UP, y, n_here, at, n_lanes)

    def matmul_glu(p: Record, ith: Int, nth: Int) -> None:
        scratch = p.scratch + ith * p.scratch_stride
        starts, xs, ys, _ = list_addresses(p, scratch)
        make_lists(p, starts, xs, ys)
        for i in range(rows_at_once()):
            store_i64(scratch + p.tiles + _ADDRESSES + 8 * i, scratch + p.tiles + _SUM_BYTES * i)
        begin(n_rows(p.y), scratch + p.work)
        for j in range(p.a2 * p.a3):
            first, last = load_i64(starts + 8 * j), load_i64(starts + 8 * j + 8)
            if first < last:
                w = p.weight + j * p.matrix_bytes
                multiply(p, w, xs + 8 * first, ys + 8 * first, last - first, scratch, ith, nth)
        end_units(n_rows(p.y))
        clear_rows_without_matrix(p, starts, ys, ith, nth)

    weights = format.type_name, format.type_name
    served = [
        *((f"mul_mat+mul_mat+{op}", (*weights, x)) for op in GLUS for x in FLOATS),
        *((f"mul_mat_id+mul_mat_id+{op}", (*weights, x, "i32")) for op in GLUS for x in FLOATS),
    ]
    return kernel(
        *served[0],
        args=np.dtype(FIELDS, align=True),
        requires=_requires,
        scratch_bytes=lambda node, n_threads: n_threads * _stride(format, node.src[0]),
        bind=lambda node, builder: _bind(format, node, builder),
        name=f"matmul_glu_{format.type_name}",
        also=served[1:],
    )(matmul_glu)


MATMUL_GLU = {format.type_name: _declare(format) for format in FORMATS}
