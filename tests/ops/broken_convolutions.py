"""Calls of convolutions and pooling that break a rule each; see broken_rules.py."""

from __future__ import annotations

from collections.abc import Callable

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from tests.ops.values import f16, f32, i32, transposed


def im2col(a: Tensor, b: Tensor, s0: int = 1, p0: int = 0, d0: int = 1, to: str = "f32") -> Tensor:
    return ops.im2col(a, b, s0, 1, p0, 0, d0, 1, True, to)


def im2col_1d(a: Tensor, b: Tensor) -> Tensor:
    return ops.im2col(a, b, 1, 1, 0, 0, 1, 1, False, "f32")


def im2col_3d(a: Tensor, b: Tensor, n: int, to: str = "f32") -> Tensor:
    return ops.im2col_3d(a, b, n, 1, 1, 1, 0, 0, 0, 1, 1, 1, to)


def conv(a: Tensor, b: Tensor) -> Tensor:
    return ops.conv_2d_direct(a, b, 1, 1, 0, 0, 1, 1)


def depthwise(a: Tensor, b: Tensor) -> Tensor:
    return ops.conv_2d_dw_direct(a, b, 1, 1, 0, 0, 1, 1)


def conv_3d(a: Tensor, b: Tensor, c: int, n: int, oc: int) -> Tensor:
    return ops.conv_3d_direct(a, b, 1, 1, 1, 0, 0, 0, 1, 1, 1, c, n, oc)


def channels(*ne: int) -> Tensor:
    """Channels of a pixel side by side."""
    return ops.permute(f32(ne[2], ne[0], ne[1]), 2, 0, 1, 3)


BROKEN_CONVOLUTIONS: list[tuple[Callable[[], Tensor], str]] = [
    (
        lambda: im2col(f32(3, 3, 2), f32(5, 5, 2), s0=0),
        "stride 0, padding 0, dilation 1: they must",
    ),
    (lambda: im2col(f32(3, 3, 2), f32(5, 5, 2), d0=3), "the kernel reaches over 7 of 5 elements"),
    (lambda: im2col(f32(3, 3, 2), i32(5, 5, 2)), "x must be f32 or f16, with whole rows"),
    (lambda: im2col(f32(3, 3, 2), f32(5, 5, 2), to="i32"), "type is i32: it must be f32 or f16"),
    (lambda: im2col(f32(3, 3, 2), f32(5, 5, 3)), "dimensions 2, 2 and 3, must be equal: the chan"),
    (lambda: im2col_1d(f32(3, 2), f32(5, 2, 1, 2)), "x must have at most 3 dimensions"),
    (lambda: im2col_3d(f32(1, 1, 1, 2), i32(3, 3, 3, 2), 2), "x must be f32 or f16, with whole"),
    (lambda: im2col_3d(f32(1, 1, 1, 2), f32(3, 3, 3, 2), 2, "i8"), "type is i8: it must be f32"),
    (lambda: im2col_3d(f32(1, 1, 1, 3), f32(3, 3, 3, 2), 2), "IC is 2: it must divide 3 and 2"),
    (
        lambda: ops.im2col_back(i32(8, 2, 2), f32(2, 2, 2), (3, 3, 2), 1, 1, 0, 0, 1, 1, True),
        "grad must be f32 and contiguous",
    ),
    (
        lambda: ops.im2col_back(f32(8, 2, 3), f32(2, 2, 2), (3, 3, 2), 1, 1, 0, 0, 1, 1, True),
        "grad must be [8, 2, 2]: the windows of [3, 3, 2]",
    ),
    (lambda: ops.col2im_1d(i32(4, 3), 1, 2, 0), "x must be f32, f16 or bf16"),
    (lambda: ops.col2im_1d(f32(4, 3, 2), 1, 2, 0), "x must be a contiguous matrix"),
    (lambda: ops.col2im_1d(f32(4, 3), 0, 2, 0), "s0 and p0 are 0 and 0: they must be at least 1"),
    (lambda: ops.col2im_1d(f32(4, 3), 1, 3, 0), "oc is 3: it must divide 4, dimension 0 of x"),
    (lambda: ops.col2im_1d(f32(4, 3), 1, 2, 2), "p0 is 2: it leaves 0 elements"),
    (lambda: conv(i32(3, 3, 2), f32(5, 5, 2)), "the kernel must be f32 or f16, contiguous"),
    (lambda: conv(f32(3, 3, 2), transposed(5, 5, 2)), "x must be f32 with contiguous rows"),
    (
        lambda: conv(f32(3, 3, 3), f32(5, 5, 2)),
        "dimensions 2, 3 and 2, must be equal: the channels",
    ),
    (lambda: depthwise(i32(3, 3, 1, 2), f32(5, 5, 2)), "the kernel must be f32 or f16, x f32"),
    (
        lambda: depthwise(f32(3, 3, 1, 3), f32(5, 5, 2)),
        "the kernel must be [KW, KH, 1, 2]: one for",
    ),
    (lambda: depthwise(f32(3, 3, 1, 2), transposed(5, 5, 2)), "x must be contiguous, or a view in"),
    (
        lambda: depthwise(ops.transpose(f32(2, 3, 1, 2)), channels(5, 5, 2)),
        "the kernel must be contiguous, or have its channels next to each other",
    ),
    (
        lambda: conv_3d(f32(1, 1, 1, 6), f32(2, 2, 2, 4), 2, 2, 2),
        "c, n, oc are 2, 2, 2: dimension 3",
    ),
    (
        lambda: ops.conv_transpose_1d(f32(3, 2, 2, 2), f32(5, 2), 1, 0, 1),
        "the kernel must have at most 3 dimensions",
    ),
    (
        lambda: ops.conv_transpose_1d(f32(3, 2, 2), f32(5, 2, 2), 1, 0, 1),
        "x must have at most 2 dimensions",
    ),
    (
        lambda: ops.conv_transpose_1d(f32(3, 2, 3), f32(5, 2), 1, 0, 1),
        "dimension 2 of the kernel, 3, must be dimension 1 of x, 2",
    ),
    (
        lambda: ops.conv_transpose_1d(f32(3, 2, 2), f32(5, 2), 0, 0, 1),
        "s0 is 0: it must be at least 1",
    ),
    (
        lambda: ops.conv_transpose_1d(f32(3, 2, 2), f32(5, 2), 1, 1, 1),
        "p0 and d0 are 1 and 1: they must be 0 and 1",
    ),
    (
        lambda: ops.conv_transpose_2d_p0(f32(3, 3, 2, 3), f32(5, 5, 2), 1),
        "dimension 3 of the kernel, 3, must be dimension 2 of x, 2",
    ),
    (
        lambda: ops.conv_transpose_2d_p0(f32(3, 3, 2, 2), f32(5, 5, 2), 0),
        "stride is 0: it must be at least 1",
    ),
    (lambda: ops.pool_1d(i32(5), 0, 2, 1, 0), "x must be f32 or f16, its rows whole"),
    (lambda: ops.pool_1d(f32(5), 0, 2, 1, 2), "window 2, step 1, padding 2"),
    (lambda: ops.pool_1d(f32(5), 0, 8, 1, 1), "a row with padding is 7: below window 8"),
    (lambda: ops.pool_1d(f32(5), 2, 2, 1, 0), "op is 2: it must be 0 (largest) or 1 (average)"),
    (
        lambda: ops.pool_2d_back(i32(2, 2), f32(4, 4), 0, 2, 2, 2, 2, 0.0, 0.0),
        "grad must be f32 and contiguous",
    ),
    (
        lambda: ops.pool_2d_back(f32(3, 2), f32(4, 4), 0, 2, 2, 2, 2, 0.0, 0.0),
        "grad must be [2, 2]: the windows of x",
    ),
    (
        lambda: ops.pool_2d_back(f32(2, 2), f32(4, 4), 2, 2, 2, 2, 2, 0.0, 0.0),
        "op is 2: it must be 0 (largest) or 1 (average)",
    ),
    (
        lambda: ops.pool_2d_back(f32(2, 2), f32(4, 4), 0, 2, 2, 2, 2, 0.5, 0.0),
        "paddings 0.5 and 0 must be whole",
    ),
    (lambda: ops.pool_2d(f16(4, 4), 0, 2, 2, 1, 1, 0, 0), "x must be f32 and contiguous"),
    (lambda: ops.pool_2d(f32(4, 4), 0, 2, 2, 1, 1, 0, 2), "window 2, step 1, padding 2 along dim"),
    (lambda: ops.pool_2d(f32(4, 4), 0, 5, 2, 1, 1, 0, 0), "dimension 0 with padding is 4: below"),
    (lambda: ops.pool_2d(f32(4, 4), 2, 2, 2, 1, 1, 0, 0), "op is 2: it must be 0 (largest) or 1"),
    (lambda: ops.pool_2d(f32(4, 4), 0, 2, 2, 1, 1, 0.5, 0), "paddings 0.5 and 0 must be whole"),
]
