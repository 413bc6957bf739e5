"""Products with a matrix chosen for each row: experts with many, one and no rows."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import FLOATS, QUANTIZED


def experts(
    type: str, n_mats: int, n_used: int, m: int, n: int, k: int, *, shared: bool = False,
    **more: object,
) -> Case:  # fmt: skip
    """n tokens that use n_used of n_mats matrices [k, m]; `shared`: one row of x for all."""
    ne = [(k, m, n_mats), (k, 1 if shared else n_used, n), (n_used, n)]
    return Case("mul_mat_id", ne=ne, types=(type, "f32", "i32"), **more)  # type: ignore[arg-type]


CASES: list[Case] = [
    *(experts(t, 4, used, 17, n, 256, shared=shared) for t in (*FLOATS, *QUANTIZED)
      for used, shared in ((1, True), (2, False)) for n in (1, 5, 17)),
    # Every token uses every expert: each has exactly n rows, on both sides of tiles.
    *(experts(t, 4, 4, 12, n, 256) for t in ("q4_K", "q8_0", "iq2_xs", "f16")
      for n in (1, 2, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49)),
    *(experts(t, n_mats, used, 9, n, 64, shared=shared) for t in ("f32", "f16", "q8_0", "mxfp4")
      for n_mats, used in ((1, 1), (8, 1), (8, 5), (32, 4), (128, 8)) for n in (1, 9)
      for shared in (False, True)),
    *(experts(t, 3, 2, 7, n, k) for t in FLOATS for k in (1, 7, 63, 65) for n in (1, 6)),
    *(experts("q4_0", 300, 10, 5, n, 64) for n in (1, 5, 64)),
    *(experts(t, 5, 2, m, 3, 256) for t in ("f16", "q8_0", "q4_K") for m in (1, 31, 33, 65)),
    *(experts(t, 4, 2, 8, n, 256, layouts=layouts, weights=weights) for t in ("f16", "q8_0", "q5_K")
      for n in (1, 11) for weights in ((), (0,))
      for layouts in (("view", "view"), ("offset", "offset"), ("", "repeated"))),
]  # fmt: skip
