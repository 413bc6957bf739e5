"""Sweeps: what kernels distinguish, each with everything else small.

The families beside have the rows that were chosen one by one.
"""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.grids import (
    attention,
    copies,
    elementwise,
    experts,
    functions,
    norms,
    orders,
    products,
    rope,
    rows,
    shapes,
    softmax,
)

_GRIDS = (
    elementwise,
    functions,
    norms,
    products,
    experts,
    rows,
    copies,
    rope,
    softmax,
    attention,
    shapes,
    orders,
)

CASES: list[Case] = [case for grid in _GRIDS for case in grid.CASES]
