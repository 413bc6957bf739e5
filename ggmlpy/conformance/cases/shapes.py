"""Tensors put together, repeated, padded and made."""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import PRIMES
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.graph.tensor import Tensor, zeros


@builds("arange")
def _arange(case: Case, inputs: Inputs) -> Tensor:
    return ops.arange(**case.params)


@builds("repeat_back")
def _repeat_back(case: Case, inputs: Inputs) -> Tensor:
    """params: to, the shape of the result."""
    return ops.repeat_back(inputs[0], zeros("f32", case.params["to"]))


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
    *(Case("repeat_back", ne=[(10, 14, 22, 26)], to=PRIMES, layouts=(v,))
      for v in ("", "permuted", "view")),
    *(Case("repeat_back", ne=[ne], to=to) for ne, to in (((64, 3), (16, 1)), ((1021, 6), (1021, 2)),
      ((33, 4, 2, 3), (33, 4, 2, 3)), ((2, 70_001), (2, 1)))),
    Case("pad_circular", ne=[PRIMES], p0=1, p1=0, p2=2, p3=3),
    *(Case("pad_ext_circular", ne=[PRIMES], layouts=(v,),
           lp0=1, rp0=2, lp1=0, rp1=1, lp2=2, rp2=0, lp3=1, rp3=1)
      for v in ("", "permuted", "view")),
    Case("pad_ext_circular", ne=[(3, 2)], lp0=7, rp0=8, lp1=5, rp1=3, lp2=1, rp2=0, lp3=0, rp3=0),
    *(Case("pad_reflect_1d", ne=[ne], p0=a, p1=b)
      for ne, a, b in ((PRIMES, 4, 3), ((512, 34, 2), 10, 9), ((3000, 4), 0, 300),
                       ((5, 70_001), 1, 0))),
    *(Case("pad_reflect_1d", ne=[PRIMES], layouts=(v,), p0=2, p1=1) for v in ("permuted", "view")),
    *(Case("roll", ne=[ne], shift0=a, shift1=b, shift2=c, shift3=d)
      for ne, a, b, c, d in ((PRIMES, 3, -2, 4, 1), (PRIMES, -3, 2, -4, -1), ((64, 5), 0, 3, 0, 0),
                             (PRIMES, 7, 11, -30, 13), ((3, 70_001), 1, 2, 0, 0))),
    *(Case("roll", ne=[PRIMES], layouts=(v,), shift0=1, shift1=-1, shift2=2, shift3=0)
      for v in ("permuted", "view")),
    *(Case("fill", ne=[PRIMES], types=(t,), c=c) for t in ("f32", "f16") for c in (0.0, -1.37)),
    *(Case("tri", ne=[ne], type=kind, layouts=(v,)) for kind in range(4)
      for ne, v in (((11, 11, 3), ""), ((7, 19, 3, 2), ""), ((67, 13), "view"),
                    ((5, 7, 11), "permuted"), ((1, 1), ""), ((3, 70_001), ""))),
    *(Case("diag", ne=[ne], layouts=(v,)) for ne, v in (((7, 1, 3, 2), ""), ((64, 1), ""),
      ((257, 1, 3), "view"), ((1, 1), ""))),
    Case("arange", ne=[], start=-1.5, stop=20.0, step=0.75),
]  # fmt: skip
