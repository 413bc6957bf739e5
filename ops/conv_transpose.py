"""Transposed convolutions: each element of the input adds a scaled kernel to the result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32
from ggmlpy.ops.convolution import check_factors


@op("conv_transpose_1d")
@dataclass(frozen=True, slots=True)
class ConvTranspose1d(Op):
    """A transposed convolution of a signal.

        y[t, oc] = sum_(ic) sum of kernel[k, oc, ic] * x[l, ic] over all l, k with l s0 + k = t
        kernel [K, OC, IC] f32 or f16, x [L, IC] f32  ->  y [(L - 1) s0 + K, OC] f32

    Raises ShapeError for other shapes and types.
    """

    s0: int

    def infer(self, kernel: Spec, x: Spec) -> Spec:
        check_factors(kernel, x)
        require(kernel.ne[3] == 1, "the kernel must have at most 3 dimensions")
        require(x.ne[2:] == (1, 1), "x must have at most 2 dimensions")
        require(
            kernel.ne[2] == x.ne[1],
            f"dimension 2 of the kernel, {kernel.ne[2]}, must be dimension 1 of x, {x.ne[1]}",
        )
        require(self.s0 >= 1, f"s0 is {self.s0}: it must be at least 1")
        return Spec(((x.ne[0] - 1) * self.s0 + kernel.ne[0], kernel.ne[1]), F32)

    def reference(self, kernel: Array, x: Array) -> Array:
        added = np.einsum(
            "cok,cl->olk", kernel[0].astype(np.float64), x[0, 0].astype(np.float64), optimize=True
        )
        n_in, size = added.shape[1:]
        y = np.zeros((len(added), (n_in - 1) * self.s0 + size))
        for i in range(n_in):
            y[:, i * self.s0 : i * self.s0 + size] += added[:, i]
        return y[None, None]


@op("conv_transpose_2d")
@dataclass(frozen=True, slots=True)
class ConvTranspose2d(Op):
    """A transposed convolution of images, without padding.

        y[ow, oh, oc, n] = sum_(ic) sum of kernel[kw, kh, oc, ic] * x[w, h, ic, n]
                           over all with w stride + kw = ow, h stride + kh = oh
        kernel [KW, KH, OC, IC] f32 or f16, x [W, H, IC, N] f32
            ->  y [(W - 1) stride + KW, (H - 1) stride + KH, OC, N] f32

    Raises ShapeError for other shapes and types.
    """

    stride: int

    def infer(self, kernel: Spec, x: Spec) -> Spec:
        check_factors(kernel, x)
        require(
            kernel.ne[3] == x.ne[2],
            f"dimension 3 of the kernel, {kernel.ne[3]}, must be dimension 2 of x, {x.ne[2]}",
        )
        require(self.stride >= 1, f"stride is {self.stride}: it must be at least 1")
        out = [(n - 1) * self.stride + k for n, k in zip(x.ne[:2], kernel.ne[:2], strict=True)]
        return Spec((*out, kernel.ne[2], x.ne[3]), F32)

    def reference(self, kernel: Array, x: Array) -> Array:
        added = np.einsum(
            "coij,nchw->nohwij", kernel.astype(np.float64), x.astype(np.float64), optimize=True
        )
        n, n_out, height, width, size1, size0 = added.shape
        s = self.stride
        y = np.zeros((n, n_out, (height - 1) * s + size1, (width - 1) * s + size0))
        for i, j in np.ndindex(size1, size0):
            rows, columns = slice(i, i + height * s, s), slice(j, j + width * s, s)
            part = added[..., i, j]
            y[:, :, rows, columns][:, :, :height, :width] += part
        return y


@checked
def conv_transpose_1d(a: Tensor, b: Tensor, s0: int, p0: int, d0: int) -> Tensor:
    """`ggml_conv_transpose_1d`: p0 must be 0 and d0 1, as in ggml; see ConvTranspose1d."""
    require(
        (p0, d0) == (0, 1), f"conv_transpose_1d: p0 and d0 are {p0} and {d0}: they must be 0 and 1"
    )
    return ConvTranspose1d(s0).node(a, b)


@checked
def conv_transpose_2d_p0(a: Tensor, b: Tensor, stride: int) -> Tensor:
    """`ggml_conv_transpose_2d_p0`; see ConvTranspose2d."""
    return ConvTranspose2d(stride).node(a, b)
