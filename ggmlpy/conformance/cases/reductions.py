"""Sums, maxima and orders of rows."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import PRIMES

CASES: list[Case] = [
    *(Case(op, ne=[ne], span=(-0.9, 1.1)) for op in ("sum", "sum_rows", "mean", "cumsum")
      for ne in (PRIMES, (1021, 3), (1, 7))),
    *(Case(op, ne=[PRIMES], layouts=(v,)) for op in ("sum", "sum_rows", "mean", "cumsum")
      for v in ("permuted", "view")),
    Case("sum_rows", ne=[(3, 70_001)]),
    *(Case("argmax", ne=[ne]) for ne in ((37, 11), (4099, 2), (1, 3), (3, 70_001))),
    Case("argmax", ne=[(37, 11)], ties=True),
    *(Case("argsort", ne=[ne], order=o, ties=t) for ne in (PRIMES, (1021, 3), (1, 5))
      for o in (0, 1) for t in (False, True)),
    *(Case("top_k", ne=[(n, 5)], k=k, ties=t) for n, k in ((37, 1), (37, 8), (37, 37), (4099, 40))
      for t in (False, True)),
    Case("argsort", ne=[(3, 70_001)], order=1),
    *(Case("count_equal", ne=[ne, ne], types=("i32", "i32"), span=(0, 3), layouts=(v, ""))
      for ne, v in ((PRIMES, ""), ((1021, 3), "view"), ((1, 5), ""), ((7, 5, 3), "permuted"))),
]  # fmt: skip
