"""Tensors put together, repeated, padded and made."""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import PRIMES
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.graph.tensor import Tensor


@builds("arange")
def _arange(case: Case, inputs: Inputs) -> Tensor:
    return ops.arange(**case.params)


CASES: list[Case] = [
    *(Case("concat", ne=[PRIMES, tuple(n + 2 * (i == dim) for i, n in enumerate(PRIMES))],
           types=(t,), dim=dim) for dim in range(4) for t in ("f32", "f16", "i32")),
    *(Case("concat", ne=[PRIMES, PRIMES], layouts=v, dim=1)
      for v in (("permuted", ""), ("view", "transposed"))),
    *(Case("repeat_4d", ne=[PRIMES], types=(t,), ne0=10, ne1=7, ne2=33, ne3=26)
      for t in ("f32", "f16", "i32")),
    Case("repeat_4d", ne=[PRIMES], layouts=("permuted",), ne0=5, ne1=14, ne2=11, ne3=13),
    Case("pad", ne=[PRIMES], p0=1, p1=0, p2=2, p3=3),
    Case("pad_ext", ne=[PRIMES], layouts=("permuted",),
         lp0=1, rp0=2, lp1=0, rp1=1, lp2=2, rp2=0, lp3=1, rp3=1),
    Case("arange", ne=[], start=-1.5, stop=20.0, step=0.75),
]  # fmt: skip
