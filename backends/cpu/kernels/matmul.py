"""mul_mat and mul_mat_id with weights: one kernel for each format, for any number of rows of x.

Quantised weights are packed once (formats/), float weights are read where they are stored. x is
quantised, or split into bf16, once for all products that read it. A unit of work is a group of 16
weight rows times a chunk of rows of x, and units that follow each other may be done together
(matmul_units.py). An element of the result has the same bits for any number of rows of x and of
threads, and, except with weights of bf16, with and without AMX.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.builder import PlanBuilder
from ggmlpy.backends.cpu.formats import activations, bf16_parts
from ggmlpy.backends.cpu.formats.base import GROUP, Format
from ggmlpy.backends.cpu.formats.bf16_tiles import WholeUnits
from ggmlpy.backends.cpu.formats.blocks32 import (
    Q4_0_FORMAT,
    Q4_1_FORMAT,
    Q5_0_FORMAT,
    Q5_1_FORMAT,
    Q8_0_FORMAT,
)
from ggmlpy.backends.cpu.formats.floats import BF16_FORMAT, F16_FORMAT, F32_FORMAT
from ggmlpy.backends.cpu.formats.k_quants import (
    Q2_K_FORMAT,
    Q3_K_FORMAT,
    Q4_K_FORMAT,
    Q5_K_FORMAT,
    Q6_K_FORMAT,
)
from ggmlpy.backends.cpu.formats.tables import (
    IQ4_NL_FORMAT,
    IQ4_XS_FORMAT,
    MXFP4_FORMAT,
    NVFP4_FORMAT,
)
from ggmlpy.backends.cpu.formats.ternary import (
    Q1_0_FORMAT,
    Q2_0_FORMAT,
    TQ1_0_FORMAT,
    TQ2_0_FORMAT,
)
from ggmlpy.backends.cpu.kernel import TENSOR, Int, Kernel, Record, inline, kernel
from ggmlpy.backends.cpu.kernels import matmul_lists
from ggmlpy.backends.cpu.kernels.matmul_activations import QUANTIZE, SPLIT
from ggmlpy.backends.cpu.kernels.matmul_groups import Groups, Sums
from ggmlpy.backends.cpu.kernels.matmul_lists import (
    bind_float_rows,
    bind_lists,
    clear_rows_without_matrix,
    list_addresses,
    list_bytes,
    make_lists,
)
from ggmlpy.backends.cpu.kernels.matmul_units import chunk_rows, unit_of, work_bytes
from ggmlpy.backends.cpu.kernels.turns import (
    LEAST_ROWS,
    N_COUNTERS,
    Range,
    cut,
    end_turns,
    first_piece,
    next_piece,
    units_of,
)
from ggmlpy.backends.cpu.kernels.types import FLOATS
from ggmlpy.backends.cpu.rows import n_rows
from ggmlpy.backends.cpu.simd.amx import TILES_BY
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.memory import load_i64
from ggmlpy.graph.tensor import Flag, Tensor

ARGS = np.dtype(
    [
        *matmul_lists.FIELDS,
        ("weight", "i8"),
        ("group_bytes", "i8"),
        ("matrix_bytes", "i8"),
        ("work", "i8"),  # offset of the unit's memory in a thread's scratch memory
        ("counters", "i8"),  # of the pieces that threads take (turns.py)
        ("bias", TENSOR),  # added to every row of the result in mul_mat+add
    ],
    align=True,
)
FORMATS = (
    F32_FORMAT,
    F16_FORMAT,
    BF16_FORMAT,
    Q8_0_FORMAT,
    Q4_0_FORMAT,
    Q4_1_FORMAT,
    Q5_0_FORMAT,
    Q5_1_FORMAT,
    Q2_K_FORMAT,
    Q3_K_FORMAT,
    Q4_K_FORMAT,
    Q5_K_FORMAT,
    Q6_K_FORMAT,
    IQ4_NL_FORMAT,
    IQ4_XS_FORMAT,
    MXFP4_FORMAT,
    NVFP4_FORMAT,
    TQ1_0_FORMAT,
    TQ2_0_FORMAT,
    Q1_0_FORMAT,
    Q2_0_FORMAT,
)


def requires(node: Tensor) -> bool:
    """A weight: a contiguous leaf that never changes, so it may be packed."""
    weight = node.src[0]
    return weight.is_leaf and Flag.WEIGHT in weight.flags and weight.contiguous


def lists_stride(node: Tensor) -> int:
    """Bytes of a thread's lists, up to the next cache line."""
    return -(-list_bytes(node) // 64) * 64


def _stride(format: Format, node: Tensor, has_tiles: bool = True) -> int:
    """Bytes of scratch memory for a thread, at most: its lists, then the unit's memory."""
    work = work_bytes(format, node.src[1].ne[0], node.spec.n_rows, has_tiles)
    return lists_stride(node) + work


def bind(format: Format, node: Tensor, builder: PlanBuilder) -> dict[str, Any]:
    """The record's fields that are not operands."""
    weight, x = node.src[:2]
    k = x.ne[0]
    if format.quantizes_x:
        row_bytes = activations.row_bytes(k)
        rows = builder.activations(x, QUANTIZE[x.type.name], row_bytes * x.spec.n_rows)
        fields = bind_lists(node, rows, row_bytes)
    elif isinstance(format.tiles, WholeUnits) and builder.isa.has & TILES_BY:
        row_bytes = bf16_parts.row_bytes(k)
        rows = builder.activations(x, SPLIT[x.type.name], row_bytes * x.spec.n_rows)
        fields = bind_lists(node, rows, row_bytes)
    else:
        fields = bind_float_rows(node, builder)
    return fields | {
        "weight": format.address(weight, builder),
        "group_bytes": format.group_bytes(k),
        "matrix_bytes": format.matrix_bytes(k, weight.ne[1]),
        "scratch_stride": _stride(format, node, bool(builder.isa.has & TILES_BY)),
        "work": lists_stride(node),
        "counters": builder.counters(N_COUNTERS),
    }


def declare(format: Format) -> Kernel:
    """The kernel for weights of one format."""
    unit = unit_of(format)
    begin, take, multiply_unit, end = unit.begin, unit.take, unit.multiply, unit.end
    most_rows, row_step, most_groups = unit.most_rows, unit.row_step, unit.most_groups

    @inline
    def multiply_units(
        p: Record, w: Int, xs: Int, ys: Int, n: Int, chunk: Int, units: Range, taken: Int, work: Int
    ) -> Int:
        """Units of one matrix times the `n` rows of x that need it. `taken` is the chunk that the
        thread took last; returns that for the next units."""
        k, m = p.x.ne0, p.y.ne0
        n_groups = quotient(m + GROUP - 1, GROUP)
        i, last = units
        while i < last:
            i_chunk = quotient(i, n_groups)
            group = i - i_chunk * n_groups
            first = i_chunk * chunk
            n_here = min(chunk, n - first)
            n_groups_here = min(most_groups(), n_groups - group, last - i)
            w_group = w + group * p.group_bytes
            groups = Groups(w_group, p.group_bytes, n_groups_here, m - GROUP * group)
            at, x = 4 * GROUP * group, xs + 8 * first
            bias = p.bias.ptr + at if p.bias.ptr != 0 else 0
            if i_chunk != taken:
                take(x, n_here, k, work)
                taken = i_chunk
            sums = Sums(ys + 8 * first, at, 4 * GROUP, bias, True)
            multiply_unit(groups, k, x, n_here, sums, work)
            i += n_groups_here
        return taken

    @inline
    def multiply(
        p: Record, w: Int, xs: Int, ys: Int, n: Int, work: Int, counters: Int, ith: Int, nth: Int
    ) -> None:
        """Thread `ith`'s part of one matrix."""
        n_groups = quotient(p.y.ne0 + GROUP - 1, GROUP)
        chunk = chunk_rows(n, n_groups, most_rows(n, p.x.ne0, p.row_bytes), row_step(), nth)
        n_units = n_groups * quotient(n + chunk - 1, chunk)
        pieces = cut(n_units, most_groups(), counters if n >= LEAST_ROWS else 0, ith, nth)
        piece, taken = first_piece(pieces), -1
        while piece < pieces.n:
            units = units_of(pieces, piece)
            taken = multiply_units(p, w, xs, ys, n, chunk, units, taken, work)
            piece = next_piece(pieces)

    def matmul(p: Record, ith: Int, nth: Int) -> None:
        scratch = p.scratch + ith * p.scratch_stride
        starts, xs, ys, _ = list_addresses(p, scratch)
        make_lists(p, starts, xs, ys)
        begin(n_rows(p.y), scratch + p.work)
        n_matrices = p.a2 * p.a3
        counters = p.counters if n_matrices == 1 and nth > 1 else 0
        for j in range(n_matrices):
            first, last = load_i64(starts + 8 * j), load_i64(starts + 8 * j + 8)
            if first < last:
                w = p.weight + j * p.matrix_bytes
                x, y = xs + 8 * first, ys + 8 * first
                multiply(p, w, x, y, last - first, scratch + p.work, counters, ith, nth)
        end_turns(counters, nth)
        end(n_rows(p.y))
        clear_rows_without_matrix(p, starts, ys, ith, nth)

    weight = format.type_name
    return kernel(
        "mul_mat",
        (weight, "f32"),
        args=ARGS,
        requires=requires,
        scratch_bytes=lambda node, n_threads: n_threads * _stride(format, node),
        bind=lambda node, builder: bind(format, node, builder),
        name=f"matmul_{weight}",
        also=[
            *(("mul_mat", (weight, x)) for x in FLOATS if x != "f32"),
            *(("mul_mat_id", (weight, x, "i32")) for x in FLOATS),
            *(("mul_mat+add", (weight, x, "f32")) for x in FLOATS),
            *(("mul_mat_id+add", (weight, x, "i32", "f32")) for x in FLOATS),
        ],
    )(matmul)


KERNELS = {format.type_name: declare(format) for format in FORMATS}
