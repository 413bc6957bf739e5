"""Tensors put together and repeated: types, dimensions, strides."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import FLOATS

_TYPES = (*FLOATS, "i8", "i16", "i32", "i64")
_LAYOUTS = (("", ""), ("view", ""), ("", "view"), ("0213", "1023"))
_WIDE = (-100, 100)


def _concat(type: str, dim: int, layouts: tuple[str, str]) -> Case:
    ne = (11, 3, 5, 2)
    other = tuple(7 if i == dim else n for i, n in enumerate(ne))
    return Case("concat", ne=[ne, other], types=(type,), layouts=layouts, span=_WIDE, dim=dim)


CASES: list[Case] = [
    *(_concat(t, dim, layouts) for t in _TYPES for dim in range(4) for layouts in _LAYOUTS),
    *(Case("concat", ne=[(n, 3), (m, 3)], dim=0) for n, m in ((1, 1), (1, 31), (16, 16), (65, 1))),
    *(Case("repeat_4d", ne=[(10, 5, 4, n3)], types=(t,), layouts=(v,), span=_WIDE, ne0=10 * r[0],
           ne1=5 * r[1], ne2=4 * r[2], ne3=n3 * r[3])
      for n3 in (1, 3) for t, v in (("f32", ""), ("f32", "view"), ("f16", "0213"), ("i32", ""),
                                    ("i16", ""), ("bf16", ""))
      for r in ((1, 1, 1, 1), (2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2),
                (2, 3, 2, 2))),
    *(Case("repeat_4d", ne=[ne], ne0=33, ne1=5, ne2=2, ne3=3)
      for ne in ((1,), (33,), (1, 5), (1, 1, 2), (11, 1, 1, 3))),
    *(Case("pad", ne=[(n, m)], p0=p0, p1=p1, p2=0, p3=0) for n, m in ((1, 1), (100, 1), (257, 3))
      for p0, p1 in ((1, 0), (0, 1), (100, 0), (5, 7), (0, 0))),
    *(Case("pad_ext", ne=[(7, 5, 3, 2)], layouts=(v,), lp0=a, rp0=b, lp1=b, rp1=a, lp2=a, rp2=0,
           lp3=0, rp3=b) for v in ("", "view", "0213", "1023")
      for a, b in ((0, 1), (2, 3), (1, 0))),
    *(Case("arange", ne=[], start=a, stop=b, step=s) for a, b, s in
      ((0.0, 10.0, 1.0), (0.0, 1.0, 1.0), (5.0, -5.0, -0.5), (0.0, 1025.0, 1.0), (-1.0, 1.0, 0.125),
       (0.0, 17.0, 2.0), (3.0, 3.5, 1.0))),
]  # fmt: skip
