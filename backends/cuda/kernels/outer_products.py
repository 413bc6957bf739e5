"""Outer products (out_prod): sums of columns of a times columns of b, with a of all types."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.products import FLOATS
from ggmlpy.backends.cuda.kernels.quants import QUANTS
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form

ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "a", "b")),
        ("n_row_blocks", "i4"),
        ("n_column_blocks", "i4"),
    ],
    align=True,
)
_THREADS, _COLUMNS = 128, 8


def _declare_outer(type: str) -> None:
    form = Form("products.cu", "outer_product", (("WEIGHT", type),))

    @kernel("out_prod", (type, "f32"), forms=[form])
    def out_prod(w: Work) -> Iterator[Launch]:
        y = w["y"]
        values = {
            "n_row_blocks": blocks(y.ne[0], _THREADS),
            "n_column_blocks": blocks(y.ne[1], _COLUMNS),
        }
        n_blocks = values["n_row_blocks"] * values["n_column_blocks"] * int(y.ne[2] * y.ne[3])
        yield Launch(form, ARGS, (n_blocks, 1, 1), _THREADS, values=values)


for _weight in (*FLOATS, *QUANTS):
    _declare_outer(_weight)
