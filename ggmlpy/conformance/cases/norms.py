"""Normalisations of rows and of groups."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import PRIMES

CASES: list[Case] = [
    *(
        Case(op, ne=[ne], span=(-10, 10), eps=eps)
        for op in ("rms_norm", "norm", "l2_norm")
        for ne in (PRIMES, (64, 5), (4099, 3), (1, 7))
        for eps in (1e-6, 0.1)
        if (op, ne[0]) != ("norm", 1)  # a variance of exactly 0 leaves rounding to be compared
    ),
    *(
        Case(op, ne=[PRIMES], layouts=(layout,), span=(-10, 10), eps=1e-5)
        for op in ("rms_norm", "norm", "l2_norm")
        for layout in ("permuted", "view")
    ),
    Case("rms_norm", ne=[(32, 70_001)], eps=1e-5),
    Case("group_norm", ne=[(7, 5, 12, 3)], n_groups=4, eps=1e-6),
    Case("group_norm", ne=[(7, 5, 11, 2)], n_groups=4, eps=1e-6),  # groups of 3, 3, 3 and 2
]
