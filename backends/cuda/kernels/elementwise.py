"""Arithmetic on two tensors, element by element; and what all elementwise kernels need."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.driver import Grid
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form
from ggmlpy.graph.count import same_counts
from ggmlpy.graph.tensor import Tensor

FLOATS = ("f32", "f16", "bf16")
THREADS = 256
PIECE = 4  # elements of a thread, as in elementwise.cuh


def is_flat(*tensors: Tensor) -> bool:
    """Whether tensors of one shape have no gaps: their elements are then one row."""
    first = tensors[0]
    return all(x.contiguous and x.ne == first.ne and same_counts(x.ne, first.ne) for x in tensors)


def over_pieces(y: Tensor, flat: bool) -> Grid:
    """A thread for each piece of the rows of y, or of the one that y is if it is flat."""
    length, n_rows = (y.spec.n_elements, 1) if flat else (y.ne[0], y.spec.n_rows)
    return blocks(blocks(length, PIECE) * int(n_rows), THREADS), 1, 1


BINARY = Form("elementwise.cu", "binary")
BINARY_ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "a", "b")),
        *((name, "i4") for name in ("operation", "type", "b_type", "flat")),
    ],
    align=True,
)
_OPERATIONS = {"add": 0, "sub": 1, "mul": 2, "div": 3, "add1": 0}  # as in elementwise.cu


def _binary(op: str, types: tuple[str, str]) -> None:
    @kernel(op, types, forms=[BINARY])
    def launch(w: Work) -> Iterator[Launch]:
        y, a, b = w["y"], w["a"], w["b"]
        flat = is_flat(y, a) if b.spec.n_elements == 1 else is_flat(y, a, b)
        values = {
            "operation": _OPERATIONS[op],
            "type": y.type.id,
            "b_type": b.type.id,
            "flat": flat,
        }
        yield Launch(BINARY, BINARY_ARGS, over_pieces(y, flat), THREADS, values=values)


for _op in _OPERATIONS:
    for _a in FLOATS:
        for _b in FLOATS:
            _binary(_op, (_a, _b))


ADD_ID = Form("elementwise.cu", "add_id")
ADD_ID_ARGS = np.dtype([(name, TENSOR) for name in ("y", "a", "b", "ids")], align=True)


@kernel("add_id", ("f32", "f32", "i32"), forms=[ADD_ID])
def add_id(w: Work) -> Iterator[Launch]:
    yield Launch(ADD_ID, ADD_ID_ARGS, over_pieces(w["y"], False), THREADS)
