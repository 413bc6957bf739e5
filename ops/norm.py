"""Row normalisations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy.op import Array, Op, op
from ggmlpy.spec import Spec, require
from ggmlpy.tensor import Tensor
from ggmlpy.types import F32


@op("rms_norm")
@dataclass(frozen=True, slots=True)
class RmsNorm(Op):
    """Scale each row to unit root mean square.

        y[i] = x[i] / sqrt(mean_j x[j]^2 + eps)          x [n, ...] f32  ->  y like x

    Raises ShapeError unless x is f32 with contiguous rows. Source: Zhang & Sennrich, 2019.
    """

    in_place = True

    eps: float

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")
        return Spec(x.ne, F32)

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float64)
        mean_square: Array = np.mean(wide * wide, axis=-1, keepdims=True)
        return wide / np.sqrt(mean_square + self.eps)


def rms_norm(a: Tensor, eps: float) -> Tensor:
    """`ggml_rms_norm`; see RmsNorm."""
    return RmsNorm(eps).node(a)
