"""Matrix products. The contraction runs along dimension 0 of both sources."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import BF16, F16, F32, I32
from ggmlpy.ops.rows import check_ids


def _check_factors(weight: Spec, x: Spec) -> None:
    k, k_x = weight.ne[0], x.ne[0]
    require(k == k_x, f"first dimensions {k} and {k_x} differ")
    require(
        weight.type.is_quantized or weight.type in (F32, F16, BF16),
        "the weight must be quantised, f32, f16 or bf16",
    )
    require(
        weight.rows_contiguous,
        "the weight must have contiguous rows, it may not be transposed (take ops.cont of it)",
    )
    require(x.type in (F32, F16, BF16), "x must be f32, f16 or bf16")


@op("mul_mat")
@dataclass(frozen=True, slots=True)
class MulMat(Op):
    """Rows of x times rows of the weight, for every matrix of x.

        y[m, n, i2, i3] = sum_k weight[k, m, i2 // r2, i3 // r3] * x[k, n, i2, i3]
        weight [K, M, A, B], x [K, N, A * r2, B * r3]  ->  y [M, N, A * r2, B * r3] f32

    The weight is broadcast by division: with heads in dimension 2, grouped queries share a key
    head. weight f32, f16, bf16 or quantised, x f32, f16 or bf16 with any strides. The reference is
    the exact product; backends that round x to 8 bits stay within an NMSE of 5e-4. Raises
    ShapeError for other shapes and types, and for a weight without contiguous rows.
    """

    def infer(self, weight: Spec, x: Spec) -> Spec:
        _check_factors(weight, x)
        require(
            x.ne[2] % weight.ne[2] == 0 and x.ne[3] % weight.ne[3] == 0,
            f"dimensions 2 and 3 of x {list(x.ne[2:])} must be multiples of the weight's "
            f"{list(weight.ne[2:])}",
        )
        return Spec((weight.ne[1], *x.ne[1:]), F32)

    def reference(self, weight: Array, x: Array) -> Array:
        for axis in (0, 1):
            weight = np.repeat(weight, x.shape[axis] // weight.shape[axis], axis=axis)
        return x.astype(np.float64) @ weight.astype(np.float64).swapaxes(2, 3)


@op("mul_mat_id")
@dataclass(frozen=True, slots=True)
class MulMatId(Op):
    """Each row of x times the matrix that ids selects: a mixture of experts.

        y[m, u, t] = sum_k weight[k, m, ids[u, t]] * x[k, u % X, t]
        weight [K, M, E], x [K, X, T], ids [U, T] i32  ->  y [M, U, T] f32

    X is U (a row for each expert used) or a divisor of it, as 1 (one row for all). Types and
    exactness as in mul_mat. Raises ShapeError for other shapes, IndexOutOfRange when run with an id
    outside 0 to E - 1.
    """

    def infer(self, weight: Spec, x: Spec, ids: Spec) -> Spec:
        _check_factors(weight, x)
        require(ids.type is I32, "ids must be i32")
        require(weight.ne[3] == 1, "the weight must have at most 3 dimensions")
        require(x.ne[3] == 1, "x must have at most 3 dimensions")
        n_used, n_tokens = ids.ne[:2]
        require(
            ids.ne[2:] == (1, 1) and n_tokens == x.ne[2],
            f"ids must be [{n_used}, {x.ne[2]}]: a list for every token of x",
        )
        require(
            n_used % x.ne[1] == 0,
            f"dimension 1 of x, {x.ne[1]}, must divide the {n_used} experts of a token",
        )
        return Spec((weight.ne[1], n_used, n_tokens), F32)

    def reference(self, weight: Array, x: Array, ids: Array) -> Array:
        check_ids(self.name, ids, weight.shape[1], "experts")
        experts = weight[0].astype(np.float64)  # numpy order [E, M, K]
        rows = x[0].astype(np.float64)  # [T, X, K]
        picked = ids[0, 0]  # [T, U]
        y = np.empty((1, *picked.shape, experts.shape[1]))
        for t, u in np.ndindex(picked.shape):
            y[0, t, u] = experts[picked[t, u]] @ rows[t, u % rows.shape[1]]
        return y


@op("out_prod")
@dataclass(frozen=True, slots=True)
class OutProd(Op):
    """The sum of outer products of rows, for every matrix of b.

        y[m, n, i2, i3] = sum_k a[m, k, i2 // r2, i3 // r3] * b[n, k, i2, i3]
        a [M, K, A, B], b [N, K, A * r2, B * r3]  ->  y [M, N, A * r2, B * r3] f32

    a f32, f16, bf16 or quantised with contiguous rows, b f32 with any strides. Raises ShapeError
    for other shapes and types.
    """

    def infer(self, a: Spec, b: Spec) -> Spec:
        require(
            a.type.is_quantized or a.type in (F32, F16, BF16),
            "a must be quantised, f32, f16 or bf16",
        )
        require(a.rows_contiguous, "a must have contiguous rows")
        require(b.type is F32, "b must be f32")
        require(a.ne[1] == b.ne[1], f"dimensions 1, {a.ne[1]} and {b.ne[1]}, must be equal")
        require(
            b.ne[2] % a.ne[2] == 0 and b.ne[3] % a.ne[3] == 0,
            f"dimensions 2 and 3 of b {list(b.ne[2:])} must be multiples of a's {list(a.ne[2:])}",
        )
        return Spec((a.ne[0], b.ne[0], *b.ne[2:]), F32)

    def reference(self, a: Array, b: Array) -> Array:
        for axis in (0, 1):
            a = np.repeat(a, b.shape[axis] // a.shape[axis], axis=axis)
        return b.astype(np.float64).swapaxes(2, 3) @ a.astype(np.float64)


@checked
def mul_mat(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_mul_mat`: a the weight, b the rows; see MulMat."""
    return MulMat().node(a, b)


@checked
def mul_mat_id(as_: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """`ggml_mul_mat_id`: as_ the experts' weights, b the rows; see MulMatId."""
    return MulMatId().node(as_, b, ids)


@checked
def out_prod(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_out_prod`; see OutProd."""
    return OutProd().node(a, b)
