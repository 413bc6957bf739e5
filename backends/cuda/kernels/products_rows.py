"""x as products read it: rounded rows in chunks, which all products of one x share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ggmlpy.backends.cuda.args import SPAN, TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Scratch, Work
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.rounding import Rounding
from ggmlpy.graph.count import Count
from ggmlpy.graph.tensor import Tensor

FILE = "products_rows.cu"
THREADS = 256
_PIECE = 4  # neighbours of a row, for a thread
_ROUND_ARGS = np.dtype(
    [
        ("x", TENSOR),
        ("rounded", SPAN),
        ("rounded_bytes", "i8"),
        ("type", "i4"),
        ("row_pieces", "i4"),
    ],
    align=True,
)


@dataclass(frozen=True, slots=True)
class Rounded:
    """How x is stored for weights of some types.

    chunk    elements
    n_bytes  of a chunk
    """

    rounding: Rounding
    form: Form
    chunk: int
    n_bytes: int

    def n_chunks(self, k: int) -> int:
        return blocks(k, self.chunk)

    def row_bytes(self, k: int) -> int:
        return self.n_chunks(k) * self.n_bytes


INT8 = Rounded(Rounding.INT8X32, Form(FILE, "round_to_int8"), 256, 352)
F16 = Rounded(Rounding.F16, Form(FILE, "round_to_f16"), 64, 128)
BF16 = Rounded(Rounding.BF16X2, Form(FILE, "round_to_bf16"), 64, 256)
F32 = Rounded(Rounding.F32, Form(FILE, "copy_f32"), 32, 128)


def is_as_stored(w: Work, kind: Rounded) -> bool:
    """Whether x needs no rounding: rows of its type that are whole chunks."""
    x = w["x"]
    is_whole = not isinstance(x.ne[0], Count) and x.ne[0] % kind.chunk == 0
    return is_whole and kind.rounding.value == x.type.name and has_aligned_rows(w, x)


def has_aligned_rows(w: Work, x: Tensor) -> bool:
    """Whether rows are contiguous, and begin at multiples of 16 bytes."""
    is_contiguous = x.nb[0] == x.type.type_size
    return is_contiguous and all(at % 16 == 0 for at in (w.address(x), *x.nb[1:]))


def rounded_rows(w: Work, kind: Rounded) -> tuple[Scratch, list[Launch]]:
    """Memory for x's rows, and the launch that fills it, unless a step before has."""
    x = w["x"]
    k, n_rows = int(x.ne[0]), int(x.spec.n_rows)
    row_bytes = kind.row_bytes(k)
    rows, is_new = w.derived(f"x as {kind.rounding.value}", x, row_bytes * n_rows)
    if not is_new:
        return rows, []
    row_pieces = kind.n_chunks(k) * kind.chunk // _PIECE
    values = {
        "x": x,
        "rounded": rows,
        "rounded_bytes": row_bytes,
        "type": x.type.id,
        "row_pieces": row_pieces,
    }
    grid = blocks(row_pieces * n_rows, THREADS), 1, 1
    return rows, [Launch(kind.form, _ROUND_ARGS, grid, THREADS, values=values)]


_LIST_ARGS = np.dtype([("ids", TENSOR), ("lists", SPAN), ("n_experts", "i4")], align=True)
LIST_COLUMNS = Form(FILE, "list_columns")


def expert_lists(w: Work, n_experts: int) -> tuple[Scratch, Iterator[Launch]]:
    """Memory for the columns of each expert, and the launch that lists them."""
    ids = w["ids"]
    n_bytes = 4 * (2 * n_experts + int(ids.spec.n_elements))
    lists, is_new = w.derived(f"columns of {n_experts} experts", ids, n_bytes)
    values = {"lists": lists, "n_experts": n_experts}
    launch = Launch(LIST_COLUMNS, _LIST_ARGS, (n_experts, 1, 1), THREADS, values=values)
    return lists, iter([launch] if is_new else [])
