"""mul_mat and mul_mat_id with weights: one kernel for each format, for any number of rows of x.

The weight is repacked once (formats/), x is quantised once for all products that read it. A unit of
work is a group of 16 weight rows times a chunk of rows of x, which it takes 8, 4, 2 or 1 at a time:
the width changes how often weights are read, never the order in which a sum is built. So an
element of the result has the same bits whatever else is computed with it, and by how many threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.builder import PlanBuilder
from ggmlpy.backends.cpu.formats import activations
from ggmlpy.backends.cpu.formats.base import GROUP, Format
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
from ggmlpy.backends.cpu.formats.ternary import TQ1_0_FORMAT, TQ2_0_FORMAT
from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Kernel, Record, inline, kernel
from ggmlpy.backends.cpu.kernels import matmul_lists
from ggmlpy.backends.cpu.kernels.matmul_activations import QUANTIZE
from ggmlpy.backends.cpu.kernels.matmul_lists import (
    bind_float_rows,
    bind_lists,
    clear_rows_without_matrix,
    list_bytes,
    list_places,
    make_lists,
)
from ggmlpy.backends.cpu.kernels.types import FLOATS
from ggmlpy.backends.cpu.rows import share
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.memory import load_f32x16_part, load_i64
from ggmlpy.backends.cpu.simd.product import add_to_each, load_rows, store_sums
from ggmlpy.backends.cpu.simd.tile import tile_f32x16
from ggmlpy.tensor import Flag, Tensor

ARGS = np.dtype(
    [
        *matmul_lists.FIELDS,
        ("packed", "i8"),
        ("group_bytes", "i8"),
        ("bias", TENSOR),  # added to every row of the result (fusion.py); absent otherwise
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
)
_CHUNK_BYTES = 1 << 19  # rows of x that one pass over the weights serves: half a 1 MB L2 cache


def requires(node: Tensor) -> bool:
    """A weight that may be repacked: a contiguous leaf that never changes."""
    weight = node.src[0]
    return weight.is_leaf and Flag.WEIGHT in weight.flags and weight.contiguous


def scratch_bytes(node: Tensor, n_threads: int) -> int:
    return n_threads * list_bytes(node)


def bind(format: Format, node: Tensor, builder: PlanBuilder) -> dict[str, Any]:
    """The record's fields that are not operands."""
    weight, x = node.src[:2]
    k = x.ne[0]
    if format.quantizes_x:
        row_bytes = activations.row_bytes(k)
        rows = builder.activations(x, QUANTIZE[x.type.name], row_bytes * x.spec.n_rows)
        fields = bind_lists(node, rows, row_bytes)
    else:
        fields = bind_float_rows(node, builder)
    packed = builder.packed(weight, format)
    return fields | {
        "packed": packed,
        "group_bytes": format.group_bytes(k),
        "scratch_stride": list_bytes(node),
    }


@inline
def chunk_rows(n: Int, n_groups: Int, row_bytes: Int, nth: Int) -> Int:
    """Rows of x in a unit of work: what fits the cache, but enough units for every thread."""
    fitting = quotient(_CHUNK_BYTES, row_bytes)
    balanced = quotient(n * n_groups, 4 * nth)
    return max(8, min(fitting, balanced) & -8)


def unit_of(format: Format) -> Inline:
    """`unit(w, k, xs, ys, n, at, n_lanes, bias)`: the packed group at w times n rows listed at xs.

    The first `n_lanes` sums of each go to the rows listed at ys, `at` bytes into each, after the
    numbers at address `bias` have been added (none if it is 0).
    """
    accumulate = format.accumulate

    @inline
    def tile(
        zeros: Any, w: Int, k: Int, xs: Int, ys: Int, at: Int, n_lanes: Int, bias: Int
    ) -> None:
        """A group times as many rows of x as `zeros` is wide."""
        sums = accumulate(zeros, w, k, load_rows(zeros, xs))
        if bias != 0:  # loaded only now: no register holds it while sums are built
            sums = add_to_each(sums, load_f32x16_part(bias, n_lanes))
        store_sums(sums, load_rows(zeros, ys), at, n_lanes)

    @inline
    def unit(w: Int, k: Int, xs: Int, ys: Int, n: Int, at: Int, n_lanes: Int, bias: Int) -> None:
        end = xs + 8 * n
        while xs + 64 <= end:
            tile(tile_f32x16(8), w, k, xs, ys, at, n_lanes, bias)
            xs += 64
            ys += 64
        if xs + 32 <= end:
            tile(tile_f32x16(4), w, k, xs, ys, at, n_lanes, bias)
            xs += 32
            ys += 32
        if xs + 16 <= end:
            tile(tile_f32x16(2), w, k, xs, ys, at, n_lanes, bias)
            xs += 16
            ys += 16
        if xs < end:
            tile(tile_f32x16(1), w, k, xs, ys, at, n_lanes, bias)

    return unit


def declare(format: Format) -> Kernel:
    """The kernel for weights of one format."""
    unit = unit_of(format)

    @inline
    def multiply(p: Record, w: Int, xs: Int, ys: Int, n: Int, ith: Int, nth: Int) -> None:
        """One matrix times the `n` rows of x that need it: what of it is thread `ith`'s share."""
        k, m = p.x.ne0, p.y.ne0
        n_groups = quotient(m + GROUP - 1, GROUP)
        chunk = chunk_rows(n, n_groups, p.row_bytes, nth)
        n_units = n_groups * quotient(n + chunk - 1, chunk)
        for i in range(share(n_units, ith, nth), share(n_units, ith + 1, nth)):
            i_chunk = quotient(i, n_groups)
            group = i - i_chunk * n_groups
            first = i_chunk * chunk
            n_here = min(chunk, n - first)
            w_group = w + group * p.group_bytes
            at, n_lanes = 4 * GROUP * group, m - GROUP * group
            bias = p.bias.ptr + at if p.bias.ptr != 0 else 0
            unit(w_group, k, xs + 8 * first, ys + 8 * first, n_here, at, n_lanes, bias)

    def matmul(p: Record, ith: Int, nth: Int) -> None:
        scratch = p.scratch + ith * p.scratch_stride
        starts, xs, ys, _ = list_places(p, scratch)
        make_lists(p, starts, xs, ys)
        n_matrices = p.a2 * p.a3
        matrix_bytes = quotient(p.y.ne0 + GROUP - 1, GROUP) * p.group_bytes
        for j in range(n_matrices):
            first, end = load_i64(starts + 8 * j), load_i64(starts + 8 * j + 8)
            if first < end:
                w = p.packed + j * matrix_bytes
                multiply(p, w, xs + 8 * first, ys + 8 * first, end - first, ith, nth)
        clear_rows_without_matrix(p, starts, ys, ith, nth)

    weight = format.type_name
    return kernel(
        "mul_mat",
        (weight, "f32"),
        args=ARGS,
        requires=requires,
        scratch_bytes=scratch_bytes,
        bind=lambda node, builder: bind(format, node, builder),
        name=f"matmul_{weight}",
        also=[
            *(("mul_mat", (weight, x)) for x in FLOATS if x != "f32"),
            *(("mul_mat_id", (weight, x, "i32")) for x in FLOATS),
        ],
    )(matmul)


KERNELS = {format.type_name: declare(format) for format in FORMATS}
