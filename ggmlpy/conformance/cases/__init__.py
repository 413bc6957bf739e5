"""The conformance cases, by family: one table for every backend."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases import (
    activations,
    attention,
    convolutions,
    copies,
    elementwise,
    grids,
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
    grids,
)

# A grid may meet a row of its family.
CASES: list[Case] = list({case.id: case for family in _FAMILIES for case in family.CASES}.values())
