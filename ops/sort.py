"""Sorting within rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32, I32
from ggmlpy.ops.views import view_4d


class SortOrder(IntEnum):
    """ggml's numbers."""

    ASC = 0
    DESC = 1


@op("argsort")
@dataclass(frozen=True, slots=True)
class Argsort(Op):
    """The indices that sort each row.

        x[y[0]], x[y[1]], ... is in order          x [n, ...] f32  ->  y [n, ...] i32

    Stable: equal values are ordered by ascending index, in ascending and descending order; NaN is
    last in both. Raises ShapeError unless x is f32 with contiguous rows.
    """

    order: SortOrder

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")
        return Spec(x.ne, I32)

    def reference(self, x: Array) -> Array:
        key = -x if self.order is SortOrder.DESC else x
        return np.argsort(key, axis=-1, kind="stable").astype(np.int32)


@op("top_k")
@dataclass(frozen=True, slots=True)
class TopK(Op):
    """The indices of the k largest elements of each row.

        x [n, ...] f32  ->  y [k, ...] i32

    By descending value, equal values by ascending index, NaN last (ggml leaves the order open).
    Raises ShapeError unless x is f32 with contiguous rows and k is 1 to n.
    """

    k: int

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")
        require(1 <= self.k <= x.ne[0], f"k is {self.k}: it must be 1 to {x.ne[0]}, the columns")
        return Spec((self.k, *x.ne[1:]), I32)

    def reference(self, x: Array) -> Array:
        return np.argsort(-x, axis=-1, kind="stable")[..., : self.k].astype(np.int32)


@checked
def argsort(a: Tensor, order: int) -> Tensor:
    """`ggml_argsort`: order 0 ascending, 1 descending; see Argsort."""
    require(order in (0, 1), f"argsort: order is {order}: it must be 0 (up) or 1 (down)")
    return Argsort(SortOrder(order)).node(a)


@checked
def top_k(a: Tensor, k: int) -> Tensor:
    """`ggml_top_k`; see TopK."""
    return TopK(k).node(a)


@checked
def argsort_top_k(a: Tensor, k: int) -> Tensor:
    """`ggml_argsort_top_k`: a view of the first k columns of a descending argsort."""
    require(1 <= k <= a.ne[0], f"argsort_top_k: k is {k}: it must be 1 to {a.ne[0]}, the columns")
    order = argsort(a, SortOrder.DESC)
    _, nb1, nb2, nb3 = order.nb
    return view_4d(order, k, a.ne[1], a.ne[2], a.ne[3], nb1, nb2, nb3, 0)
