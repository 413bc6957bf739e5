"""Windows of a signal, image or volume as rows of a matrix, and back: im2col, col2im.

Letters: W, H, D width, height and depth of the input, KW, KH, KD of the kernel, OW, OH, OD of the
result; C channels, N batch.

    OW = (W + 2 p0 - d0 (KW - 1) - 1) // s0 + 1        for stride s0, padding p0 and dilation d0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Dims, Spec, as_ne, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import BF16, F16, F32, TensorType, type_of

FLOATS = (F32, F16)


def output_size(n: int, size: int, stride: int, padding: int, dilation: int) -> int:
    """How many windows of `size` elements, `dilation` apart, lie `stride` apart in n padded ones.

    Raises ShapeError unless there is at least one.
    """
    require(
        stride >= 1 and padding >= 0 and dilation >= 1,
        f"stride {stride}, padding {padding}, dilation {dilation}: they must be at least 1, 0, 1",
    )
    reach = dilation * (size - 1) + 1
    require(
        n + 2 * padding >= reach,
        f"the kernel reaches over {reach} of {n} elements with {padding} more on each side",
    )
    return int((n + 2 * padding - reach) // stride + 1)


def windows(
    x: Array,
    sizes: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
) -> Array:
    """Windows of the last axes of x [..., D, H, W], outermost first, zeros outside.

    [..., OD, OH, OW, KD, KH, KW]; there are as many axes as sizes.
    """
    n_axes = len(sizes)
    first = x.ndim - n_axes
    y = np.pad(x, [(0, 0)] * first + [(p, p) for p in paddings])
    for i, (size, stride, padding, dilation) in enumerate(
        zip(sizes, strides, paddings, dilations, strict=True)
    ):
        n_out = output_size(x.shape[first + i], size, stride, padding, dilation)
        taken = np.arange(n_out)[:, None] * stride + np.arange(size) * dilation
        y = np.take(y, taken, axis=first + 2 * i)
    outs = [first + 2 * i for i in range(n_axes)]
    return y.transpose(*range(first), *outs, *(i + 1 for i in outs))


@op("im2col")
@dataclass(frozen=True, slots=True)
class Im2Col(Op):
    """The windows of a convolution as rows, channel by channel.

        y[(c KH + kh) KW + kw, ow, oh, n] = x[ow s0 + kw d0 - p0, oh s1 + kh d1 - p1, c, n]
        kernel [KW, KH, C, any], x [W, H, C, N]  ->  y [C KH KW, OW, OH, N]
        not is_2D: kernel [KW, C, any], x [W, C, N]  ->  y [C KW, OW, N]

    0 outside x. Of the kernel only the shape counts. x f32 or f16 with contiguous rows; y is f32 or
    f16, as `type` says. Raises ShapeError for other shapes and types.
    """

    s0: int
    s1: int
    p0: int
    p1: int
    d0: int
    d1: int
    is_2D: bool
    type: TensorType

    def infer(self, kernel: Spec, x: Spec) -> Spec:
        require(x.type in FLOATS and x.rows_contiguous, "x must be f32 or f16, with whole rows")
        require(self.type in FLOATS, f"type is {self.type}: it must be f32 or f16")
        channels = 2 if self.is_2D else 1
        require(
            kernel.ne[channels] == x.ne[channels],
            f"dimensions {channels}, {kernel.ne[channels]} and {x.ne[channels]}, must be equal: "
            "the channels",
        )
        out_w = output_size(x.ne[0], kernel.ne[0], self.s0, self.p0, self.d0)
        if self.is_2D:
            out_h = output_size(x.ne[1], kernel.ne[1], self.s1, self.p1, self.d1)
            n = kernel.ne[0] * kernel.ne[1] * kernel.ne[2]
            return Spec((n, out_w, out_h, x.ne[3]), self.type)
        require(x.ne[3] == 1, "x must have at most 3 dimensions")
        return Spec((kernel.ne[0] * kernel.ne[1], out_w, x.ne[2]), self.type)

    def reference(self, kernel: Array, x: Array) -> Array:
        if not self.is_2D:
            found = windows(x[0], kernel.shape[3:], (self.s0,), (self.p0,), (self.d0,))
            by_place = found.transpose(0, 2, 1, 3)  # [N, OW, C, KW]
            return by_place.reshape(1, *by_place.shape[:2], -1)
        strides, paddings = (self.s1, self.s0), (self.p1, self.p0)
        found = windows(x, kernel.shape[2:], strides, paddings, (self.d1, self.d0))
        by_place = found.transpose(0, 2, 3, 1, 4, 5)  # [N, OH, OW, C, KH, KW]
        return by_place.reshape(*by_place.shape[:3], -1)


@op("im2col_3d")
@dataclass(frozen=True, slots=True)
class Im2Col3d(Op):
    """The windows of a convolution of volumes as rows, channel by channel.

        kernel [KW, KH, KD, IC any], x [W, H, D, IC N]  ->  y [IC KD KH KW, OW, OH, OD N]

    As im2col, with depth. Raises ShapeError for other shapes and types.
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
    IC: int
    type: TensorType

    def infer(self, kernel: Spec, x: Spec) -> Spec:
        require(x.type in FLOATS and x.rows_contiguous, "x must be f32 or f16, with whole rows")
        require(self.type in FLOATS, f"type is {self.type}: it must be f32 or f16")
        require(
            self.IC >= 1 and x.ne[3] % self.IC == 0 and kernel.ne[3] % self.IC == 0,
            f"IC is {self.IC}: it must divide {kernel.ne[3]} and {x.ne[3]}, dimensions 3",
        )
        out_w = output_size(x.ne[0], kernel.ne[0], self.s0, self.p0, self.d0)
        out_h = output_size(x.ne[1], kernel.ne[1], self.s1, self.p1, self.d1)
        out_d = output_size(x.ne[2], kernel.ne[2], self.s2, self.p2, self.d2)
        n = self.IC * kernel.ne[0] * kernel.ne[1] * kernel.ne[2]
        return Spec((n, out_w, out_h, out_d * (x.ne[3] // self.IC)), self.type)

    def reference(self, kernel: Array, x: Array) -> Array:
        volumes = x.reshape(-1, self.IC, *x.shape[1:])
        strides, paddings = (self.s2, self.s1, self.s0), (self.p2, self.p1, self.p0)
        dilations = (self.d2, self.d1, self.d0)
        found = windows(volumes, kernel.shape[1:], strides, paddings, dilations)
        by_place = found.transpose(0, 2, 3, 4, 1, 5, 6, 7)  # [N, OD, OH, OW, IC, KD, KH, KW]
        return by_place.reshape(-1, *by_place.shape[2:4], int(np.prod(by_place.shape[4:])))


@op("im2col_back")
@dataclass(frozen=True, slots=True)
class Im2ColBack(Op):
    """The gradient of im2col: each element is the sum over the windows that it is in.

        grad [C KH KW, OW, OH, N] f32 contiguous, kernel [KW, KH, C, any]  ->  y [ne] = [W, H, C, N]
        not is_2D: grad [C KW, OW, N], kernel [KW, C, any]  ->  y [W, C, N]

    Raises ShapeError unless im2col of such an input has the shape of grad.
    """

    ne: Dims
    s0: int
    s1: int
    p0: int
    p1: int
    d0: int
    d1: int
    is_2D: bool

    def infer(self, grad: Spec, kernel: Spec) -> Spec:
        require(grad.type is F32 and grad.contiguous, "grad must be f32 and contiguous")
        y = Spec(self.ne, F32)
        forward = Im2Col(*self._numbers, self.is_2D, F32).infer(kernel, y)
        require(
            grad.ne == forward.ne,
            f"grad must be {forward.shape_text}: the windows of {y.shape_text}",
        )
        return y

    @property
    def _numbers(self) -> tuple[int, int, int, int, int, int]:
        return self.s0, self.s1, self.p0, self.p1, self.d0, self.d1

    def reference(self, grad: Array, kernel: Array) -> Array:
        shape = self.ne[::-1] if self.is_2D else (self.ne[2], self.ne[1], 1, self.ne[0])
        n, n_channels, height, width = shape
        p1, s1, d1 = (self.p1, self.s1, self.d1) if self.is_2D else (0, 1, 1)
        size1 = kernel.shape[2] if self.is_2D else 1
        size0 = kernel.shape[3]
        out_w = grad.shape[2]
        parts = grad.astype(np.float64).reshape(n, -1, out_w, n_channels, size1, size0)
        padded = np.zeros((n, n_channels, height + 2 * p1, width + 2 * self.p0))
        rows, columns = np.arange(parts.shape[1]) * s1, np.arange(out_w) * self.s0
        for i, j in np.ndindex(size1, size0):
            at = (rows + i * d1)[:, None], (columns + j * self.d0)[None, :]
            padded[:, :, at[0], at[1]] += parts[..., i, j].transpose(0, 3, 1, 2)
        y = padded[:, :, p1 : p1 + height, self.p0 : self.p0 + width]
        return y.reshape(self.ne[::-1])


@op("col2im_1d")
@dataclass(frozen=True, slots=True)
class Col2Im1d(Op):
    """Columns of a transposed convolution added up to a signal.

        y[t, c] = sum of x[c K + k, l] over all l and k with l s0 + k = t + p0
        x [oc K, L] f32, f16 or bf16, contiguous  ->  y [(L - 1) s0 + K - 2 p0, oc] of its type

    Raises ShapeError for other shapes and types.
    """

    s0: int
    oc: int
    p0: int

    def infer(self, x: Spec) -> Spec:
        require(x.type in (F32, F16, BF16), "x must be f32, f16 or bf16")
        require(x.contiguous and x.ne[2:] == (1, 1), "x must be a contiguous matrix")
        require(
            self.s0 >= 1 and self.p0 >= 0,
            f"s0 and p0 are {self.s0} and {self.p0}: they must be at least 1 and 0",
        )
        require(
            self.oc >= 1 and x.ne[0] % self.oc == 0,
            f"oc is {self.oc}: it must divide {x.ne[0]}, dimension 0 of x",
        )
        n_out = (x.ne[1] - 1) * self.s0 + x.ne[0] // self.oc - 2 * self.p0
        require(n_out >= 1, f"p0 is {self.p0}: it leaves {n_out} elements, there must be one")
        return Spec((n_out, self.oc), x.type)

    def reference(self, x: Array) -> Array:
        columns = x[0, 0].astype(np.float64).reshape(x.shape[2], self.oc, -1)  # [L, oc, K]
        n_in, _, size = columns.shape
        y = np.zeros((self.oc, (n_in - 1) * self.s0 + size))
        for i in range(n_in):
            y[:, i * self.s0 : i * self.s0 + size] += columns[i]
        return y[None, None, :, self.p0 : y.shape[1] - self.p0]


@checked
def im2col(
    a: Tensor,
    b: Tensor,
    s0: int,
    s1: int,
    p0: int,
    p1: int,
    d0: int,
    d1: int,
    is_2D: bool,
    dst_type: str | TensorType,
) -> Tensor:
    """`ggml_im2col`: a the kernel, b the input; see Im2Col."""
    return Im2Col(s0, s1, p0, p1, d0, d1, is_2D, type_of(dst_type)).node(a, b)


@checked
def im2col_back(
    a: Tensor,
    b: Tensor,
    ne: Sequence[int],
    s0: int,
    s1: int,
    p0: int,
    p1: int,
    d0: int,
    d1: int,
    is_2D: bool,
) -> Tensor:
    """`ggml_im2col_back`: a the gradient, b the kernel, ne the input's shape; see Im2ColBack."""
    return Im2ColBack(as_ne(ne), s0, s1, p0, p1, d0, d1, is_2D).node(a, b)


@checked
def im2col_3d(
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
    dst_type: str | TensorType,
) -> Tensor:
    """`ggml_im2col_3d`: a the kernel, b the input; see Im2Col3d."""
    made = Im2Col3d(s0, s1, s2, p0, p1, p2, d0, d1, d2, IC, type_of(dst_type))
    return made.node(a, b)


@checked
def col2im_1d(a: Tensor, s0: int, oc: int, p0: int) -> Tensor:
    """`ggml_col2im_1d`; see Col2Im1d."""
    return Col2Im1d(s0, oc, p0).node(a)
