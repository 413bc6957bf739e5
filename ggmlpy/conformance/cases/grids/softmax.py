"""Softmax: lengths, masks of two types, biases, sinks, broadcasts and strides."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import EDGES, PRIMES

CASES: list[Case] = [
    *(Case("soft_max", ne=[(n, 3)], span=(-10, 10)) for n in EDGES),
    *(Case("soft_max", ne=[PRIMES], layouts=(v,), span=(-10, 10))
      for v in ("view", "offset", "0213", "0321")),
    *(Case("soft_max_ext", ne=[(n, 5, 4), (n, 5)], types=("f32", t), span=(-10, 10), scale=s,
           max_bias=b, sinks=sinks)
      for n in (15, 16, 17, 255, 1024) for t in ("f16", "f32") for s in (1.0, 0.1)
      for b in (0.0, 8.0) for sinks in (False, True)),
    *(Case("soft_max_ext", ne=[(n, 7, h, q), (n, r, mh, mq)], types=("f32", t), scale=0.3,
           max_bias=b)
      for n in (31, 64) for t in ("f16", "f32") for b in (0.0, 8.0)
      for h, q, r, mh, mq in ((6, 4, 7, 6, 4), (6, 4, 7, 1, 2), (6, 4, 64, 2, 1), (3, 1, 8, 3, 1))),
    *(Case("soft_max_ext", ne=[(n, 5, 4), (n, 5)], types=("f32", t), mask=m, sinks=s)
      for n in (16, 129) for t in ("f16", "f32")
      for m in ("causal", "dead", "all", "holes", "tails") for s in (False, True)),
    *(Case("soft_max_ext", ne=[(33, 5, 4, 2), (33, 5)], types=("f32", "f16"), layouts=(v,),
           scale=0.5, max_bias=b, sinks=s)
      for v in ("view", "offset", "0213", "0321") for b in (0.0, 8.0) for s in (False, True)),
    *(Case("soft_max_ext", ne=[(n, 3, h)], span=(-10, 10), scale=s, sinks=sinks) for n in (16, 129)
      for h in (1, 5) for s in (1.0, -0.5) for sinks in (False, True)),
    *(Case("soft_max", ne=[(n, 2)], span=(-1000, 1000)) for n in (16, 257)),
    *(Case("diag_mask_inf", ne=[ne], n_past=p)
      for ne in ((10, 10), (10, 10, 3, 2), (33, 17), (1, 5)) for p in (0, 5, 40)),
    *(Case("diag_mask_inf", ne=[(13, 11, 5, 3)], layouts=(v,), n_past=1)
      for v in ("view", "0213")),
]  # fmt: skip
