"""The conformance cases, by family: one table for every backend."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases import (
    activations,
    attention,
    convolutions,
    copies,
    elementwise,
    hybrid,
    images,
    norms,
    products,
    recurrent,
    reductions,
    rope,
    rows,
    shapes,
    softmax,
    training,
)

_FAMILIES = (
    elementwise,
    activations,
    norms,
    products,
    rows,
    copies,
    rope,
    softmax,
    attention,
    shapes,
    images,
    reductions,
    recurrent,
    hybrid,
    convolutions,
    training,
)

CASES: list[Case] = [case for family in _FAMILIES for case in family.CASES]
