"""Convolutions: direct ones as ops of their own, others as im2col and a product.

Letters as in im2col.py, with IC channels of the input and OC of the result. As everywhere in
machine learning the kernel is not mirrored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32, TensorType
from ggmlpy.ops.copy import cont
from ggmlpy.ops.im2col import FLOATS, im2col, im2col_3d, output_size, windows
from ggmlpy.ops.matmul import mul_mat
from ggmlpy.ops.views import permute, reshape_2d, reshape_3d, reshape_4d


def check_factors(kernel: Spec, x: Spec) -> None:
    require(
        kernel.type in FLOATS and kernel.contiguous, "the kernel must be f32 or f16, contiguous"
    )
    require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")


@op("conv_2d")
@dataclass(frozen=True, slots=True)
class Conv2d(Op):
    """A convolution of images.

        y[ow, oh, oc, n] = sum_(ic, kh, kw) kernel[kw, kh, ic, oc]
                           * x[ow s0 + kw d0 - p0, oh s1 + kh d1 - p1, ic, n]
        kernel [KW, KH, IC, OC] f32 or f16, x [W, H, IC, N] f32  ->  y [OW, OH, OC, N] f32

    x counts as 0 outside. Raises ShapeError for other shapes and types, and unless the kernel is
    contiguous and x has contiguous rows.
    """

    s0: int
    s1: int
    p0: int
    p1: int
    d0: int
    d1: int

    def infer(self, kernel: Spec, x: Spec) -> Spec:
        check_factors(kernel, x)
        require(
            kernel.ne[2] == x.ne[2],
            f"dimensions 2, {kernel.ne[2]} and {x.ne[2]}, must be equal: the channels",
        )
        out_w = output_size(x.ne[0], kernel.ne[0], self.s0, self.p0, self.d0)
        out_h = output_size(x.ne[1], kernel.ne[1], self.s1, self.p1, self.d1)
        return Spec((out_w, out_h, kernel.ne[3], x.ne[3]), F32)

    def reference(self, kernel: Array, x: Array) -> Array:
        strides, paddings = (self.s1, self.s0), (self.p1, self.p0)
        found = windows(
            x.astype(np.float64), kernel.shape[2:], strides, paddings, (self.d1, self.d0)
        )
        y: Array = np.einsum("nchwij,ocij->nohw", found, kernel.astype(np.float64), optimize=True)
        return y


@op("conv_2d_dw")
@dataclass(frozen=True, slots=True)
class Conv2dDw(Op):
    """A convolution of each channel with a kernel of its own.

        y[ow, oh, c, n] = sum_(kh, kw) kernel[kw, kh, 0, c]
                          * x[ow s0 + kw d0 - p0, oh s1 + kh d1 - p1, c, n]
        kernel [KW, KH, 1, C] f32 or f16, x [W, H, C, N] f32  ->  y [OW, OH, C, N] f32

    x and the kernel may be views of memory in which channels lie next to each other (ggml's layout
    CWHN): y then lies in the same way. Raises ShapeError for other shapes, types and layouts.
    """

    s0: int
    s1: int
    p0: int
    p1: int
    d0: int
    d1: int

    def infer(self, kernel: Spec, x: Spec) -> Spec:
        require(kernel.type in FLOATS and x.type is F32, "the kernel must be f32 or f16, x f32")
        require(
            kernel.ne[2] == 1 and kernel.ne[3] == x.ne[2],
            f"the kernel must be [KW, KH, 1, {x.ne[2]}]: one for each channel of x",
        )
        by_channels = channels_first(x)
        require(
            x.contiguous or by_channels,
            "x must be contiguous, or a view in which the channels of a pixel are",
        )
        require(
            kernel.contiguous or (by_channels and kernel.nb[3] == kernel.type.type_size),
            "the kernel must be contiguous, or have its channels next to each other if x has",
        )
        out_w = output_size(x.ne[0], kernel.ne[0], self.s0, self.p0, self.d0)
        out_h = output_size(x.ne[1], kernel.ne[1], self.s1, self.p1, self.d1)
        ne = (out_w, out_h, x.ne[2], x.ne[3])
        if not by_channels:
            return Spec(ne, F32)
        pixel = 4 * int(x.ne[2])
        return Spec(ne, F32, (pixel, pixel * out_w, 4, pixel * out_w * out_h))

    def reference(self, kernel: Array, x: Array) -> Array:
        strides, paddings = (self.s1, self.s0), (self.p1, self.p0)
        found = windows(
            x.astype(np.float64), kernel.shape[2:], strides, paddings, (self.d1, self.d0)
        )
        y: Array = np.einsum("nchwij,cij->nchw", found, kernel[:, 0].astype(np.float64))
        return y


def channels_first(x: Spec) -> bool:
    """Whether the channels of a pixel lie next to each other, and then the next pixel's."""
    pixel = x.type.type_size * int(x.ne[2])
    row = pixel * int(x.ne[0])
    return not x.contiguous and x.nb == (pixel, row, x.type.type_size, row * int(x.ne[1]))


@op("conv_3d")
@dataclass(frozen=True, slots=True)
class Conv3d(Op):
    """A convolution of volumes.

        kernel [KW, KH, KD, c oc] f32 or f16, x [W, H, D, c n] f32  ->  y [OW, OH, OD, oc n] f32

    As conv_2d, with depth; dimension 3 has c channels for each kernel, and for each volume. Raises
    ShapeError for other shapes and types.
    """

    s0: int
    s1: int
    s2: int
    p0: int
    p1: int
    p2: int
    d0: int
    d1: int
    d2: int
    c: int
    n: int
    oc: int

    def infer(self, kernel: Spec, x: Spec) -> Spec:
        check_factors(kernel, x)
        require(
            min(self.c, self.n, self.oc) >= 1
            and kernel.ne[3] == self.c * self.oc
            and x.ne[3] == self.c * self.n,
            f"c, n, oc are {self.c}, {self.n}, {self.oc}: dimension 3 of the kernel must be c oc, "
            "that of x c n",
        )
        out_w = output_size(x.ne[0], kernel.ne[0], self.s0, self.p0, self.d0)
        out_h = output_size(x.ne[1], kernel.ne[1], self.s1, self.p1, self.d1)
        out_d = output_size(x.ne[2], kernel.ne[2], self.s2, self.p2, self.d2)
        return Spec((out_w, out_h, out_d, self.oc * self.n), F32)

    def reference(self, kernel: Array, x: Array) -> Array:
        volumes = x.astype(np.float64).reshape(self.n, self.c, *x.shape[1:])
        strides, paddings = (self.s2, self.s1, self.s0), (self.p2, self.p1, self.p0)
        dilations = (self.d2, self.d1, self.d0)
        found = windows(volumes, kernel.shape[1:], strides, paddings, dilations)
        kernels = kernel.astype(np.float64).reshape(self.oc, self.c, *kernel.shape[1:])
        y: Array = np.einsum("ncdhwkij,ockij->nodhw", found, kernels, optimize=True)
        return y.reshape(-1, *y.shape[2:])


def _window_type(kernel: Tensor) -> TensorType:
    """The type of the windows: as in ggml, except for f32 kernels, with which they stay f32."""
    return F16 if kernel.type is F16 else F32


@checked
def conv_1d(a: Tensor, b: Tensor, s0: int, p0: int, d0: int) -> Tensor:
    """`ggml_conv_1d`: kernel a [K, IC, OC], input b [L, IC, N] -> [OL, OC, N]; im2col and mul_mat.

    Windows are f16 for an f16 kernel, else f32; ggml's are f16 for an f32 kernel too.
    """
    columns = im2col(a, b, s0, 1, p0, 0, d0, 1, False, _window_type(a))  # [IC K, OL, N]
    n_columns, n_out, n = columns.ne[:3]
    kernel = reshape_2d(a, n_columns, a.ne[2])  # [IC K, OC]
    y = mul_mat(reshape_2d(columns, n_columns, n_out * n), kernel)  # [OL N, OC]
    if n == 1:
        return reshape_3d(y, n_out, a.ne[2], n)
    return cont(permute(reshape_3d(y, n_out, n, a.ne[2]), 0, 2, 1, 3))  # [OL, OC, N]


@checked
def conv_1d_ph(a: Tensor, b: Tensor, s: int, d: int) -> Tensor:
    """`ggml_conv_1d_ph`: conv_1d with half of the kernel's length as padding."""
    return conv_1d(a, b, s, a.ne[0] // 2, d)


@checked
def conv_1d_dw(a: Tensor, b: Tensor, s0: int, p0: int, d0: int) -> Tensor:
    """`ggml_conv_1d_dw`: kernels a [K, 1, C], input b [L, C] -> [OL, C], channel by channel."""
    n_channels = b.ne[1]
    single = reshape_4d(b, b.ne[0], 1, n_channels, b.ne[2])  # [L, 1, C]
    columns = im2col(a, single, s0, 1, p0, 0, d0, 1, False, _window_type(a))  # [K, OL, C]
    y = mul_mat(columns, a)  # [OL, 1, C]
    return reshape_3d(y, y.ne[0], y.ne[2], 1)


@checked
def conv_1d_dw_ph(a: Tensor, b: Tensor, s0: int, d0: int) -> Tensor:
    """`ggml_conv_1d_dw_ph`: conv_1d_dw with half of the kernel's length as padding."""
    return conv_1d_dw(a, b, s0, a.ne[0] // 2, d0)


@checked
def conv_2d(a: Tensor, b: Tensor, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int) -> Tensor:
    """`ggml_conv_2d`: kernel a [KW, KH, IC, OC], input b [W, H, IC, N] -> [OW, OH, OC, N].

    im2col and mul_mat. Windows are f16 for an f16 kernel, else f32; ggml's are f16 for an f32
    kernel too.
    """
    columns = im2col(a, b, s0, s1, p0, p1, d0, d1, True, _window_type(a))
    n_columns, out_w, out_h, n = columns.ne  # [IC KH KW, OW, OH, N]
    rows = reshape_2d(columns, n_columns, out_w * out_h * n)
    y = mul_mat(rows, reshape_2d(a, n_columns, a.ne[3]))  # [OW OH N, OC]
    y = reshape_4d(y, out_w, out_h, n, a.ne[3])
    return cont(permute(y, 0, 1, 3, 2))  # [OW, OH, OC, N]


@checked
def conv_2d_sk_p0(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_conv_2d_sk_p0`: conv_2d with strides of the kernel's size, without padding."""
    return conv_2d(a, b, a.ne[0], a.ne[1], 0, 0, 1, 1)


@checked
def conv_2d_s1_ph(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_conv_2d_s1_ph`: conv_2d with half of the kernel's size as padding."""
    return conv_2d(a, b, 1, 1, a.ne[0] // 2, a.ne[1] // 2, 1, 1)


@checked
def conv_2d_direct(
    a: Tensor, b: Tensor, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int
) -> Tensor:
    """`ggml_conv_2d_direct`: a the kernel, b the input; see Conv2d."""
    return Conv2d(s0, s1, p0, p1, d0, d1).node(a, b)


@checked
def conv_2d_dw(
    a: Tensor, b: Tensor, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int
) -> Tensor:
    """`ggml_conv_2d_dw`: kernels a [KW, KH, 1, C], input b [W, H, C, N], by im2col and mul_mat."""
    n_w, n_h, n_channels, n = b.ne
    kernels = reshape_4d(a, a.ne[0], a.ne[1], 1, n_channels)
    single = reshape_4d(b, n_w, n_h, 1, n_channels * n)
    columns = im2col(kernels, single, s0, s1, p0, p1, d0, d1, True, _window_type(a))
    n_columns, out_w, out_h, _ = columns.ne  # [KH KW, OW, OH, C N]
    rows = reshape_4d(columns, n_columns, out_w * out_h, n_channels, n)
    y = mul_mat(reshape_4d(kernels, n_columns, 1, n_channels, 1), rows)  # [1, OW OH, C, N]
    return reshape_4d(y, out_w, out_h, n_channels, n)


@checked
def conv_2d_dw_direct(
    a: Tensor,
    b: Tensor,
    stride0: int,
    stride1: int,
    pad0: int,
    pad1: int,
    dilation0: int,
    dilation1: int,
) -> Tensor:
    """`ggml_conv_2d_dw_direct`: a the kernels, b the input; see Conv2dDw."""
    return Conv2dDw(stride0, stride1, pad0, pad1, dilation0, dilation1).node(a, b)


@checked
def conv_3d(
    a: Tensor,
    b: Tensor,
    IC: int,
    s0: int,
    s1: int,
    s2: int,
    p0: int,
    p1: int,
    p2: int,
    d0: int,
    d1: int,
    d2: int,
) -> Tensor:
    """`ggml_conv_3d`: kernel a [KW, KH, KD, IC OC], input b [W, H, D, IC N] -> [OW, OH, OD, OC N].

    im2col_3d and mul_mat, with windows as in conv_2d.
    """
    columns = im2col_3d(a, b, IC, s0, s1, s2, p0, p1, p2, d0, d1, d2, _window_type(a))
    n_columns, out_w, out_h, n_planes = columns.ne  # [IC KD KH KW, OW, OH, OD N]
    n_out, n = a.ne[3] // IC, b.ne[3] // IC
    rows = reshape_2d(columns, n_columns, out_w * out_h * n_planes)
    y = mul_mat(rows, reshape_2d(a, n_columns, n_out))  # [OW OH OD N, OC]
    y = reshape_4d(y, out_w * out_h, n_planes // n, n, n_out)
    y = cont(permute(y, 0, 1, 3, 2))  # [OW OH, OD, OC, N]
    return reshape_4d(y, out_w, out_h, n_planes // n, n_out * n)


@checked
def conv_3d_direct(
    a: Tensor,
    b: Tensor,
    s0: int,
    s1: int,
    s2: int,
    p0: int,
    p1: int,
    p2: int,
    d0: int,
    d1: int,
    d2: int,
    n_channels: int,
    n_batch: int,
    n_channels_out: int,
) -> Tensor:
    """`ggml_conv_3d_direct`: a the kernel, b the input; see Conv3d."""
    made = Conv3d(s0, s1, s2, p0, p1, p2, d0, d1, d2, n_channels, n_batch, n_channels_out)
    return made.node(a, b)
