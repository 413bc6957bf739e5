"""Matrix products, also with a matrix chosen for each row."""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import FLOATS, QUANTIZED, SIZES
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.graph.tensor import Tensor


@builds("mul_mat_id")
def _mul_mat_id(case: Case, inputs: Inputs) -> Tensor:
    """ne: weights, x, ids."""
    ids = inputs.ids(case.ne[2], case.ne[0][2], unique=True)
    return ops.mul_mat_id(inputs[0], inputs[1], ids)


CASES: list[Case] = [
    *(
        Case("mul_mat", ne=[(256, 33), (256, n)], types=(t, "f32"))
        for t in (*FLOATS, *QUANTIZED)
        for n in SIZES
    ),
    *(
        Case("mul_mat", ne=[(2048, 16), (2048, n)], types=(t, "f32"))
        for t in ("f32", "f16", "q4_0", "q8_0", "q4_K", "q6_K")
        for n in SIZES
    ),
    *(
        Case("mul_mat", ne=[(37, 11), (37, n)], types=(t, "f32"))
        for t in FLOATS
        for n in (1, 2, 3, 5)
    ),
    *(
        Case("mul_mat", ne=[(64, 13, a2, a3), (64, 5, a2 * r2, a3 * r3)], types=(t, "f32"))
        for t in ("f32", "f16", "q8_0")
        for a2, a3, r2, r3 in ((1, 1, 4, 1), (2, 1, 3, 2), (2, 3, 1, 1), (3, 2, 5, 1))
    ),
    *(
        Case("mul_mat", ne=[(64, 13, 2, 3), (64, 5, 4, 3)], types=(t, "f32"), layouts=layouts)
        for t in ("f32", "f16", "q8_0")
        for layouts in (("permuted", ""), ("", "permuted"), ("view", "view"))
    ),
    Case("mul_mat", ne=[(64, 13), (64, 5)], layouts=("", "transposed")),
    Case("mul_mat", ne=[(64, 13), (64, 5)], types=("f16", "f16")),
    Case("mul_mat", ne=[(32, 3), (32, 70_001)]),
    Case("mul_mat", ne=[(32, 70_001), (32, 2)], types=("q8_0", "f32")),
    Case("mul_mat", ne=[(1, 7), (1, 5)]),
    *(
        Case("mul_mat_id", ne=[(256, 31, 6), (256, n_rows, n), (3, n)], types=(t, "f32", "i32"))
        for t in ("f32", "f16", "q4_0", "q8_0", "q4_K", "q6_K", "mxfp4")
        for n_rows in (1, 3)
        for n in SIZES
    ),
    *(
        Case("mul_mat_id", ne=[(256, 31, 6), (256, 1, 8), (3, 8)], types=(t, "f32", "i32"))
        for t in ("bf16", *QUANTIZED)
        if t not in ("q4_0", "q8_0", "q4_K", "q6_K", "mxfp4")
    ),
]
