"""Norms: lengths on both sides of vectors and blocks, sizes of eps, and strides."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import PRIMES

_LENGTHS = (2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 65, 127, 128, 129, 132, 255, 256, 257, 260, 511,
            513, 1024, 1025, 2048, 4096)  # fmt: skip
_NORMS = ("rms_norm", "norm", "l2_norm")
_LAYOUTS = ("", "view", "offset", "0213", "0321", "0132")

CASES: list[Case] = [
    *(Case(op, ne=[(n, 3)], span=(-10, 10), eps=1e-6) for op in _NORMS for n in _LENGTHS),
    *(Case(op, ne=[(n, 5, 4, 3)], layouts=(v,), span=(-10, 10), eps=eps) for op in _NORMS
      for n in (33, 64, 132) for v in _LAYOUTS for eps in (1e-6, 10.0)),
    *(Case(op, ne=[(n, 2)], span=(0, 1e-4), eps=eps) for op in ("rms_norm", "l2_norm")
      for n in (64, 1025) for eps in (1e-12, 1e-6, 0.1)),
    *(Case(op, ne=[(64, 3)], span=(1e4, 2e4), eps=1e-5) for op in _NORMS),  # a large mean
    *(Case(op, ne=[PRIMES], layouts=("repeated",), eps=1e-5) for op in _NORMS),
    *(Case("group_norm", ne=[(w, h, c, n)], n_groups=g, eps=eps)
      for w, h in ((1, 1), (9, 9), (16, 3))
      for c, g in ((4, 1), (32, 32), (32, 4), (13, 5), (64, 7))
      for n in (1, 2) for eps in (1e-6, 0.1) if w * h * c > g),
]  # fmt: skip
