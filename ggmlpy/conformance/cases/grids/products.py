"""Products: rows, columns and lengths around the edges of tiles, types, broadcasts and strides."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import FLOATS, QUANTIZED, Shape4

# Columns: tokens and small batches, which have kernels of their own, and both sides of tiles.
_COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65)
_BASE = ("f32", "f16", "q8_0", "q4_0", "q4_1", "q4_K", "mxfp4", "iq2_xxs")
_LENGTHS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 80, 127, 129, 255, 257, 588)
_ROWS = (1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 63, 65, 127, 129)
_BROADCASTS = (((1, 1), (2, 1)), ((1, 1), (1, 2)), ((3, 1), (1, 1)), ((3, 1), (2, 1)),
               ((3, 2), (1, 1)), ((3, 2), (2, 1)), ((3, 2), (1, 2)), ((3, 2), (2, 2)))  # fmt: skip


def product(
    type: str, m: int, n: int, k: int, *, batch: tuple[int, int] = (1, 1),
    copies: tuple[int, int] = (1, 1), x: str = "f32", **more: object,
) -> Case:  # fmt: skip
    """weight [k, m, *batch] and x [k, n, batch * copies]."""
    weight: Shape4 = (k, m, *batch)
    rows: Shape4 = (k, n, batch[0] * copies[0], batch[1] * copies[1])
    return Case("mul_mat", ne=[weight, rows], types=(type, x), **more)  # type: ignore[arg-type]


CASES: list[Case] = [
    *(product(t, 16, n, 256) for t in (*FLOATS, *QUANTIZED) for n in _COLUMNS),
    *(product(t, 16, n, k) for t in (*FLOATS, *QUANTIZED) for k in (768, 4096) for n in (1, 5)),
    *(product(t, 1, 64, 256) for t in (*FLOATS, *QUANTIZED)),
    *(product(t, m, n, 256) for t in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K")
      for m in _ROWS for n in (1, 4, 32)),
    *(product(t, 5, n, k) for t in FLOATS for k in _LENGTHS for n in (1, 3, 17)),
    *(product(t, 5, n, 32 * k) for t in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4")
      for k in (1, 2, 3, 5, 7, 9, 17, 31, 33) for n in (1, 9)),
    *(product("q1_0", 5, n, 128 * k) for k in (1, 2, 3, 5, 7) for n in (1, 9)),
    *(product(t, 5, n, 64 * k) for t in ("nvfp4", "q2_0") for k in (1, 2, 3, 5, 7) for n in (1, 9)),
    *(product(t, 16, n, 256, batch=batch, copies=copies) for t in _BASE for n in (1, 16)
      for batch, copies in _BROADCASTS),
    *(product(t, 16, n, k, x=x) for t in ("f32", "f16", "bf16", "q8_0", "q4_K")
      for x in ("f16", "bf16") for n in (1, 7, 16) for k in (256, 1024)),
    *(product(t, 16, n, 256, batch=(2, 3), layouts=(order, order), weights=()) for t in _BASE
      for n in (1, 8, 16) for order in ("0213", "0132", "0321")),
    *(product(t, 13, n, 65, batch=(3, 2), layouts=layouts, weights=weights) for t in FLOATS
      for n in (1, 5) for weights in ((), (0,))
      for layouts in (("offset", "offset"), ("view", "offset"), ("", "transposed"),
                      ("offset", "2103"), ("", "repeated"))),
    *(product(t, 13, n, 256, layouts=layouts, weights=weights) for t in ("q8_0", "q4_0", "q6_K")
      for n in (1, 5) for weights in ((), (0,))
      for layouts in (("offset", "offset"), ("view", "view"), ("", "transposed"),
                      ("", "repeated"), ("", ""))),
    # Keys and values of a cache are no weights: grouped heads, products as attention makes them.
    *(product(t, m, n, k, batch=(heads, 1), copies=(r, 1), layouts=("0213", "0213"), weights=())
      for t in FLOATS for m, k in ((257, 64), (64, 257)) for heads in (2, 3) for r in (1, 4)
      for n in (1, 3)),
    *(product(t, m, n, 2048) for t in ("f32", "f16") for m in (1, 31) for n in (9, 127, 129)),
    *(product(t, 67, n, 1024) for t in ("q4_K", "q5_K", "q8_0", "q4_0") for n in (2, 12, 48)),
    product("f32", 3, 2, 64, batch=(1, 1), copies=(300, 1)),
    product("q4_0", 3, 1, 64, batch=(200, 2)),
    product("q8_0", 1, 301, 1024),
]  # fmt: skip
