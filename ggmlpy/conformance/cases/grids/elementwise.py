"""Arithmetic: broadcasts, strides, types of both sources, weights, and numbers at the ends."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import BINARY, EDGES, FLOATS, PRIMES
from ggmlpy.graph.spec import as_ne

_NEAR_ONE = (0.9, 1.1)
_COPIES = ((2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (1, 1, 2, 2), (1, 2, 2, 2),
           (2, 2, 2, 2))  # fmt: skip
_SHAPES = ((1, 1, 8, 1), (10, 5), (10, 5, 4), (10, 5, 4, 3), (1, 1, 32, 32))
_PARTS = (((32,), (1,)), ((1280,), (1280,)), ((1280, 3, 5), (1280,)), ((16, 16, 80), (1, 1, 80)),
          ((4, 4, 320), (1, 1, 320)), ((128, 4, 8), (128, 1, 8)), ((640, 7), (1, 7)),
          ((1, 513), (1, 1)), ((3, 1, 1, 257), (3, 1, 1, 1)))  # fmt: skip
_ORDERS = ("0213", "1023", "2103", "0321", "1203")


def _tiled(ne: tuple[int, ...], copies: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n * r for n, r in zip(as_ne(ne), copies, strict=True))


def _binary(op: str, a: tuple[int, ...], b: tuple[int, ...], *types: str, **more: object) -> Case:
    kinds = types or ("f32", "f32")
    return Case(op, ne=[a, b], types=kinds, span=_NEAR_ONE, **more)  # type: ignore[arg-type]


_TWO: list[Case] = [
    *(_binary(op, ne, ne, t, t) for op in BINARY for t in FLOATS for ne in _SHAPES),
    *(_binary(op, _tiled((10, 5, 4, 3), c), (10, 5, 4, 3), t, t) for op in BINARY for t in FLOATS
      for c in _COPIES),
    *(_binary(op, a, b) for op in BINARY for a, b in _PARTS),
    *(_binary(op, (n, 3), (n, 3)) for op in ("add", "mul") for n in EDGES),
    *(_binary(op, (n, 3), (n,), t, "f32", weights=(1,)) for op in ("add", "mul")
      for n in EDGES for t in ("f32", "f16")),
    *(_binary(op, PRIMES, (5, 7), a, b) for op in BINARY for a in FLOATS for b in FLOATS if a != b),
    *(_binary(op, PRIMES, PRIMES, layouts=(order, "")) for op in BINARY for order in _ORDERS),
    *(_binary(op, PRIMES, PRIMES, layouts=("", order)) for op in BINARY for order in _ORDERS),
    *(_binary(op, PRIMES, PRIMES, t, t, layouts=v) for op in BINARY for t in FLOATS
      for v in (("offset", "offset"), ("view", "view"), ("", "repeated"), ("repeated", ""))),
    *(_binary(op, PRIMES, (1, 7, 1, 13), layouts=("view", "transposed")) for op in BINARY),
    *(Case(op, ne=[(67, 11), (67, 11)], types=(t,), values="special") for op in BINARY
      for t in FLOATS),
    *(Case(op, ne=[(67, 11), (67,)], span=(-300, 300), values="special") for op in BINARY),
    *(Case("add", ne=[(64, 5, 3), (64, 5, 3)], types=(t, "f32"), layouts=(v,))
      for t in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl") for v in ("", "view", "0213")),
    *(Case("add", ne=[(64, 5, 3), (64, 1, 3)], types=(t, "f32")) for t in ("q8_0", "q4_0")),
]  # fmt: skip

_ONE: list[Case] = [
    *(Case("add1", ne=[PRIMES, (1,)], types=(a, b)) for a in FLOATS for b in FLOATS if (a, b) != (
        "f32", "f32")),
    *(Case("add1", ne=[PRIMES, (1,)], layouts=(v,)) for v in ("0213", "view", "1023")),
    *(Case("add_id", ne=[(n, used, tokens), (n, mats), (used, tokens)]) for mats in (4, 8)
      for used in (1, 2, 4) for n in (32, 129) for tokens in (1, 5, 33)),
    *(Case("add_id", ne=[(37, 3, 5), (37, 7), (3, 5)], layouts=(v, w), weights=weights)
      for v in ("", "view", "0213") for w in ("", "view") for weights in ((), (1,))),
    *(Case(op, ne=[(n,)], types=(t,), span=(0.1, 9)) for op in ("sqr", "sqrt", "log", "sin", "cos")
      for t in ("f32", "f16") for n in (1, 15, 16, 17, 257)),
    *(Case(op, ne=[PRIMES], types=(t,), layouts=(v,), span=(0.1, 9))
      for op in ("sqr", "sqrt", "log", "sin", "cos") for t in FLOATS for v in ("view", "0213")),
    *(Case(op, ne=[(67, 11)], types=(t,), values="special") for op in ("sqr", "sqrt", "log")
      for t in FLOATS),
    *(Case("scale", ne=[ne], types=(t,), layouts=(v,), s=s) for ne in ((10, 10, 3, 2), (257, 3))
      for t in FLOATS for v in ("", "view", "0213") for s in (0.5, -3.0)),
    *(Case("scale_bias", ne=[PRIMES], types=(t,), layouts=(v,), s=2.0, b=1.0) for t in FLOATS
      for v in ("", "offset", "1023")),
    *(Case("scale", ne=[(67, 11)], types=(t,), s=2.0, values="special") for t in FLOATS),
    *(Case("clamp", ne=[(7, 1, 5, 3)], types=(t,), layouts=(v,), min=-0.5, max=hi)
      for t in FLOATS for v in ("", "view", "0213") for hi in (0.5, 0.0)),
    *(Case("clamp", ne=[(67, 11)], types=(t,), min=-10.0, max=9.0, values="special")
      for t in FLOATS),
]  # fmt: skip

CASES: list[Case] = [*_TWO, *_ONE]
