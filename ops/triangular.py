"""Triangular matrices: parts of a matrix, a diagonal, and systems of equations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32


class TriType(IntEnum):
    """ggml's numbers: which part of a matrix is kept, with its diagonal or without."""

    UPPER_DIAG = 0
    UPPER = 1
    LOWER_DIAG = 2
    LOWER = 3


@op("tri")
@dataclass(frozen=True, slots=True)
class Tri(Op):
    """A triangle of each matrix, and zeros.

        y[j, i] = x[j, i] where column j and row i are in the part, else 0
        UPPER_DIAG j >= i, UPPER j > i, LOWER_DIAG j <= i, LOWER j < i
        x [n, m, ...] f32  ->  y like x

    Raises ShapeError unless x is f32 with contiguous rows. (ggml's matrices must be square.)
    """

    type: TriType

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")
        return Spec(x.ne, F32)

    def reference(self, x: Array) -> Array:
        if self.type in (TriType.UPPER_DIAG, TriType.UPPER):
            return np.triu(x, k=int(self.type is TriType.UPPER))
        return np.tril(x, k=-int(self.type is TriType.LOWER))


@op("diag")
@dataclass(frozen=True, slots=True)
class Diag(Op):
    """Each row as the diagonal of a matrix.

    y[j, i] = x[i] where j = i, else 0          x [n, 1, ...] f32  ->  y [n, n, ...] f32

    Raises ShapeError unless x is f32 with contiguous rows, of which a matrix has one.
    """

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")
        require(x.ne[1] == 1, f"dimension 1 of x is {x.ne[1]}: it must be 1")
        return Spec((x.ne[0], x.ne[0], *x.ne[2:]), F32)

    def reference(self, x: Array) -> Array:
        y: Array = x * np.eye(x.shape[3], dtype=x.dtype)
        return np.where(np.eye(x.shape[3], dtype=np.bool_), x, y.dtype.type(0))


@op("solve_tri")
@dataclass(frozen=True, slots=True)
class SolveTri(Op):
    """X of A X = B, for lower triangular A, by forward substitution.

        x[j, i] = (b[j, i] - sum_(t < i) a[t, i] x[j, t]) / a[i, i]
        a [n, n, ...], b [k, n, ...], both f32 with contiguous rows  ->  x [k, n, ...] f32

    What lies above a's diagonal is not read. A 0 on the diagonal gives inf or NaN. Raises
    ShapeError for other shapes and types, and unless the dimensions 2 and 3 of a and b are equal.
    """

    def infer(self, a: Spec, b: Spec) -> Spec:
        for name, spec in (("a", a), ("b", b)):
            require(
                spec.type is F32 and spec.rows_contiguous,
                f"{name} must be f32 with contiguous rows",
            )
        require(a.ne[0] == a.ne[1], f"a must be square, it is {a.ne[0]} by {a.ne[1]}")
        require(a.ne[1:] == b.ne[1:], "a and b must have the same dimensions 1, 2 and 3")
        return Spec(b.ne, F32)

    def reference(self, a: Array, b: Array) -> Array:
        a, x = a.astype(np.float64), b.astype(np.float64)
        for i in range(a.shape[2]):
            known = np.einsum("xyt,xytj->xyj", a[:, :, i, :i], x[:, :, :i])
            x[:, :, i] = (x[:, :, i] - known) / a[:, :, i, i, None]
        return x


@checked
def tri(a: Tensor, type: int) -> Tensor:
    """`ggml_tri`: type 0 upper with the diagonal, 1 upper, 2 lower with it, 3 lower; see Tri."""
    known = [int(kind) for kind in TriType]
    require(type in known, f"tri: type is {type}: it must be one of {known}")
    return Tri(TriType(type)).node(a)


@checked
def diag(a: Tensor) -> Tensor:
    """`ggml_diag`; see Diag."""
    return Diag().node(a)


@checked
def solve_tri(a: Tensor, b: Tensor, left: bool, lower: bool, uni: bool) -> Tensor:
    """`ggml_solve_tri`: left and lower must be True, uni False, as in ggml; see SolveTri."""
    require(
        left and lower and not uni,
        f"solve_tri: left, lower, uni are {left}, {lower}, {uni}: they must be True, True, False",
    )
    return SolveTri().node(a, b)
