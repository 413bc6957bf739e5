"""Reductions and prefix sums. All take f32 with contiguous rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32, I32, I64


def _check(x: Spec) -> None:
    require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")


@op("sum")
@dataclass(frozen=True, slots=True)
class Sum(Op):
    """y = the sum of all elements: x [...] f32 -> y [1] f32."""

    def infer(self, x: Spec) -> Spec:
        _check(x)
        return Spec((1,), F32)

    def reference(self, x: Array) -> Array:
        total: Array = x.astype(np.float64).sum(keepdims=True)
        return total


@op("sum_rows")
@dataclass(frozen=True, slots=True)
class SumRows(Op):
    """y[0, ...] = sum_i x[i, ...]: x [n, ...] f32 -> y [1, ...] f32."""

    def infer(self, x: Spec) -> Spec:
        _check(x)
        return Spec((1, *x.ne[1:]), F32)

    def reference(self, x: Array) -> Array:
        total: Array = x.astype(np.float64).sum(axis=-1, keepdims=True)
        return total


@op("mean")
@dataclass(frozen=True, slots=True)
class Mean(Op):
    """y[0, ...] = mean_i x[i, ...]: x [n, ...] f32 -> y [1, ...] f32."""

    def infer(self, x: Spec) -> Spec:
        _check(x)
        return Spec((1, *x.ne[1:]), F32)

    def reference(self, x: Array) -> Array:
        average: Array = x.astype(np.float64).mean(axis=-1, keepdims=True)
        return average


@op("argmax")
@dataclass(frozen=True, slots=True)
class Argmax(Op):
    """y[r] = the index of the largest element of row r: x [n, R] f32 -> y [R] i32.

    The lowest index of equal elements; that of the first NaN, if there is one.
    """

    def infer(self, x: Spec) -> Spec:
        _check(x)
        require(x.ne[2:] == (1, 1), "x must have at most 2 dimensions")
        return Spec((x.ne[1],), I32)

    def reference(self, x: Array) -> Array:
        index: Array = np.argmax(x, axis=-1)
        return index.reshape(1, 1, 1, -1).astype(np.int32)


@op("cumsum")
@dataclass(frozen=True, slots=True)
class Cumsum(Op):
    """y[i, ...] = sum_(j <= i) x[j, ...]: x [n, ...] f32 -> y like x."""

    def infer(self, x: Spec) -> Spec:
        _check(x)
        return Spec(x.ne, F32)

    def reference(self, x: Array) -> Array:
        return np.cumsum(x, axis=-1, dtype=np.float64)


@op("count_equal")
@dataclass(frozen=True, slots=True)
class CountEqual(Op):
    """How many elements are equal: a, b [...] i32 of one shape  ->  y [1] i64."""

    def infer(self, a: Spec, b: Spec) -> Spec:
        require(a.type is I32 and b.type is I32, "a and b must be i32")
        require(a.ne == b.ne, "a and b must have the same shape")
        require(a.rows_contiguous and b.rows_contiguous, "a and b must have contiguous rows")
        return Spec((1,), I64)

    def reference(self, a: Array, b: Array) -> Array:
        return np.full((1, 1, 1, 1), np.count_nonzero(a == b), np.int64)


@checked
def sum(a: Tensor) -> Tensor:
    """`ggml_sum`; see Sum."""
    return Sum().node(a)


@checked
def sum_rows(a: Tensor) -> Tensor:
    """`ggml_sum_rows`; see SumRows."""
    return SumRows().node(a)


@checked
def mean(a: Tensor) -> Tensor:
    """`ggml_mean`; see Mean."""
    return Mean().node(a)


@checked
def argmax(a: Tensor) -> Tensor:
    """`ggml_argmax`; see Argmax."""
    return Argmax().node(a)


@checked
def cumsum(a: Tensor) -> Tensor:
    """`ggml_cumsum`; see Cumsum."""
    return Cumsum().node(a)


@checked
def count_equal(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_count_equal`; see CountEqual."""
    return CountEqual().node(a, b)
