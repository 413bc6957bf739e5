"""Activation functions and gated units: lengths, layouts, types, and numbers at the ends."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import FLOATS, GLU, PRIMES, UNARY

_LENGTHS = (1, 2, 15, 16, 17, 33, 257)
_FUNCTIONS = (*UNARY, "exp", "expm1")

CASES: list[Case] = [
    *(Case(op, ne=[(n, 3)], span=(-5, 5)) for op in _FUNCTIONS for n in _LENGTHS),
    *(Case(op, ne=[(128, 2, 2, 2)], types=(t,), span=(-9, 9)) for op in _FUNCTIONS for t in FLOATS),
    *(Case(op, ne=[PRIMES], types=(t,), layouts=(v,), span=(-5, 5)) for op in _FUNCTIONS
      for t in FLOATS for v in ("view", "offset", "0213")),
    *(Case(op, ne=[(67, 11)], types=(t,), values="special") for op in _FUNCTIONS for t in FLOATS),
    *(Case(op, ne=[(97,)], types=(t,), span=(-150, 150)) for op in _FUNCTIONS
      for t in ("f16", "bf16")),
    *(Case(op, ne=[(257, 3)], types=(t,), span=(-5, 5), ties=True) for op in
      ("floor", "ceil", "round", "trunc", "sgn", "step", "relu") for t in FLOATS),
    *(Case("leaky_relu", ne=[(67, 3)], types=(t,), layouts=(v,), span=(-5, 5), negative_slope=s)
      for t in FLOATS for v in ("", "view") for s in (0.0, 0.5)),
    *(Case("leaky_relu", ne=[(67, 11)], types=(t,), negative_slope=0.1, values="special")
      for t in FLOATS),
    *(Case("xielu", ne=[(67, 3)], types=(t,), layouts=(v,), span=(-5, 5), alpha_n=4.0, alpha_p=20.0,
           beta=0.5, eps=-1e-7) for t in FLOATS for v in ("", "view")),
    *(Case(op + form, ne=[(2 * n, 3)], span=(-5, 5)) for op in GLU for form in ("", "_swapped")
      for n in _LENGTHS),
    *(Case(op + "_split", ne=[(n, 3), (n, 3)], types=(t,), span=(-5, 5)) for op in GLU
      for n in _LENGTHS for t in ("f32", "f16")),
    *(Case(op + form, ne=[(14, 11, 3, 2)], types=(t,), layouts=(v,), span=(-5, 5)) for op in GLU
      for form in ("", "_swapped") for t in ("f32", "f16") for v in ("view", "offset", "0213")),
    *(Case(op + "_split", ne=[PRIMES, PRIMES], types=(t,), layouts=v, span=(-5, 5)) for op in GLU
      for t in ("f32", "f16") for v in (("view", "view"), ("0213", ""), ("", "repeated"))),
    # Not inf: that times an activation which is 0 in f32 is NaN.
    *(Case(op + form, ne=[(66, 11)], types=(t,), values="finite") for op in GLU
      for form in ("", "_swapped") for t in ("f32", "f16")),
    *(Case(op + "_split", ne=[(67, 11), (67, 11)], types=(t,), values="finite") for op in GLU
      for t in ("f32", "f16")),
    *(Case("swiglu_oai", ne=[ne, ne], layouts=(v,), span=(-9, 9), alpha=alpha, limit=limit)
      for ne in ((128, 2, 2, 2), PRIMES) for v in ("", "view") for alpha in (0.5, 1.702)
      for limit in (2.0, 7.0)),
]  # fmt: skip
