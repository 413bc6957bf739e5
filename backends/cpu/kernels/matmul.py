"""mul_mat and mul_mat_id with weights: one kernel for each format, for any number of rows of x.

Quantised weights are packed once (formats/), float weights are read where they are stored. x is
quantised, or split into bf16, once for all products that read it. A unit of work is a group of 16
weight rows times a chunk of rows of x, and units that follow each other may be done together
(matmul_units.py); threads share them (matmul_work.py). An element of the result has the same bits
for any number of rows of x and of threads, and, except with weights of bf16, with and without AMX.
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
from ggmlpy.backends.cpu.kernels import matmul_lists, matmul_work
from ggmlpy.backends.cpu.kernels.matmul_activations import QUANTIZE, SPLIT
from ggmlpy.backends.cpu.kernels.matmul_groups import Groups, Sums
from ggmlpy.backends.cpu.kernels.matmul_lists import bind_float_rows, bind_lists, list_bytes
from ggmlpy.backends.cpu.kernels.matmul_units import unit_of, work_bytes
from ggmlpy.backends.cpu.kernels.matmul_work import bind_counters, do_units
from ggmlpy.backends.cpu.kernels.types import FLOATS
from ggmlpy.backends.cpu.simd.amx import TILES_BY
from ggmlpy.graph.tensor import Flag, Tensor

ARGS = np.dtype(
    [
        *matmul_lists.FIELDS,
        *matmul_work.FIELDS,
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
        "counters": bind_counters(builder),
    }


def declare(format: Format) -> Kernel:
    """The kernel for weights of one format."""
    unit = unit_of(format)
    multiply, most_groups = unit.multiply, unit.most_groups

    @inline
    def multiply_groups(
        p: Record, w: Int, group: Int, n_groups: Int, xs: Int, ys: Int, n: Int, scratch: Int
    ) -> None:
        at = 4 * GROUP * group
        groups = Groups(w + group * p.group_bytes, p.group_bytes, n_groups, p.y.ne0 - GROUP * group)
        bias = p.bias.ptr + at if p.bias.ptr != 0 else 0
        multiply(groups, p.x.ne0, xs, n, Sums(ys, at, 4 * GROUP, bias, True), scratch + p.work)

    @inline
    def groups_at_once(n: Int, chunk: Int) -> Int:
        return most_groups()

    do_share = do_units(unit, groups_at_once, multiply_groups)

    def matmul(p: Record, ith: Int, nth: Int) -> None:
        do_share(p, p.scratch + ith * p.scratch_stride, ith, nth)

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
