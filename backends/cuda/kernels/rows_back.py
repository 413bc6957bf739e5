"""Gradients of get_rows and of repeat."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.shapes import blocks, over_elements, rows_ok
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step

GET_ROWS_BACK = Form("rows_back.cu", "get_rows_back")
REPEAT_BACK = Form("rows_back.cu", "repeat_back")
GET_ARGS = np.dtype(
    [*((name, TENSOR) for name in ("y", "grad", "ids")), ("type", "i4")], align=True
)
REPEAT_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("per_block", "i4")], align=True)
_THREADS = 256
_SERIAL = 256  # copies that one thread adds up, as in rows_back.cu


def _get_rows_back(w: Work) -> Iterator[Launch]:
    y = w["y"]
    threads = min(_THREADS, 32 * blocks(y.ne[0], 32))
    grid = blocks(y.ne[0], threads) * int(y.ne[1]), 1, 1
    values = {"type": w["grad"].type.id}
    yield Launch(GET_ROWS_BACK, GET_ARGS, grid, threads, values=values)


for _type in ("f32", "f16"):
    kernel("get_rows_back", (_type, "i32"), forms=[GET_ROWS_BACK])(_get_rows_back)


def _rows(step: Step) -> bool:
    return all(rows_ok(tensor) for tensor in step.tensors)


@kernel("repeat_back", ("f32",), forms=[REPEAT_BACK], requires=_rows)
def repeat_back(w: Work) -> Iterator[Launch]:
    y, x = w["y"], w["x"]
    few = x.spec.n_elements <= _SERIAL * y.spec.n_elements
    grid = over_elements(y, _THREADS if few else 1)
    values = {"per_block": _THREADS if few else 1}
    yield Launch(REPEAT_BACK, REPEAT_ARGS, grid, _THREADS, values=values)
