"""Activation functions and gated units."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import FLOATS, GLU, PRIMES, UNARY

CASES: list[Case] = [
    *(Case(op, ne=[PRIMES], types=(t,), span=(-5, 5)) for op in UNARY for t in FLOATS),
    *(Case(op, ne=[(1021,)], span=(-150, 150)) for op in UNARY),
    *(Case(op, ne=[PRIMES], layouts=("view",), span=(-5, 5)) for op in UNARY),
    *(Case(op, ne=[PRIMES], types=(t,), span=(-10, 10)) for op in ("exp", "expm1") for t in FLOATS),
    Case("round", ne=[(257, 3)], span=(-5, 5), ties=True),  # quarters: halves go away from 0
    Case("silu", ne=[(3, 70_001)], span=(-5, 5)),
    *(Case("leaky_relu", ne=[PRIMES], types=(t,), negative_slope=0.1) for t in FLOATS),
    Case("xielu", ne=[PRIMES], span=(-5, 5), alpha_n=0.8, alpha_p=0.8, beta=0.5, eps=-1e-6),
    *(
        Case(op + form, ne=[(14, 11, 3, 2)], types=(t,), span=(-5, 5))
        for op in GLU
        for form in ("", "_swapped")
        for t in ("f32", "f16")
    ),
    *(Case(op + "_split", ne=[PRIMES, PRIMES], span=(-5, 5)) for op in GLU),
    *(Case(op + "_split", ne=[PRIMES, PRIMES], layouts=("view", "")) for op in GLU),
    *(Case(op, ne=[(14, 11, 3, 2)], layouts=("view",)) for op in GLU),
    Case("swiglu_split", ne=[(2048, 5), (2048, 5)], span=(-5, 5)),
    Case("swiglu", ne=[(4, 70_001)], span=(-5, 5)),
    Case("swiglu_oai", ne=[(67, 11), (67, 11)], span=(-9, 9), alpha=1.702, limit=7.0),
    *(
        Case("swiglu_clamp", ne=[ne, ne], types=(t,), span=(-9, 9), layouts=layouts, limit=5.0)
        for ne in ((67, 11), (2048, 5))
        for t in ("f32", "f16")
        for layouts in ((), ("view", "view"))
    ),
]
