"""Rows gathered and scattered."""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import FLOATS, QUANTIZED, WRITABLE
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.graph.tensor import Tensor


@builds("get_rows")
def _get_rows(case: Case, inputs: Inputs) -> Tensor:
    """ne: x, ids."""
    return ops.get_rows(inputs[0], inputs.ids(case.ne[1], case.ne[0][1]))


@builds("set_rows")
def _set_rows(case: Case, inputs: Inputs) -> Tensor:
    """ne: dst, x, ids; params: repeat=True for ids that come more than once."""
    unique = not case.params.get("repeat", False)
    ids = inputs.ids(case.ne[2], case.ne[0][1], case.types[2], unique=unique)
    return ops.set_rows(inputs[0], inputs[1], ids)


CASES: list[Case] = [
    *(Case("get_rows", ne=[(256, 13), (7,)], types=(t, "i32")) for t in (*FLOATS, *QUANTIZED)),
    *(Case("get_rows", ne=[(37, 11, 3, 2), (6, 3, 2)], types=(t, "i32")) for t in FLOATS),
    Case("get_rows", ne=[(5, 11, 3), (6, 3)], types=("i32", "i32"), span=(-1000, 1000)),
    *(Case("get_rows", ne=[(37, 11, 3), (6, 3)], layouts=(v,)) for v in ("permuted", "view")),
    Case("get_rows", ne=[(2, 3), (70_001,)]),
    *(
        Case("set_rows", ne=[(64, 17, 4, 6), (64, 5, 4, 6), (5, c1, c2)], types=(t, x, i))
        for t in WRITABLE
        for x in ("f32", "f16")
        for i in ("i64", "i32")
        for c1, c2 in ((1, 1), (2, 3))
    ),
    *(Case("set_rows", ne=[(37, 11), (37, 7), (7,)], types=(t, "f32", "i64")) for t in FLOATS),
    Case("set_rows", ne=[(32, 5), (32, 9), (9,)], types=("f16", "f32", "i64"), repeat=True),
    Case("set_rows", ne=[(64, 17, 3), (64, 5, 3), (5,)], types=("f16", "f32", "i64"),
         layouts=("view", "permuted")),
    Case("set_rows", ne=[(64, 17, 3), (64, 5, 3), (5,)], types=("q8_0", "f32", "i64"),
         layouts=("view", "view")),
    Case("set_rows", ne=[(2, 70_001), (2, 69_999), (69_999,)], types=("f16", "f32", "i64")),
    Case("set_rows", ne=[(1, 997), (1, 501), (501,)], types=("f16", "f32", "i64")),  # transposed V
]  # fmt: skip
