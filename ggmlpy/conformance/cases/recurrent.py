"""Recurrent layers."""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.graph.tensor import Tensor


@builds("ssm_conv")
def _ssm_conv(case: Case, inputs: Inputs) -> Tensor:
    """ne: x, kernel; with taps: columns, kernel, taps."""
    if len(case.ne) == 2:
        return ops.ssm_conv(inputs[0], inputs[1])
    taps = inputs.ids(case.ne[2], case.ne[0][1])
    return ops.ssm_conv(inputs[0], inputs[1], taps=taps)


CASES: list[Case] = [
    *(Case("ssm_conv", ne=[(k - 1 + n, 37, s), (k, 37)]) for k in (3, 4) for n in (1, 8, 33)
      for s in (1, 3)),
    Case("ssm_conv", ne=[(36, 37, 3), (4, 37)], layouts=("view", "view")),
    *(Case("ssm_conv", ne=[(c, 9), (k, c), (k, n)], types=("f32", "f32", "i32"))
      for k in (1, 3, 4) for n in (1, 8, 33) for c in (5, 37, 64, 150)),
    Case("ssm_conv", ne=[(37, 9), (4, 37), (4, 7)], types=("f32", "f32", "i32"),
         layouts=("view", "view")),
    Case("gated_linear_attn", ne=[(16, 3, 8)] * 4 + [(768, 2)], scale=0.5),
    Case("gated_linear_attn", ne=[(64, 2, 7)] * 4 + [(8192, 1)], scale=0.125),
]  # fmt: skip
