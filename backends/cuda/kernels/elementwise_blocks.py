"""Floats added to a tensor of a quantised type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step

THREADS = 256  # a warp for each block
ADD = Form("elementwise_blocks.cu", "add_to_blocks")
ARGS = np.dtype([*((name, TENSOR) for name in ("y", "a", "b")), ("type", "i4")], align=True)
_TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl")


def _rows(step: Step) -> bool:
    return step.operands["a"].rows_contiguous and step.results["y"].rows_contiguous


def _add(type: str) -> None:
    @kernel("add", (type, "f32"), forms=[ADD], requires=_rows)
    def launch(w: Work) -> Iterator[Launch]:
        y = w["y"]
        grid = blocks(y.spec.n_elements, THREADS), 1, 1
        yield Launch(ADD, ARGS, grid, THREADS, values={"type": y.type.id})


for _type in _TYPES:
    _add(_type)
