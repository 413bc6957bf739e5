"""Calls of ops that break a rule each, and what the message must say.

Here those of views, copies, elementwise ops, norms, products, rows, shapes and reductions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import ggmlpy.ops
from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from tests.ops.values import blank, f16, f32, i32, transposed

BROKEN: list[tuple[Callable[[], Tensor], str]] = [
    # views
    (lambda: ops.view_2d(f32(8), 2, 2, 6, 0), "view: x is f32 [8]: nb1 is 6: it must be a multi"),
    (lambda: ops.view_2d(f32(8), 2, 2, -8, 8), "nb1 is -8"),
    (lambda: ops.view_1d(f32(8), 2, 2), "offset is 2: it must be a multiple of f32's 4 bytes"),
    (lambda: ops.view_1d(f32(8), 2, -4), "offset is -4"),
    (lambda: ops.view_4d(f32(8), 1, 2**20, 2**20, 2**20, 0, 0, 0, 0), "it must have at most 2^59"),
    (lambda: ops.view_1d(f32(8), 9, 0), "the view ends at byte 36 and x at byte 32"),
    (lambda: ops.view_2d(f32(8, 4), 4, 4, 48, 0), "the view ends at byte 160 and x at byte 128"),
    (lambda: ops.view_1d(blank("q8_0", 64), 16, 0), "blocks of 32 elements, a row has 16"),
    (lambda: ops.view_1d(blank("q8_0", 64), 32, 32), "offset is 32: it must be a multiple of q8_0"),
    (lambda: ops.reshape_2d(f32(8), 3, 2), "ne [3, 2] has 6 elements and x has 8: they must be"),
    (
        lambda: ops.reshape_1d(transposed(4, 2), 8),
        "x must be contiguous (take ops.cont of it first)",
    ),
    (lambda: ops.reshape_2d(blank("q8_0", 64), 16, 4), "blocks of 32 elements, a row has 16"),
    (lambda: ops.reshape_2d(f32(8), 0, 8), "ne is [0, 8]"),
    (lambda: ops.permute(f32(8), 0, 1, 2, 2), "axes are [0, 1, 2, 2]: they must be 0, 1, 2 and 3"),
    (lambda: ops.permute(blank("q8_0", 32, 2), 1, 0, 2, 3), "dimension 0 of q8_0 must stay"),
    (lambda: ops.transpose(blank("q4_K", 256, 2)), "dimension 0 of q4_K must stay dimension 0"),
    # copies
    (lambda: ops.cont_2d(f32(8), 3, 3), "ne [3, 3] has 9 elements and x has 8"),
    (lambda: ops.cast(i32(8), "f16"), "there is no copy from i32 to f16"),
    (lambda: ops.cast(f32(256), "iq2_xs"), "there is no copy from f32 to iq2_xs"),
    (lambda: ops.cast(blank("q8_0", 32), "q4_0"), "there is no copy from q8_0 to q4_0"),
    (lambda: ops.cast(f32(33), "q8_0"), "blocks of 32 elements, a row has 33"),
    (lambda: ops.cpy(f32(8), f32(9)), "x has 8 elements and dst has 9: they must be equal"),
    # elementwise
    (lambda: ops.mul(i32(4), f32(4)), "mul: a is i32 [4], b is f32 [4]: a must be f32, f16 or"),
    (lambda: ops.mul(f32(4), i32(4)), "b must be f32, f16 or bf16"),
    (lambda: ops.mul(f32(4, 3), f32(4, 2)), "every dimension of a must be a multiple of b's"),
    (lambda: ops.add(f32(4), f32(8)), "every dimension of a must be a multiple of b's"),
    (lambda: ops.add(blank("iq2_xs", 256), f32(256)), "a type with a quantiser, iq2_xs has none"),
    (lambda: ops.add(blank("q8_0", 32), f16(32)), "b must be f32 where a is quantised"),
    (lambda: ops.add(blank("q8_0", 32), f32(5)), "every dimension of a must be a multiple of b's"),
    (lambda: ops.add1(f32(4), f32(2)), "b has 2 elements: it must have one"),
    (lambda: ops.add_id(f16(4, 2, 3), f32(4, 9), i32(2, 3)), "a and b must be f32"),
    (lambda: ops.add_id(f32(4, 2, 3), f32(4, 9), f32(2, 3)), "ids must be i32"),
    (lambda: ops.add_id(f32(4, 2, 3), f32(5, 9), i32(2, 3)), "first dimensions 4 and 5 must be"),
    (lambda: ops.add_id(f32(4, 2, 3, 2), f32(4, 9), i32(2, 3)), "a must have at most 3 dimen"),
    (lambda: ops.add_id(f32(4, 2, 3), f32(4, 9, 2), i32(2, 3)), "b must have at most 2 dimen"),
    (lambda: ops.add_id(f32(4, 2, 3), f32(4, 9), i32(3, 2)), "ids must be [2, 3]: one for each"),
    (lambda: ops.sqr(i32(4)), "x must be f32, f16 or bf16"),
    (lambda: ops.clamp(f32(4), 2, 1), "min 2 must not be above max 1"),
    (lambda: ops.silu(transposed(4, 3)), "silu: x is f32 [4, 3]: x must have contiguous rows"),
    # gated
    (lambda: ops.swiglu(blank("bf16", 4)), "swiglu: a is bf16 [4]: a must be f32 or f16"),
    (lambda: ops.swiglu(transposed(4, 3)), "a must have contiguous rows"),
    (lambda: ops.swiglu(f32(5)), "a's rows must split in halves, they have 5 columns"),
    (lambda: ops.swiglu_split(f32(4), f32(5)), "a and b must have the same shape and type"),
    (lambda: ops.swiglu_split(f32(4), f16(4)), "a and b must have the same shape and type"),
    (lambda: ops.swiglu_split(f32(4, 3), transposed(4, 3)), "b must have contiguous rows"),
    (
        lambda: ggmlpy.ops.glu.Swiglu(swapped=True).node(f32(4), f32(4)),
        "swapped is for one input: give a and b in the other order",
    ),
    # normalisations
    (lambda: ops.rms_norm(f16(4), 1e-5), "x must be f32 with contiguous rows"),
    (lambda: ops.norm(transposed(4, 3), 1e-5), "x must be f32 with contiguous rows"),
    (lambda: ops.l2_norm(transposed(4, 3), 1e-5), "x must be f32 with contiguous rows"),
    (lambda: ops.group_norm(transposed(4, 3), 1, 1e-5), "x must be f32 and contiguous"),
    (lambda: ops.group_norm(f32(4, 3, 6), 7, 1e-5), "n_groups is 7: it must be 1 to 6"),
    # products
    (
        lambda: ops.mul_mat(f16(14, 4), f32(4, 7)),
        "mul_mat: weight is f16 [14, 4], x is f32 [4, 7]: first dimensions 14 and 4 differ",
    ),
    (lambda: ops.mul_mat(i32(4, 3), f32(4)), "the weight must be quantised, f32, f16 or bf16"),
    (lambda: ops.mul_mat(transposed(4, 3), f32(4)), "the weight must have contiguous rows"),
    (lambda: ops.mul_mat(f32(4, 3), i32(4)), "x must be f32, f16 or bf16"),
    (
        lambda: ops.mul_mat(f32(4, 3, 2), f32(4, 1, 3)),
        "dimensions 2 and 3 of x [3, 1] must be multiples of the weight's [2, 1]",
    ),
    (lambda: ops.mul_mat_id(f32(4, 3, 5), f32(4, 1, 2), f32(2, 2)), "ids must be i32"),
    (
        lambda: ops.mul_mat_id(f32(4, 3, 5, 2), f32(4, 1, 2), i32(2, 2)),
        "the weight must have at most",
    ),
    (lambda: ops.mul_mat_id(f32(4, 3, 5), f32(4, 1, 2, 2), i32(2, 2)), "x must have at most 3 dim"),
    (lambda: ops.mul_mat_id(f32(4, 3, 5), f32(4, 1, 2), i32(2, 3)), "ids must be [2, 2]: a list"),
    (
        lambda: ops.mul_mat_id(f32(4, 3, 5), f32(4, 2, 2), i32(3, 2)),
        "dimension 1 of x, 2, must divide the 3 experts of a token",
    ),
    # rows
    (
        lambda: ops.get_rows(f32(4, 3), f32(2)),
        "get_rows: x is f32 [4, 3], ids is f32 [2]: ids must",
    ),
    (lambda: ops.get_rows(transposed(4, 3), i32(2)), "x must have contiguous rows"),
    (lambda: ops.get_rows(blank("i8", 4, 3), i32(2)), "x must be floats or i32"),
    (lambda: ops.get_rows(f32(4, 3, 2), i32(2)), "ids must be [2, 2, 1]: a list for every matrix"),
    (lambda: ops.set_rows(f32(4, 9), i32(4, 2), i32(2)), "x must be f32 or f16"),
    (lambda: ops.set_rows(f32(4, 9), f32(4, 2), f32(2)), "ids must be i64 or i32"),
    (lambda: ops.set_rows(blank("iq2_xs", 256, 9), f32(256, 2), i32(2)), "dst must be of a float"),
    (
        lambda: ops.set_rows(f32(4, 9), transposed(4, 2), i32(2)),
        "x and dst must have contiguous rows",
    ),
    (lambda: ops.set_rows(f32(5, 9), f32(4, 2), i32(2)), "dst must be [4, 9, 1, 1]: like x but"),
    (lambda: ops.set_rows(f32(4, 9), f32(4, 2), i32(3)), "ids must have 2 entries, one for each"),
    (
        lambda: ops.set_rows(f32(4, 9, 3), f32(4, 2, 3), i32(2, 2)),
        "dimensions 1 and 2 of ids must divide 3 and 1, its dimension 3 must be 1",
    ),
    # shapes
    (lambda: ops.concat(f32(4), f32(4), 4), "dim is 4: it must be 0 to 3"),
    (lambda: ops.concat(f32(4), f16(4), 0), "a and b must have the same type"),
    (lambda: ops.concat(blank("q8_0", 32), blank("q8_0", 32), 1), "a and b must not be quantised"),
    (lambda: ops.concat(f32(4, 2), f32(4, 3), 0), "a and b must be equal in every dimension but 0"),
    (lambda: ops.repeat_4d(blank("q8_0", 32), 64, 1, 1, 1), "x must not be quantised"),
    (lambda: ops.repeat_4d(f32(4), 6, 1, 1, 1), "every dimension of [6] must be a multiple of x's"),
    (lambda: ops.pad(f16(4), 1, 0, 0, 0), "x must be f32"),
    (lambda: ops.pad(f32(4), -1, 0, 0, 0), "paddings are [(0, -1), (0, 0), (0, 0), (0, 0)]"),
    (lambda: ops.arange(1, 1, 1), "from 1 to 1 by 1 is no value: there must be at least one"),
    (lambda: ops.arange(0, 1, 0), "from 0 to 1 by 0 is no value"),
    (lambda: ops.arange(0, math.inf, 1), "from 0 to inf by 1 is no value"),
    (lambda: ops.arange(0, math.nan, 1), "from 0 to nan by 1 is no value"),
    # reductions and orders
    (lambda: ops.sum(f16(4)), "x must be f32 with contiguous rows"),
    (lambda: ops.argmax(f32(4, 3, 2)), "x must have at most 2 dimensions"),
    (lambda: ops.argsort(f16(4), 0), "x must be f32 with contiguous rows"),
    (lambda: ops.argsort(f32(4), 2), "order is 2: it must be 0 (up) or 1 (down)"),
    (lambda: ops.top_k(f16(4), 2), "x must be f32 with contiguous rows"),
    (lambda: ops.top_k(f32(4), 5), "k is 5: it must be 1 to 4, the columns"),
    (lambda: ops.argsort_top_k(f32(4), 0), "k is 0: it must be 1 to 4, the columns"),
]
