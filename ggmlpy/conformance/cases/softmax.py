"""Softmax with masks, biases and sinks."""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import PRIMES
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.conformance.masks import mask_of, sinks_of
from ggmlpy.graph.spec import as_ne
from ggmlpy.graph.tensor import Tensor


@builds("soft_max_ext")
def _soft_max_ext(case: Case, inputs: Inputs) -> Tensor:
    """ne: x, mask or nothing; params: scale, max_bias, mask (kind), sinks."""
    params = case.params
    mask = None
    if len(case.ne) > 1:
        mask = mask_of(inputs, params.get("mask", "random"), as_ne(case.ne[1]), case.types[1])
    y = ops.soft_max_ext(inputs[0], mask, params.get("scale", 1.0), params.get("max_bias", 0.0))
    return ops.soft_max_add_sinks(y, sinks_of(case, inputs, as_ne(case.ne[0])[2]))


CASES: list[Case] = [
    *(Case("soft_max", ne=[ne], span=(-10, 10)) for ne in (PRIMES, (1021, 3), (1, 5), (7, 70_001))),
    *(
        Case("soft_max_ext", ne=[(67, 7, 6, 4), (67, 9, h, s)], types=("f32", t),
             span=(-10, 10), scale=0.125, max_bias=bias, mask=mask, sinks=sinks)
        for t in ("f16", "f32")
        for h, s in ((1, 1), (3, 2))
        for bias in (0.0, 8.0)
        for mask in ("random", "dead")
        for sinks in (False, True)
    ),
    *(Case("soft_max_ext", ne=[(33, 5, 4), (33, 5)], types=("f32", "f16"), mask=m, sinks=s)
      for m in ("causal", "all", "holes") for s in (False, True)),
    Case("soft_max_ext", ne=[(1031, 3, 2)], span=(-10, 10), scale=0.5, sinks=True),
    *(Case(f"diag_mask_{to}", ne=[ne], n_past=n) for to in ("inf", "zero")
      for ne, n in (((13, 11, 5, 3), 2), ((11, 11, 3), 0), ((67, 33), 40), ((1, 3), 0))),
    *(Case(f"diag_mask_{to}", ne=[(13, 11, 5)], n_past=1, layouts=(v,)) for to in ("inf", "zero")
      for v in ("permuted", "view")),
]  # fmt: skip
