"""Ops that change a region of a tensor: acc adds to it, set replaces it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.shapes import blocks, over_elements
from ggmlpy.backends.cuda.source import Form

THREADS = 256
MOVED = 16  # bytes that a thread of `whole` moves
WHOLE = Form("regions.cu", "whole")
REGION = Form("regions.cu", "region")
WHOLE_ARGS = np.dtype([("y", TENSOR), ("a", TENSOR), ("size", "i4")], align=True)
REGION_ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "a", "b")),
        *((name, "i8") for name in ("nb1", "nb2", "nb3", "offset")),
        ("size", "i4"),
        ("adds", "i4"),
    ],
    align=True,
)
_PLAIN = ("f32", "f16", "f64", "i8", "i16", "i32", "i64")


def _region(op: str, type: str) -> None:
    @kernel(op, (type, type), forms=[WHOLE, REGION])
    def launch(w: Work) -> Iterator[Launch]:
        y = w["y"]
        values = {"size": y.type.type_size, "adds": op == "acc"}
        grid = blocks(blocks(y.spec.n_bytes, MOVED), THREADS), 1, 1
        yield Launch(WHOLE, WHOLE_ARGS, grid, THREADS, values=values)
        yield Launch(REGION, REGION_ARGS, over_elements(w["b"], THREADS), THREADS, values=values)


_region("acc", "f32")
for _type in _PLAIN:
    _region("set", _type)
