"""Arithmetic on two tensors, element by element; and what all elementwise kernels need."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.driver import Grid
from ggmlpy.backends.cuda.kernel import Launch, Layout, Work, kernel
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form
from ggmlpy.graph.count import has_counts, same_counts
from ggmlpy.graph.tensor import Tensor

FLOATS = ("f32", "f16", "bf16")
THREADS = 256
PIECE = 4  # elements of a thread, as in elementwise.cuh
_MOST = 2**31 - 1  # a count is an i32


def as_rows(**tensors: Tensor) -> dict[str, Tensor | Layout]:
    """Tensors of one shape, by their names in a launch: as one row each if none has gaps, so that
    short rows do not break up pieces."""
    first = next(iter(tensors.values()))
    n = first.spec.n_elements
    gapless = all(
        x.contiguous and x.ne == first.ne and same_counts(x.ne, first.ne) for x in tensors.values()
    )
    if not gapless or n > _MOST:
        return {**tensors}
    return {name: _as_row(x, n) for name, x in tensors.items()}


def _as_row(x: Tensor, n: int) -> Layout:
    size = x.type.type_size
    return Layout(x, (n, 1, 1, 1), (size, size * int(n), size * int(n), size * int(n)))


def over_pieces(y: Tensor | Layout) -> Grid:
    """A thread for each piece of the rows of y."""
    n0, n1, n2, n3 = map(int, y.ne)
    return blocks(blocks(n0, PIECE) * n1 * n2 * n3, THREADS), 1, 1


BINARY = Form("elementwise.cu", "binary")
BINARY_ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "a", "b")),
        *((name, "i4") for name in ("operation", "type", "b_type")),
    ],
    align=True,
)
_OPERATIONS = {"add": 0, "sub": 1, "mul": 2, "div": 3, "add1": 0}  # as in elementwise.cu


def _binary(op: str, types: tuple[str, str]) -> None:
    @kernel(op, types, forms=[BINARY])
    def launch(w: Work) -> Iterator[Launch]:
        y, a, b = w["y"], w["a"], w["b"]
        is_number = b.ne == (1, 1, 1, 1) and not has_counts(b.ne)
        tensors = as_rows(y=y, a=a) if is_number else as_rows(y=y, a=a, b=b)
        numbers = {"operation": _OPERATIONS[op], "type": y.type.id, "b_type": b.type.id}
        grid = over_pieces(tensors["y"])
        yield Launch(BINARY, BINARY_ARGS, grid, THREADS, values={**tensors, **numbers})


for _op in _OPERATIONS:
    for _a in FLOATS:
        for _b in FLOATS:
            _binary(_op, (_a, _b))


ADD_ID = Form("elementwise.cu", "add_id")
ADD_ID_ARGS = np.dtype([(name, TENSOR) for name in ("y", "a", "b", "ids")], align=True)


@kernel("add_id", ("f32", "f32", "i32"), forms=[ADD_ID])
def add_id(w: Work) -> Iterator[Launch]:
    yield Launch(ADD_ID, ADD_ID_ARGS, over_pieces(w["y"]), THREADS)
