"""Floats to blocks of quantised types: copies, and rows scattered by indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.copy_loops import block_layout, blocked, layouts
from ggmlpy.backends.cuda.kernels.elementwise import FLOATS, THREADS
from ggmlpy.backends.cuda.kernels.rows import CLAIM_ROWS, RESET_OWNERS, set_rows
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step

TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl")
ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("x", TENSOR),
        ("step", "i8"),
        *((name, "i4") for name in ("together", "y_type", "x_type")),
    ],
    align=True,
)
QUANTIZE, SET_FEW, SET_OWNED = (
    Form("quantize.cu", name) for name in ("quantize", "set_rows_few", "set_rows_owned")
)
_BLOCK = 32


def _rows(step: Step) -> bool:
    """Blocks of a row lie one after another."""
    y = step.results["y"]
    return y.type.name in TYPES and (y.rows_contiguous or y.ne[0] == _BLOCK)


def _quantize(w: Work) -> Iterator[Launch]:
    y, x = w["y"], w["x"]
    values: dict[str, Any] = {"y_type": y.type.id, "x_type": x.type.id}
    found = blocked(y, x)
    if found is None:
        values |= {"together": 0, "step": 0, "y": block_layout(y), "x": x}
    else:
        step, loops = found
        to, of = layouts(y, x, loops)
        values |= {"together": 1, "step": step, "y": to, "x": of}
    grid = blocks(y.spec.n_elements, THREADS), 1, 1  # a warp for each block
    yield Launch(QUANTIZE, ARGS, grid, THREADS, values=values)


def _set_rows(w: Work) -> Iterator[Launch]:
    yield from set_rows(w, SET_FEW, SET_OWNED, _BLOCK, lanes=32)


for _x in FLOATS:
    kernel("cast", (_x,), forms=[QUANTIZE], requires=_rows)(_quantize)
    for _type in TYPES:
        kernel("cpy", (_x, _type), forms=[QUANTIZE], requires=_rows)(_quantize)
for _x in ("f32", "f16"):
    for _ids in ("i64", "i32"):
        for _type in TYPES:
            _forms = (SET_FEW, SET_OWNED, RESET_OWNERS, CLAIM_ROWS)
            kernel("set_rows", (_x, _ids, _type), forms=_forms)(_set_rows)
