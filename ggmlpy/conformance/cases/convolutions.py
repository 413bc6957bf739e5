"""Convolutions and pooling."""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.graph.tensor import Tensor


@builds("pool_2d")
def _pool_2d(case: Case, inputs: Inputs) -> Tensor:
    """params: pool, which is ggml's `op`, and the others of pool_2d."""
    params = {"op" if k == "pool" else k: v for k, v in case.params.items()}
    return ops.pool_2d(inputs[0], **params)


CASES: list[Case] = [
    *(Case("pool_2d", ne=[(12, 11, 3, 2)], pool=o, k0=3, k1=2, s0=2, s1=3, p0=1, p1=p)
      for o in (0, 1) for p in (0, 1)),
]  # fmt: skip
