"""Every CPU kernel, one file per family. Importing this declares them all; nothing is compiled."""

from ggmlpy.backends.cpu.kernels import (
    attention,
    copy,
    elementwise,
    glu,
    matmul,
    matmul_rows,
    norm,
    pool,
    recurrent,
    reduce,
    rope,
    rows,
    shape,
    softmax,
    sort,
    unary,
)

__all__ = [
    "attention",
    "copy",
    "elementwise",
    "glu",
    "matmul",
    "matmul_rows",
    "norm",
    "pool",
    "recurrent",
    "reduce",
    "rope",
    "rows",
    "shape",
    "softmax",
    "sort",
    "unary",
]
