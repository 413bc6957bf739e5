"""Pooling over windows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32


class PoolOp(IntEnum):
    """ggml's numbers."""

    MAX = 0
    AVG = 1


@op("pool_2d")
@dataclass(frozen=True, slots=True)
class Pool2d(Op):
    """The largest or the average element of each k0 x k1 window, s0 and s1 apart.

        y[u, v, ...] over x[u * s0 - p0 + i, v * s1 - p1 + j, ...],  i < k0, j < k1
        x [W, H, ...] f32 contiguous  ->  y [(W + 2 p0 - k0) // s0 + 1, the same for H, ...] f32

    A maximum ignores padding; in an average it counts as 0, and the divisor is always k0 * k1.
    Raises ShapeError unless windows fit, and paddings are integers below the window's size.
    """

    op: PoolOp
    k0: int
    k1: int
    s0: int
    s1: int
    p0: int
    p1: int

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.contiguous, "x must be f32 and contiguous")
        ne = list(x.ne)
        windows = ((self.k0, self.s0, self.p0), (self.k1, self.s1, self.p1))
        for d, (size, step, padding) in enumerate(windows):
            require(
                size >= 1 and step >= 1 and 0 <= padding < size,
                f"window {size}, step {step}, padding {padding} along dimension {d}: "
                "the first two must be at least 1, padding from 0 to below the window",
            )
            padded = x.ne[d] + 2 * padding
            require(padded >= size, f"dimension {d} with padding is {padded}: below window {size}")
            ne[d] = (padded - size) // step + 1
        return Spec(ne, F32)

    def reference(self, x: Array) -> Array:
        outside = -np.inf if self.op is PoolOp.MAX else 0.0
        widths = ((0, 0), (0, 0), (self.p1, self.p1), (self.p0, self.p0))
        padded = np.pad(x.astype(np.float64), widths, constant_values=outside)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (self.k1, self.k0), axis=(2, 3))
        picked = windows[:, :, :: self.s1, :: self.s0]
        largest: Array = picked.max(axis=(4, 5))
        average: Array = picked.mean(axis=(4, 5))
        return largest if self.op is PoolOp.MAX else average


@op("pool_1d")
@dataclass(frozen=True, slots=True)
class Pool1d(Op):
    """The largest or the average element of each window of k0, s0 apart.

        y[u, ...] over x[u * s0 - p0 + i, ...],  i < k0
        x [W, ...] f32 or f16 with contiguous rows  ->  y [(W + 2 p0 - k0) // s0 + 1, ...] f32

    Padding is ignored: the divisor of an average is the number of elements of x in the window, as
    in ggml, unlike that of pool_2d. Raises ShapeError unless windows fit, and p0 is below k0.
    """

    op: PoolOp
    k0: int
    s0: int
    p0: int

    def infer(self, x: Spec) -> Spec:
        require(x.type in (F32, F16) and x.rows_contiguous, "x must be f32 or f16, its rows whole")
        require(
            self.k0 >= 1 and self.s0 >= 1 and 0 <= self.p0 < self.k0,
            f"window {self.k0}, step {self.s0}, padding {self.p0}: the first two must be at least "
            "1, padding from 0 to below the window",
        )
        padded = x.ne[0] + 2 * self.p0
        require(padded >= self.k0, f"a row with padding is {padded}: below window {self.k0}")
        return Spec(((padded - self.k0) // self.s0 + 1, *x.ne[1:]), F32)

    def reference(self, x: Array) -> Array:
        widths = ((0, 0), (0, 0), (0, 0), (self.p0, self.p0))
        wide = x.astype(np.float64)
        if self.op is PoolOp.MAX:
            padded = np.pad(wide, widths, constant_values=-np.inf)
            largest: Array = _windows(padded, self.k0, self.s0).max(axis=-1)
            return largest
        total = _windows(np.pad(wide, widths), self.k0, self.s0).sum(axis=-1)
        inside = _windows(np.pad(np.ones_like(wide), widths), self.k0, self.s0).sum(axis=-1)
        average: Array = total / inside
        return average


def _windows(x: Array, size: int, step: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, size, axis=3)[..., ::step, :]


@op("pool_2d_back")
@dataclass(frozen=True, slots=True)
class Pool2dBack(Op):
    """The gradient of pool_2d: each window's goes to its first largest element, or is shared by all
    of its k0 * k1.

        grad [OW, OH, ...] f32 contiguous, x [W, H, ...] f32 contiguous, pool_2d's source
            ->  y like x

    Raises ShapeError unless pool_2d of x has the shape of grad.
    """

    op: PoolOp
    k0: int
    k1: int
    s0: int
    s1: int
    p0: int
    p1: int

    def infer(self, grad: Spec, x: Spec) -> Spec:
        require(grad.type is F32 and grad.contiguous, "grad must be f32 and contiguous")
        forward = Pool2d(self.op, self.k0, self.k1, self.s0, self.s1, self.p0, self.p1).infer(x)
        require(grad.ne == forward.ne, f"grad must be {forward.shape_text}: the windows of x")
        return Spec(x.ne, F32)

    def reference(self, grad: Array, x: Array) -> Array:
        widths = ((0, 0), (0, 0), (self.p1, self.p1), (self.p0, self.p0))
        padded = np.pad(x.astype(np.float64), widths)
        inside = np.pad(np.ones(x.shape, np.bool_), widths)
        y = np.zeros_like(padded)
        for n3, n2, v, u in np.ndindex(grad.shape):
            top, left = v * self.s1, u * self.s0
            at = (n3, n2, slice(top, top + self.k1), slice(left, left + self.k0))
            if self.op is PoolOp.AVG:
                y[at] += float(grad[n3, n2, v, u]) / (self.k0 * self.k1)
            else:
                places = np.argwhere(inside[at])  # never in the padding, even if all are -inf
                i, j = places[int(np.argmax(padded[at][inside[at]]))]
                y[n3, n2, top + i, left + j] += grad[n3, n2, v, u]
        return y[:, :, self.p1 : self.p1 + x.shape[2], self.p0 : self.p0 + x.shape[3]]


@checked
def pool_1d(a: Tensor, op: int, k0: int, s0: int, p0: int) -> Tensor:
    """`ggml_pool_1d`: op 0 the largest, 1 the average; see Pool1d."""
    require(op in (0, 1), f"pool_1d: op is {op}: it must be 0 (largest) or 1 (average)")
    return Pool1d(PoolOp(op), k0, s0, p0).node(a)


@checked
def pool_2d_back(
    a: Tensor, af: Tensor, op: int, k0: int, k1: int, s0: int, s1: int, p0: float, p1: float
) -> Tensor:
    """`ggml_pool_2d_back`: a the gradient, af the source of pool_2d; see Pool2dBack."""
    require(op in (0, 1), f"pool_2d_back: op is {op}: it must be 0 (largest) or 1 (average)")
    whole = p0.is_integer() and p1.is_integer()
    require(whole, f"pool_2d_back: paddings {p0:g} and {p1:g} must be whole")
    return Pool2dBack(PoolOp(op), k0, k1, s0, s1, int(p0), int(p1)).node(a, af)


@checked
def pool_2d(a: Tensor, op: int, k0: int, k1: int, s0: int, s1: int, p0: float, p1: float) -> Tensor:
    """`ggml_pool_2d`: op 0 the largest, 1 the average; see Pool2d."""
    require(op in (0, 1), f"pool_2d: op is {op}: it must be 0 (largest) or 1 (average)")
    whole = p0.is_integer() and p1.is_integer()
    require(whole, f"pool_2d: paddings {p0:g} and {p1:g} must be whole")
    return Pool2d(PoolOp(op), k0, k1, s0, s1, int(p0), int(p1)).node(a)
