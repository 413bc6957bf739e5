"""Reductions of rows and of whole tensors, and prefix sums."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import SPAN, TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.reduce_rows import WARP_ROW, launch_rows
from ggmlpy.backends.cuda.shapes import blocks, rows_ok
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step
from ggmlpy.graph.count import has_counts
from ggmlpy.graph.tensor import Tensor

CHUNK_ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("x", TENSOR),
        ("parts", SPAN),
        ("n_chunks", "i4"),
        ("is_mean", "i4"),
        ("rows_per_block", "i4"),
    ],
    align=True,
)
CUMSUM_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("rows_per_block", "i4")], align=True)
SUM_ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), ("parts", SPAN), ("n_parts", "i4"), ("is_one_row", "i4")],
    align=True,
)
COUNT_ARGS = np.dtype(
    [("y", TENSOR), ("a", TENSOR), ("b", TENSOR), ("parts", SPAN), ("n_parts", "i4")], align=True
)
SUM_ROWS = Form("reduce.cu", "sum_rows"), Form("reduce.cu", "sum_rows_of_parts")
ARGMAX = Form("reduce.cu", "argmax"), Form("reduce.cu", "argmax_of_parts")
CUMSUM = Form("reduce.cu", "cumsum")
SUM_PARTS = Form("reduce.cu", "sum_parts")
SUM_OF_PARTS = Form("reduce.cu", "sum_of_parts")
COUNT_EQUAL_PARTS = Form("reduce.cu", "count_equal_parts")
COUNT_OF_PARTS = Form("reduce.cu", "count_of_parts")

_PARTS_BLOCK = 256
_MAX_PARTS = 256  # which one block adds up, a thread each
_CHUNK = 4096  # elements of a row: a vocabulary of 128 K is the work of 32 blocks


def _rows(step: Step) -> bool:
    return all(rows_ok(tensor) for tensor in step.operands.values())


def _declare(op: str, forms: tuple[Form, Form]) -> None:
    @kernel(op, ("f32",), forms=forms, requires=_rows)
    def launch(w: Work) -> Iterator[Launch]:
        x = w["x"]
        n, n_rows = int(x.ne[0]), int(x.spec.n_rows)
        n_chunks = blocks(n, _CHUNK)
        parts = w.scratch(8 * n_rows * n_chunks) if n_chunks > 1 else None
        values = {"parts": parts, "n_chunks": n_chunks, "is_mean": op == "mean"}
        chunks, of_parts = forms
        yield launch_rows(chunks, CHUNK_ARGS, min(n, _CHUNK), n_rows * n_chunks, values)
        if n_chunks > 1:
            grid = blocks(n_rows, _PARTS_BLOCK // 32), 1, 1
            values["rows_per_block"] = _PARTS_BLOCK // 32
            yield Launch(of_parts, CHUNK_ARGS, grid, _PARTS_BLOCK, values=values)


_declare("sum_rows", SUM_ROWS)
_declare("mean", SUM_ROWS)
_declare("argmax", ARGMAX)


@kernel("cumsum", ("f32",), forms=[CUMSUM], requires=_rows)
def cumsum(w: Work) -> Iterator[Launch]:
    x = w["x"]
    yield launch_rows(CUMSUM, CUMSUM_ARGS, x.ne[0], x.spec.n_rows)


def _n_parts(x: Tensor, is_one_row: bool) -> int:
    """Blocks for a tensor, each of whose warps takes tiles of rows."""
    n, n_rows = (x.spec.n_elements, 1) if is_one_row else (x.ne[0], x.spec.n_rows)
    return min(_MAX_PARTS, blocks(blocks(n, WARP_ROW) * int(n_rows), _PARTS_BLOCK // 32))


@kernel("sum", ("f32",), forms=[SUM_PARTS, SUM_OF_PARTS], requires=_rows)
def sum(w: Work) -> Iterator[Launch]:
    x = w["x"]
    is_one_row = x.spec.contiguous and not has_counts(x.ne)
    n_parts = _n_parts(x, is_one_row)
    values = {"parts": w.scratch(8 * n_parts), "n_parts": n_parts, "is_one_row": is_one_row}
    yield Launch(SUM_PARTS, SUM_ARGS, (n_parts, 1, 1), _PARTS_BLOCK, values=values)
    yield Launch(SUM_OF_PARTS, SUM_ARGS, (1, 1, 1), _PARTS_BLOCK, values=values)


@kernel("count_equal", ("i32", "i32"), forms=[COUNT_EQUAL_PARTS, COUNT_OF_PARTS], requires=_rows)
def count_equal(w: Work) -> Iterator[Launch]:
    n_parts = _n_parts(w["a"], False)
    values = {"parts": w.scratch(8 * n_parts), "n_parts": n_parts}
    yield Launch(COUNT_EQUAL_PARTS, COUNT_ARGS, (n_parts, 1, 1), _PARTS_BLOCK, values=values)
    yield Launch(COUNT_OF_PARTS, COUNT_ARGS, (1, 1, 1), _PARTS_BLOCK, values=values)
