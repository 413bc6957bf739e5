"""Copies: every type, every order of dimensions, other shapes, and numbers at the ends."""

from __future__ import annotations

from itertools import permutations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import FLOATS, PRIMES, QUANTIZED, WRITABLE
from ggmlpy.graph.types import type_of

_INTEGERS = ("i8", "i16", "i32", "i64")
_ORDERS = tuple("".join(map(str, order)) for order in permutations(range(4)))
_BLOCKS = WRITABLE[3:]
_WIDE = (-100, 100)

_SAME: list[Case] = [
    *(Case("cpy", ne=[(k * type_of(t).block_size, 2, 3, 2)] * 2, types=(t, t), layouts=layouts)
      for t in QUANTIZED for k in (1, 3) for layouts in ((), ("0213",), ("0312", "0213"))),
    *(Case("cpy", ne=[PRIMES, PRIMES], types=(t, t), layouts=(v, w), span=_WIDE)
      for t in (*FLOATS, *_INTEGERS) for v, w in
      (("", ""), ("0213", ""), ("1023", ""), ("", "1023"), ("0321", "0213"), ("view", "view"),
       ("offset", "offset"), ("repeated", ""))),
    *(Case("cpy", ne=[ne, other], types=(t, t)) for t in ("f32", "f16")
      for ne in permutations((3, 5, 7, 32)) for other in ((3, 5, 7, 32), (32, 7, 5, 3))
      if ne != other),
    *(Case("cpy", ne=[(32, *rest), (32, 7, 5, 3)], types=("q4_0", "q4_0"))
      for rest in permutations((3, 5, 7))),
    *(Case("cont", ne=[(3, 4, 5, 6)], types=(t,), layouts=(order,), span=_WIDE)
      for t in ("f32", "f16", "i32") for order in _ORDERS),
    *(Case("cont", ne=[ne], types=(t,), layouts=(v,), span=_WIDE) for t in (*FLOATS, "i32")
      for ne in ((2,), (2, 1, 3, 5), (1, 4, 4), (1, 8, 17), (33, 5, 7), (64, 3, 65))
      for v in ("view", "1023", "2103")),
    *(Case("cont", ne=[(k, 3, 5)], types=(t,), layouts=(v,)) for t in QUANTIZED for k in (256,)
      for v in ("view", "0213", "offset")),
    *(Case("dup", ne=[ne], types=(t,), layouts=(v,), span=_WIDE) for t in (*FLOATS, *_INTEGERS)
      for ne in ((10, 10, 5), (7, 1, 3, 2)) for v in ("", "0213", "1203")),
]  # fmt: skip

_CONVERTED: list[Case] = [
    *(Case("cpy", ne=[(256, 2, 3, 2)] * 2, types=(a, b), layouts=layouts) for a in FLOATS
      for b in WRITABLE if a != b
      for layouts in ((), ("0213",), ("view", "view"), ("0213", "0213"))),
    *(Case("cpy", ne=[(256, 2, 3, 2)] * 2, types=(t, "f32"), layouts=layouts) for t in QUANTIZED
      for layouts in ((), ("0213",), ("view", "view"), ("", "1023"))),
    *(Case("cpy", ne=[PRIMES, PRIMES], types=(a, b), layouts=layouts) for a in FLOATS
      for b in FLOATS if a != b for layouts in (("1023",), ("2103", "view"), ("offset", "0321"))),
    *(Case("cpy", ne=[(96,), (96,)], types=types) for t in _BLOCKS
      for types in (("f32", t), (t, "f32"))),
    *(Case("cpy", ne=[PRIMES, PRIMES], types=types, layouts=layouts, span=(-1000, 1000))
      for types in (("i32", "f32"), ("f32", "i32"))
      for layouts in (("0213",), ("1023",), ("view",))),
    *(Case("cast", ne=[(64, 5, 3)], types=(a,), layouts=(v,), type=b) for a in FLOATS
      for b in WRITABLE for v in ("", "view", "offset")),
    *(Case("cast", ne=[(256, 5)], types=(t,), layouts=(v,), type="f32") for t in QUANTIZED
      for v in ("", "view")),
    *(Case("cast", ne=[(n, 3)], types=(a,), type=b) for a in FLOATS for b in FLOATS if a != b
      for n in (1, 15, 16, 17, 33, 257)),
    *(Case("cast", ne=[(67, 11)], types=(a,), type=b, values="special") for a in FLOATS
      for b in FLOATS),
    *(Case("cpy", ne=[(67, 11), (11, 67)], types=(a, b), values="special") for a in FLOATS
      for b in FLOATS),
    *(Case("cast", ne=[(256, 9)], span=span, type=t) for t in _BLOCKS
      for span in ((-1e-3, 1e-3), (0, 1), (-6e4, 6e4), (0.5, 0.6), (-150, 150))),
]  # fmt: skip

CASES: list[Case] = [*_SAME, *_CONVERTED]
