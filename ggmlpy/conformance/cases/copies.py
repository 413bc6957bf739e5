"""Copies between types and layouts."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import FLOATS, PRIMES, WRITABLE

CASES: list[Case] = [
    *(Case("cpy", ne=[(64, 6, 3, 2), (64, 3, 6, 2)], types=(a, b)) for a in FLOATS for b in FLOATS),
    *(Case("cpy", ne=[(64, 6, 3), (64, 18)], types=("f32", b)) for b in WRITABLE[3:]),
    *(Case("cpy", ne=[(64, 6, 3), (64, 18)], types=(a, "f32")) for a in WRITABLE[3:]),
    *(Case("cpy", ne=[PRIMES, PRIMES], layouts=(v, w)) for v in ("permuted", "transposed", "view")
      for w in ("", "permuted", "view")),
    Case("cpy", ne=[PRIMES, (7, 5, 13, 11)], types=("f32", "f16"), layouts=("permuted",)),
    Case("cpy", ne=[PRIMES, PRIMES], types=("i32", "f32"), span=(-1000, 1000)),
    Case("cpy", ne=[PRIMES, PRIMES], types=("f32", "i32"), span=(-1000, 1000)),
    *(Case("cont", ne=[PRIMES], types=(t,), layouts=(v,)) for t in (*FLOATS, "i32")
      for v in ("", "permuted", "transposed", "view")),
    Case("cont_2d", ne=[PRIMES], layouts=("permuted",), ne0=55, ne1=91),
    Case("cont", ne=[(64, 5, 7)], types=("q8_0",), layouts=("permuted",)),
    *(Case("dup", ne=[PRIMES], types=(t,), layouts=("permuted",)) for t in FLOATS),
    *(Case("cast", ne=[(64, 5, 7)], layouts=("permuted",), type=t) for t in WRITABLE),
    Case("cast", ne=[(64, 5, 7)], types=("q4_0",), type="f32"),
]  # fmt: skip
