"""Row and group normalisations. They have no weights: multiply the result by those."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32


class RowNorm(Op):
    """The base of norms of rows: x [n, ...] f32 with contiguous rows  ->  y like x."""

    __slots__ = ()

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")
        return Spec(x.ne, F32)


@op("rms_norm")
@dataclass(frozen=True, slots=True)
class RmsNorm(RowNorm):
    """Scale each row to unit root mean square.

        y[i] = x[i] / sqrt(mean_j x[j]^2 + eps)          x [n, ...] f32  ->  y like x

    Raises ShapeError unless x is f32 with contiguous rows. Source: Zhang & Sennrich, 2019.
    """

    in_place = True

    eps: float

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float64)
        mean_square: Array = np.mean(wide * wide, axis=-1, keepdims=True)
        return wide / np.sqrt(mean_square + self.eps)


@op("norm")
@dataclass(frozen=True, slots=True)
class Norm(RowNorm):
    """Shift and scale each row to mean 0 and variance 1.

        y[i] = (x[i] - mean) / sqrt(mean_j (x[j] - mean)^2 + eps)       x [n, ...] f32  ->  y like x

    Raises ShapeError unless x is f32 with contiguous rows. Source: Ba et al., 2016.
    """

    eps: float

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float64)
        mean: Array = wide.mean(axis=-1, keepdims=True)
        centred = wide - mean
        variance: Array = np.mean(centred * centred, axis=-1, keepdims=True)
        return centred / np.sqrt(variance + self.eps)


@op("l2_norm")
@dataclass(frozen=True, slots=True)
class L2Norm(RowNorm):
    """Scale each row to length 1.

        y[i] = x[i] / max(sqrt(sum_j x[j]^2), eps)          x [n, ...] f32  ->  y like x

    Raises ShapeError unless x is f32 with contiguous rows.
    """

    eps: float

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float64)
        length: Array = np.sqrt(np.sum(wide * wide, axis=-1, keepdims=True))
        return wide / np.maximum(length, self.eps)


@op("group_norm")
@dataclass(frozen=True, slots=True)
class GroupNorm(Op):
    """Shift and scale each group of channels to mean 0 and variance 1.

        channels are dimension 2, in groups of ceil(C / n_groups), the last may be smaller
        y = (x - mean of its group) / sqrt(variance of its group + eps)
        x [W, H, C, N] f32 contiguous  ->  y like x

    Raises ShapeError for other types, and unless n_groups is 1 to C. Source: Wu & He, 2018.
    """

    n_groups: int
    eps: float

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.contiguous, "x must be f32 and contiguous")
        require(
            1 <= self.n_groups <= x.ne[2],
            f"n_groups is {self.n_groups}: it must be 1 to {x.ne[2]}, the channels",
        )
        return Spec(x.ne, F32)

    def reference(self, x: Array) -> Array:
        y = x.astype(np.float64)
        n_channels = x.shape[1]
        size = -(-n_channels // self.n_groups)
        for start in range(0, n_channels, size):
            group = y[:, start : start + size]  # a view: the result replaces it
            mean = group.mean(axis=(1, 2, 3), keepdims=True)
            variance = group.var(axis=(1, 2, 3), keepdims=True)
            group[...] = (group - mean) / np.sqrt(variance + self.eps)
        return y


@checked
def rms_norm(a: Tensor, eps: float) -> Tensor:
    """`ggml_rms_norm`; see RmsNorm."""
    return RmsNorm(eps).node(a)


@checked
def norm(a: Tensor, eps: float) -> Tensor:
    """`ggml_norm`; see Norm."""
    return Norm(eps).node(a)


@checked
def l2_norm(a: Tensor, eps: float) -> Tensor:
    """`ggml_l2_norm`; see L2Norm."""
    return L2Norm(eps).node(a)


@checked
def group_norm(a: Tensor, n_groups: int, eps: float) -> Tensor:
    """`ggml_group_norm`; see GroupNorm."""
    return GroupNorm(n_groups, eps).node(a)
