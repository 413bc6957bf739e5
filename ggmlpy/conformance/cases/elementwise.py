"""Arithmetic of two tensors, and functions with parameters."""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import BINARY, FLOATS, PRIMES
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.graph.tensor import Tensor


@builds("add_id")
def _add_id(case: Case, inputs: Inputs) -> Tensor:
    """ne: a, b, ids."""
    return ops.add_id(inputs[0], inputs[1], inputs.ids(case.ne[2], case.ne[1][1]))


CASES: list[Case] = [
    *(Case(op, ne=[PRIMES, PRIMES], types=(t,), span=(0.9, 1.1)) for op in BINARY for t in FLOATS),
    *(Case(op, ne=[(10, 14, 22, 26), PRIMES], span=(0.9, 1.1)) for op in BINARY),
    *(Case(op, ne=[PRIMES, (5, 1, 1, 1)], span=(0.9, 1.1)) for op in BINARY),
    *(Case(op, ne=[PRIMES, (1, 7, 1, 13)], span=(0.9, 1.1)) for op in BINARY),
    *(Case(op, ne=[(4099,), (4099,)], span=(0.9, 1.1)) for op in BINARY),
    *(Case(op, ne=[(3, 70_001), (3, 1)], span=(0.9, 1.1)) for op in ("add", "mul")),
    *(
        Case(op, ne=[PRIMES, PRIMES], layouts=layouts, span=(0.9, 1.1))
        for op in BINARY
        for layouts in (("permuted", "view"), ("view", "permuted"), ("transposed", ""))
    ),
    Case("add", ne=[PRIMES, (5, 7)], types=("f16", "f32")),
    Case("add", ne=[PRIMES, (5, 7)], types=("bf16", "f32")),
    Case("mul", ne=[PRIMES, (5, 7)], types=("f16", "f32")),
    Case("add", ne=[(64, 7, 3), (64, 7, 3)], types=("q8_0", "f32")),
    Case("add1", ne=[PRIMES, (1,)]),
    Case("add_id", ne=[(37, 3, 11), (37, 5), (3, 11)]),
    Case("add_id", ne=[(64, 2, 1), (64, 32), (2, 1)]),
    *(Case("sqr", ne=[PRIMES], types=(t,)) for t in FLOATS),
    *(Case("sqrt", ne=[PRIMES], types=(t,), span=(50, 100)) for t in FLOATS),
    *(Case("log", ne=[PRIMES], types=(t,), span=(0.9, 1.1)) for t in FLOATS),
    Case("sqrt", ne=[(131, 3)], span=(-1, 1)),  # NaN below 0
    Case("log", ne=[(131, 3)], span=(-1, 1)),
    *(Case("sin", ne=[PRIMES], types=(t,), span=(-6.5, 6.5)) for t in FLOATS),
    *(Case("cos", ne=[PRIMES], types=(t,), span=(-6.5, 6.5)) for t in FLOATS),
    *(Case("scale", ne=[PRIMES], types=(t,), s=2.5) for t in FLOATS),
    Case("scale", ne=[PRIMES], layouts=("permuted",), s=-0.125),
    Case("scale", ne=[(3, 70_001)], s=2.5),
    Case("scale_bias", ne=[PRIMES], s=2.5, b=-1.75),
    *(Case("clamp", ne=[PRIMES], types=(t,), min=-0.25, max=0.5) for t in FLOATS),
]
