"""Rows gathered and scattered: types, batches, indices of both types, repeated and strided."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import FLOATS, QUANTIZED, WRITABLE
from ggmlpy.graph.types import type_of


def _into(
    type: str, n: int, rows: int, n_ids: int, *, batch: tuple[int, int] = (1, 1),
    lists: tuple[int, int] = (1, 1), x: str = "f32", ids: str = "i64", **more: object,
) -> Case:  # fmt: skip
    """n_ids rows of x into dst [n, rows, *batch]."""
    ne = [(n, rows, *batch), (n, n_ids, *batch), (n_ids, *lists)]
    return Case("set_rows", ne=ne, types=(type, x, ids), **more)  # type: ignore[arg-type]


_GET: list[Case] = [
    *(Case("get_rows", ne=[(256, 5, b), (4, b)], types=(t, "i32"), layouts=(v,), weights=w)
      for t in (*FLOATS, *QUANTIZED) for b, v, w in
      ((1, "", ()), (7, "", (0,)), (3, "view", (0,)), (3, "offset", ()), (3, "0132", ()))),
    *(Case("get_rows", ne=[(n, 11), (6,)], types=(t, "i32")) for t in (*FLOATS, "i32")
      for n in (1, 2, 15, 16, 17, 33, 257)),
    *(Case("get_rows", ne=[(n * type_of(t).block_size, 7), (3,)], types=(t, "i32"))
      for t in QUANTIZED for n in (1, 3)),
    *(Case("get_rows", ne=[(5, 11, 3, 2), (6, 3, 2)], types=("i32", "i32"), layouts=(v,),
           span=(-1000, 1000)) for v in ("view", "offset", "0213")),
    *(Case("get_rows", ne=[(67, 11), (5,)], types=(t, "i32"), values="special") for t in FLOATS),
    Case("get_rows", ne=[(64, 1), (9,)], types=("q4_0", "i32")),
    Case("get_rows", ne=[(32, 3, 70, 10), (2, 70, 10)], types=("q4_0", "i32")),
]  # fmt: skip

_SET: list[Case] = [
    *(_into(t, 3 * type_of(t).block_size, 3, 2, batch=(b, 1), x=x, ids=i)
      for t in WRITABLE for x in ("f32", "f16") for i in ("i64", "i32") for b in (1, 7)),
    *(_into(t, 256, 11, 7, batch=(2, 3), lists=lists, x=x, ids=i) for t in WRITABLE
      for x in ("f32", "f16") for i in ("i64", "i32") for lists in ((1, 3), (2, 1))),
    *(_into(t, 64, 5, 9, batch=batch, x=x, ids=i, repeat=True) for t in WRITABLE
      for batch in ((1, 1), (3, 2)) for x in ("f32", "f16") for i in ("i64", "i32")),
    *(_into(t, 64, 13, 7, batch=(3, 2), ids=i, layouts=layouts) for t in WRITABLE
      for i in ("i64", "i32")
      for layouts in (("view", "view"), ("offset", "offset"), ("0213", "0321"), ("", "repeated"))),
    *(_into(t, n, 9, 4, x=x) for t in FLOATS for x in ("f32", "f16")
      for n in (1, 2, 15, 16, 17, 31, 33, 257)),
    *(_into(t, 67, 11, 5, x=x, values="special") for t in FLOATS for x in ("f32", "f16")),
    *(_into(t, 64, n, n, ids=i) for t in WRITABLE for n in (1, 33) for i in ("i64", "i32")),
]  # fmt: skip

CASES: list[Case] = [*_GET, *_SET]
