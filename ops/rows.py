"""Gather and scatter rows by index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.arguments import checked
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.quants import has_quantizer
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32, I32, I64


def check_ids(op_name: str, ids: Array, limit: int, what: str, source: str = "ids") -> None:
    """Raise IndexOutOfRange for the first index outside 0 to limit - 1, of so many `what`."""
    outside = (ids < 0) | (ids >= limit)
    if outside.any():
        first = [int(i) for i in np.argwhere(outside)[0][::-1]]
        value = int(ids[outside][0])
        raise IndexOutOfRange(
            f"{op_name}: {source}{first} is {value}: it must be from 0 to {limit - 1}, "
            f"there are {limit} {what}"
        )


@op("get_rows")
@dataclass(frozen=True, slots=True)
class GetRows(Op):
    """Gather rows.

        y[:, i, a, b] = x[:, ids[i, a, b], a, b]
        x [n, R, A, B] any type, ids [I, A, B] i32  ->  y [n, I, A, B] f32 (i32 where x is i32)

    Ids may repeat. Raises ShapeError unless x has contiguous rows and ids has a list for every
    matrix of x (nothing is broadcast), IndexOutOfRange when run with an id outside 0 to R - 1.
    """

    def infer(self, x: Spec, ids: Spec) -> Spec:
        require(ids.type is I32, "ids must be i32")
        require(x.rows_contiguous, "x must have contiguous rows")
        require(x.type.is_float or x.type.is_quantized or x.type is I32, "x must be floats or i32")
        n, _, n_a, n_b = x.ne
        require(
            ids.ne[1:] == (n_a, n_b, 1),
            f"ids must be [{ids.ne[0]}, {n_a}, {n_b}]: a list for every matrix of x",
        )
        return Spec((n, ids.ne[0], n_a, n_b), I32 if x.type is I32 else F32)

    def reference(self, x: Array, ids: Array) -> Array:
        check_ids(self.name, ids, x.shape[2], "rows of x")
        return np.take_along_axis(x, ids[0][..., None], axis=2)


@op("set_rows")
@dataclass(frozen=True, slots=True)
class SetRows(Op):
    """Scatter rows into dst, converting to its type; the result is dst.

        dst[:, ids[i, a % A1, b % B1], a, b] = x[:, i, a, b]
        x [n, I, A, B] f32 or f16, ids [I, A1, B1] i64 or i32, dst [n, R, A, B]  ->  dst

    dst is of any float type, or of a quantised type with a quantiser. If an id is repeated, the
    last row counts. Raises ShapeError unless A1 divides A, B1 divides B, and rows are contiguous;
    WriteError when planned where dst is a weight or read-only, or shares memory with x or ids;
    IndexOutOfRange when run with an id outside 0 to R - 1, before anything is written.
    """

    view_of = 2

    def infer(self, x: Spec, ids: Spec, dst: Spec) -> Spec:
        require(x.type in (F32, F16), "x must be f32 or f16")
        require(ids.type in (I64, I32), "ids must be i64 or i32")
        require(
            dst.type.is_float or (dst.type.is_quantized and has_quantizer(dst.type)),
            "dst must be of a float type or of a quantised type with a quantiser",
        )
        require(x.rows_contiguous and dst.rows_contiguous, "x and dst must have contiguous rows")
        n, n_rows, n_a, n_b = x.ne
        require(
            (dst.ne[0], *dst.ne[2:]) == (n, n_a, n_b),
            f"dst must be [{n}, {dst.ne[1]}, {n_a}, {n_b}]: like x but for the number of rows",
        )
        require(ids.ne[0] == n_rows, f"ids must have {n_rows} entries, one for each row of x")
        require(
            n_a % ids.ne[1] == 0 and n_b % ids.ne[2] == 0 and ids.ne[3] == 1,
            f"dimensions 1 and 2 of ids must divide {n_a} and {n_b}, its dimension 3 must be 1",
        )
        return dst

    def reference(self, x: Array, ids: Array, dst: Array) -> Array:
        lists = self._lists(x, ids, dst)
        result = dst.astype(np.float64)
        for (i3, i2), rows in lists.items():
            for i, row in enumerate(rows):
                result[i3, i2, row] = x[i3, i2, i]
        return result

    def written_rows(self, x: Array, ids: Array, dst: Array) -> NDArray[np.bool_]:
        written = np.zeros(dst.shape[:3], np.bool_)
        for (i3, i2), rows in self._lists(x, ids, dst).items():
            written[i3, i2, rows] = True
        return written

    def _lists(self, x: Array, ids: Array, dst: Array) -> dict[tuple[int, int], Array]:
        """The row numbers for each matrix (i3, i2) of x, checked."""
        check_ids(self.name, ids, dst.shape[2], "rows of dst")
        _, n_b, n_a, _ = ids.shape
        n_3, n_2 = x.shape[:2]
        return {(i3, i2): ids[0, i3 % n_b, i2 % n_a] for i3 in range(n_3) for i2 in range(n_2)}


@checked
def get_rows(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_get_rows`: rows of a by the ids in b; see GetRows."""
    return GetRows().node(a, b)


@checked
def set_rows(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """`ggml_set_rows`: the rows of b into a, at the ids in c; see SetRows."""
    return SetRows().node(b, c, a)
