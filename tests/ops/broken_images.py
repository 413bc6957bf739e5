"""Calls of ops of images, regions and triangles that break a rule each; see broken_rules.py."""

from __future__ import annotations

from collections.abc import Callable

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from tests.ops.values import blank, f32, i32, transposed

BROKEN_IMAGES: list[tuple[Callable[[], Tensor], str]] = [
    (lambda: ops.repeat_back(i32(4), f32(2)), "x must be f32 with contiguous rows"),
    (lambda: ops.repeat_back(f32(4), f32(3)), "every dimension of x must be a multiple of [3]"),
    (lambda: ops.pad_reflect_1d(transposed(4, 3), 1, 1), "x must be f32 with contiguous rows"),
    (lambda: ops.pad_reflect_1d(f32(4), 4, 0), "paddings are 4 and 0: they must be 0 to 3"),
    (lambda: ops.pad_reflect_1d(f32(4), 0, -1), "paddings are 0 and -1: they must be 0 to 3"),
    (lambda: ops.pad_circular(f32(4), -1, 0, 0, 0), "none may be below 0"),
    (lambda: ops.roll(transposed(4, 3), 1, 0, 0, 0), "x must be f32 with contiguous rows"),
    (lambda: ops.fill(i32(4), 1.0), "x must be f32 or f16"),
    (lambda: ops.diag_mask_zero(i32(4, 4), 0), "x must be f32"),
    (lambda: ops.count_equal(f32(4), i32(4)), "a and b must be i32"),
    (lambda: ops.count_equal(i32(4), i32(5)), "a and b must have the same shape"),
    (
        lambda: ops.count_equal(ops.transpose(i32(4, 3)), i32(3, 4)),
        "a and b must have contiguous rows",
    ),
    (lambda: ops.out_prod(i32(4, 3), f32(5, 3)), "a must be quantised, f32, f16 or bf16"),
    (lambda: ops.out_prod(transposed(4, 3), f32(5, 3)), "a must have contiguous rows"),
    (lambda: ops.out_prod(f32(4, 3), blank("f16", 5, 3)), "b must be f32"),
    (lambda: ops.out_prod(f32(4, 3), f32(5, 2)), "dimensions 1, 3 and 2, must be equal"),
    (lambda: ops.out_prod(f32(4, 3, 2), f32(5, 3, 3)), "must be multiples of a's [2, 1]"),
    (lambda: ops.tri(transposed(4, 3), 0), "x must be f32 with contiguous rows"),
    (lambda: ops.tri(f32(4, 4), 4), "type is 4: it must be one of [0, 1, 2, 3]"),
    (lambda: ops.diag(i32(4)), "x must be f32 with contiguous rows"),
    (lambda: ops.diag(f32(4, 2)), "dimension 1 of x is 2: it must be 1"),
    (lambda: ops.solve_tri(i32(4, 4), f32(2, 4), True, True, False), "a must be f32 with"),
    (lambda: ops.solve_tri(f32(4, 4), transposed(2, 4), True, True, False), "b must be f32 with"),
    (lambda: ops.solve_tri(f32(4, 3), f32(2, 3), True, True, False), "a must be square, it is 4"),
    (lambda: ops.solve_tri(f32(4, 4), f32(2, 3), True, True, False), "the same dimensions 1, 2"),
    (lambda: ops.solve_tri(f32(4, 4), f32(2, 4), True, False, False), "must be True, True, False"),
    (lambda: ops.win_part(i32(4, 5, 6), 2), "x must be f32 and contiguous"),
    (lambda: ops.win_part(f32(4, 5, 6, 2), 2), "x must have at most 3 dimensions"),
    (lambda: ops.win_part(f32(4, 5, 6), 0), "w is 0: it must be at least 1"),
    (lambda: ops.win_unpart(transposed(4, 2), 2, 2, 2), "x must be f32 and contiguous"),
    (lambda: ops.win_unpart(f32(4, 2, 2, 6), 0, 5, 2), "w0, h0 and w are 0, 5 and 2"),
    (lambda: ops.win_unpart(f32(4, 2, 2, 6), 5, 5, 2), "x must be [4, 2, 2, 9]: the windows of"),
    (lambda: ops.get_rel_pos(i32(4, 5), 3, 3), "x must be f16 or f32, its rows whole"),
    (lambda: ops.get_rel_pos(f32(4, 5, 2), 3, 3), "x must have at most 2 dimensions"),
    (lambda: ops.get_rel_pos(f32(4, 6), 3, 3), "dimension 1 of x is 6: it must be 5"),
    (lambda: ops.get_rel_pos(f32(4, 5), 3, 2), "qh and kh are 3 and 2: they must be equal"),
    (
        lambda: ops.add_rel_pos(f32(9, 4, 2), i32(3, 2, 2, 2), f32(3, 2, 2, 2)),
        "pw must be f32 and contiguous",
    ),
    (
        lambda: ops.add_rel_pos(f32(9, 4, 2), f32(3, 2, 2, 2), f32(3, 4, 1, 2)),
        "pw and ph must have the same shape",
    ),
    (
        lambda: ops.add_rel_pos(f32(8, 4, 2), f32(3, 2, 2, 2), f32(3, 2, 2, 2)),
        "a must be [9, 4, 2]: the scores of 3 by 3 keys",
    ),
    (lambda: ops.upscale(transposed(4, 3), 2, 0), "x must be f32 with contiguous rows"),
    (lambda: ops.upscale(f32(4, 3), 0, 0), "scale_factor is 0: it must be at least 1"),
    (lambda: ops.upscale(f32(4, 3), 2, 3), "mode is 3: it must be 0 to 2"),
    (lambda: ops.upscale(f32(4, 3), 2, 512), "mode is NEAREST: ANTIALIAS is for BILINEAR"),
    (lambda: ops.timestep_embedding(i32(4), 8, 100), "x must be f32 and contiguous"),
    (lambda: ops.timestep_embedding(f32(4, 2), 8, 100), "x must have one dimension"),
    (lambda: ops.timestep_embedding(f32(4), 0, 100), "dim and max_period are 0 and 100"),
    (lambda: ops.acc(transposed(4, 3), f32(2), 16, 48, 48, 0), "a must be contiguous, b's rows"),
    (lambda: ops.acc(i32(4), i32(2), 16, 16, 16, 0), "a must be f32"),
    (lambda: ops.acc(f32(4), i32(2), 16, 16, 16, 0), "a and b must be of one plain type"),
    (lambda: ops.acc(f32(4, 3), f32(2, 2), 16, 48, 48, 3), "offset is 3: it must be a multiple"),
    (lambda: ops.acc(f32(4, 3), f32(2, 2), 4, 48, 48, 0), "nb1 is 4: it must be at least 8"),
    (lambda: ops.acc(f32(4, 3), f32(2, 2), 16, 48, 48, 28), "the region ends at byte 52: a has 48"),
    (
        lambda: ops.set_1d(blank("bf16", 4), blank("bf16", 2), 0),
        "a must be of a plain type other than bf16",
    ),
]
