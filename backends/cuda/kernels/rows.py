"""Rows gathered and scattered by indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.args import SPAN, TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.elementwise import FLOATS, PIECE, over_pieces
from ggmlpy.backends.cuda.shapes import blocks, over_elements
from ggmlpy.backends.cuda.source import Form
from ggmlpy.graph.types import F32, I32, I64

GET_ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), ("ids", TENSOR), ("type", "i4")],
    align=True,
)
SET_ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "x", "ids")),
        ("owners", SPAN),
        *((name, "i4") for name in ("ids_are_i64", "y_type", "x_type")),
    ],
    align=True,
)
GET_ROWS, SET_FEW, SET_OWNED, RESET_OWNERS, CLAIM_ROWS = (
    Form("rows.cu", name)
    for name in ("get_rows", "set_rows_few", "set_rows_owned", "reset_owners", "claim_rows")
)
THREADS = 256
_FEW = 1024  # indices, as in set_rows.cuh


def _get_rows(w: Work) -> Iterator[Launch]:
    x = w["x"]
    type = F32 if x.type is I32 else x.type  # whose bits are moved
    grid = over_pieces(w["y"])
    yield Launch(GET_ROWS, GET_ARGS, grid, THREADS, values={"type": type.id})


for _type in (*FLOATS, "i32"):
    kernel("get_rows", (_type, "i32"), forms=[GET_ROWS])(_get_rows)


def set_rows(w: Work, few: Form, owned: Form, part: int, lanes: int = 1) -> Iterator[Launch]:
    """The launches of set_rows: `part` elements of a row are written by so many `lanes`."""
    y, x, ids = w["y"], w["x"], w["ids"]
    values: dict[str, Any] = {
        "owners": None,
        "ids_are_i64": ids.type is I64,
        "y_type": y.type.id,
        "x_type": x.type.id,
    }
    grid = blocks(blocks(x.ne[0], part) * int(x.spec.n_rows) * lanes, THREADS), 1, 1
    if ids.spec.n_elements <= _FEW:
        yield Launch(few, SET_ARGS, grid, THREADS, values=values)
        return
    n_owners = int(y.ne[1]) * int(ids.ne[1]) * int(ids.ne[2])
    values["owners"] = w.scratch(4 * n_owners)
    reset = blocks(n_owners, THREADS), 1, 1
    yield Launch(RESET_OWNERS, SET_ARGS, reset, THREADS, values=values)
    yield Launch(CLAIM_ROWS, SET_ARGS, over_elements(ids, THREADS), THREADS, values=values)
    yield Launch(owned, SET_ARGS, grid, THREADS, values=values)


def _set_rows(w: Work) -> Iterator[Launch]:
    yield from set_rows(w, SET_FEW, SET_OWNED, PIECE)


for _x in ("f32", "f16"):
    for _ids in ("i64", "i32"):
        for _type in FLOATS:
            _forms = (SET_FEW, SET_OWNED, RESET_OWNERS, CLAIM_ROWS)
            kernel("set_rows", (_x, _ids, _type), forms=_forms)(_set_rows)
