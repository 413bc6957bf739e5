"""Pooling over windows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32


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


@checked
def pool_2d(a: Tensor, op: int, k0: int, k1: int, s0: int, s1: int, p0: float, p1: float) -> Tensor:
    """`ggml_pool_2d`: op 0 the largest, 1 the average; see Pool2d."""
    require(op in (0, 1), f"pool_2d: op is {op}: it must be 0 (largest) or 1 (average)")
    whole = p0.is_integer() and p1.is_integer()
    require(whole, f"pool_2d: paddings {p0:g} and {p1:g} must be whole")
    return Pool2d(PoolOp(op), k0, k1, s0, s1, int(p0), int(p1)).node(a)
