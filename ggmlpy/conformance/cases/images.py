"""Images: other sizes, windows, relative positions; and regions of tensors."""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import PRIMES
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.graph.tensor import Tensor

ALIGNED, ANTIALIAS = 256, 512  # ggml's flags
_MODES = (0, 1, 2, ALIGNED, 1 + ALIGNED, 2 + ALIGNED)


@builds("interpolate")
def _interpolate(case: Case, inputs: Inputs) -> Tensor:
    """params: to, the shape of the result, and mode."""
    n0, n1, n2, n3 = case.params["to"]
    return ops.interpolate(inputs[0], n0, n1, n2, n3, case.params["mode"])


def _region(case: Case, inputs: Inputs) -> Tensor:
    """ne: a, b; params: at, the first element of the region in ne order. Its strides are a's."""
    a = inputs[0]
    offset = sum(i * stride for i, stride in zip(case.params["at"], a.nb, strict=True))
    function = ops.acc if case.op == "acc" else ops.set
    return function(a, inputs[1], *a.nb[1:], offset)


builds("acc")(_region)
builds("set")(_region)

_WINDOWS = ((5, 14, 14, 7), (64, 13, 11, 4), (3, 5, 7, 8), (768, 9, 6, 3), (1, 1, 1, 1))
_REGIONS = (
    ((5, 7, 11, 13), (3, 4, 5, 6), (1, 2, 3, 4)),
    ((64, 9), (64, 3), (0, 5, 0, 0)),
    ((1021, 3), (700, 1), (17, 1, 0, 0)),
    ((7, 5, 3), (7, 5, 3), (0, 0, 0, 0)),
    ((3, 70_001), (2, 69_000), (1, 1000, 0, 0)),
)

CASES: list[Case] = [
    *(Case("upscale", ne=[(5, 7, 3, 2)], scale_factor=k, mode=m)
      for k in (2, 3) for m in _MODES),
    *(Case("interpolate", ne=[(n0, n1, 3, 2)], to=(t0, t1, 3, 2), mode=m)
      for (n0, n1), (t0, t1) in (((5, 7), (9, 20)), ((20, 9), (7, 5)), ((2, 5), (4, 8)),
                                 ((7, 3), (3, 7)), ((1, 4), (5, 4)), ((4, 1), (2, 3)))
      for m in (*_MODES, 1 + ANTIALIAS, 1 + ALIGNED + ANTIALIAS)),
    *(Case("interpolate", ne=[PRIMES], to=(10, 14, 22, 26), mode=m, layouts=(v,))
      for m in (0, 1) for v in ("permuted", "view")),
    Case("interpolate", ne=[(512, 64, 3)], to=(97, 31, 3, 1), mode=1 + ANTIALIAS),
    *(Case("timestep_embedding", ne=[(n,)], dim=d, max_period=10_000, span=(0, s))
      for n, d, s in ((2, 320, 1000), (33, 7, 100), (1, 64, 1), (5, 1, 10), (1, 2, 3),
                      (7, 33, 1000))),
    *(Case("win_part", ne=[(c, w0, h0)], w=w) for c, w0, h0, w in _WINDOWS),
    *(Case("win_unpart", ne=[(c, w, w, -(-w0 // w) * -(-h0 // w))], w0=w0, h0=h0, w=w)
      for c, w0, h0, w in _WINDOWS),
    *(Case("get_rel_pos", ne=[(c, 2 * n - 1)], types=(t,), layouts=(v,), qh=n, kh=n)
      for t in ("f16", "f32") for c, n in ((64, 7), (5, 14), (80, 1)) for v in ("", "view")),
    *(Case("add_rel_pos", ne=[(n * n, n1 * n2, p), (n, n1, n2, p), (n, n1, n2, p)])
      for n, n1, n2, p in ((7, 7, 7, 3), (14, 14, 14, 1), (16, 5, 3, 2), (1, 1, 1, 1),
                           (33, 2, 1, 1))),
    *(Case("acc", ne=[a, b], at=at) for a, b, at in _REGIONS),
    *(Case("acc", ne=[(5, 7, 11), (3, 4, 5)], at=(1, 2, 3, 0), layouts=("", v))
      for v in ("permuted", "view")),
    *(Case("set", ne=[a, b], types=(t,), at=at) for t in ("f32", "i32", "f16")
      for a, b, at in _REGIONS),
    *(Case("set", ne=[(5, 7, 11), (3, 4, 5)], at=(1, 2, 3, 0), layouts=("", v))
      for v in ("permuted", "view")),
]  # fmt: skip
