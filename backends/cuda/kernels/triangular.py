"""Systems of equations of triangular matrices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form

ARGS = np.dtype([(name, TENSOR) for name in ("y", "a", "b")], align=True)
FORM = Form("triangular.cu", "solve_tri")
THREADS = 64


@kernel("solve_tri", ("f32", "f32"), forms=[FORM])
def solve_tri(w: Work) -> Iterator[Launch]:
    n_columns, _, n2, n3 = w["y"].ne
    n = int(n_columns) * int(n2) * int(n3)
    yield Launch(FORM, ARGS, (blocks(n, THREADS), 1, 1), THREADS)
