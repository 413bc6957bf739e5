"""Sums, maxima, orders: lengths on both sides of blocks, ties, strides."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import PRIMES

_LENGTHS = (2, 3, 15, 16, 17, 33, 127, 128, 129, 255, 257, 511, 513, 1025, 2048)
_SUMS = ("sum", "sum_rows", "mean", "cumsum")
_POWERS = (2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 511, 512, 1023, 1024, 2049)

CASES: list[Case] = [
    *(Case(op, ne=[(n, 3)], span=(-0.9, 1.1)) for op in _SUMS for n in _LENGTHS),
    *(Case(op, ne=[(11, 5, 6, 3)], layouts=(v,)) for op in _SUMS
      for v in ("view", "offset", "0213", "0321", "0132")),
    *(Case(op, ne=[ne]) for op in _SUMS for ne in ((33, 256), (5000,), (1,), (16, 1, 1, 33))),
    *(Case(op, ne=[(65, 3)], span=(1e3, 1e3 + 1)) for op in _SUMS),  # no cancellation
    *(Case("argmax", ne=[(n, r)], ties=t) for n in (2, 32, 33, 100, 1024, 2000) for r in (1, 10)
      for t in (False, True)),
    *(Case("argmax", ne=[(37, 11)], layouts=(v,), span=(-9, -1)) for v in ("view", "offset")),
    *(Case("argsort", ne=[(n, 2)], order=o, ties=t) for n in _POWERS for o in (0, 1)
      for t in (False, True)),
    *(Case("argsort", ne=[(n, 3, 2, 2)], layouts=(v,), order=o) for n in (16, 60) for o in (0, 1)
      for v in ("", "view", "offset", "0213")),
    *(Case("top_k", ne=[(n, 2, 1, 3)], k=k, ties=t) for n in range(1, 5) for k in range(1, n + 1)
      for t in (False, True)),
    *(Case("top_k", ne=[(n + m, 1, 2)], k=k, ties=t) for n in (16, 64, 256, 1024) for m in (0, 13)
      for k in (1, 2, 3, 7, 15, 100, 500, 1023) if k <= n for t in (False, True)),
    *(Case("top_k", ne=[(60, 3, 5)], layouts=(v,), k=k) for v in ("view", "offset", "0213")
      for k in (1, 7)),
    *(Case("top_k", ne=[PRIMES], k=k, ties=True) for k in (1, 3, 5)),
]  # fmt: skip
