"""Matrix products, also with a matrix chosen for each row."""

from __future__ import annotations

import numpy as np

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import FLOATS, QUANTIZED, SIZES
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.graph.arrays import element_view
from ggmlpy.graph.tensor import Tensor


@builds("mul_mat_id")
def _mul_mat_id(case: Case, inputs: Inputs) -> Tensor:
    """ne: weights, x, ids."""
    ids = inputs.ids(case.ne[2], case.ne[0][2], unique=True)
    return ops.mul_mat_id(inputs[0], inputs[1], ids)


@builds("solve_tri")
def _solve_tri(case: Case, inputs: Inputs) -> Tensor:
    """ne: a, b. The diagonal of a is 4 or more, so that its rows do not amplify errors."""
    a = inputs[0]
    values = a.root.array()
    values[...] = 0.3 * values + np.sign(values) * 0.2
    n = case.ne[0][0]
    elements = element_view(a.root.place.host_bytes, a.spec, a.view_offs)  # type: ignore[union-attr]
    elements[..., range(n), range(n)] += 4
    return ops.solve_tri(a, inputs[1], True, True, False)


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
    *(
        Case("out_prod", ne=[(m, k), (n, k)], types=(t, "f32"))
        for t in (*FLOATS, *QUANTIZED)
        for m, n, k in ((256, 16, 16), (256, 1, 5), (512, 33, 3))
    ),
    *(Case("out_prod", ne=[(m, k), (n, k)]) for m, n, k in ((1, 1, 1), (67, 13, 129), (16, 17, 1))),
    *(
        Case("out_prod", ne=[(64, 13, a2, a3), (5, 13, a2 * r2, a3 * r3)], types=(t, "f32"))
        for t in ("f32", "f16", "q4_0")
        for a2, a3, r2, r3 in ((1, 1, 4, 1), (2, 1, 3, 2), (2, 3, 1, 1), (3, 2, 5, 1))
    ),
    Case("out_prod", ne=[(64, 13), (5, 13)], layouts=("view", "transposed")),
    Case("out_prod", ne=[(64, 13, 3), (5, 13, 3)], layouts=("permuted", "permuted")),
    Case("out_prod", ne=[(3, 2), (70_001, 2)]),
    *(
        Case("solve_tri", ne=[(n, n, a, b), (k, n, a, b)])
        for n, k, a, b in (
            (1, 1, 1, 1),
            (10, 10, 4, 3),
            (64, 64, 2, 1),
            (37, 17, 3, 2),
            (79, 5, 1, 1),
        )
    ),
    *(
        Case("solve_tri", ne=[(11, 11, 3), (33, 11, 3)], layouts=v)
        for v in (("view", ""), ("", "view"), ("permuted", "permuted"))
    ),
]
