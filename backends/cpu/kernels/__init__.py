"""Every CPU kernel, one file per family. Importing this declares them all; nothing is compiled."""

from ggmlpy.backends.cpu.kernels import (
    attention,
    copy,
    elementwise,
    glu,
    norm,
    rope,
    rows,
    softmax,
    unary,
)

__all__ = ["attention", "copy", "elementwise", "glu", "norm", "rope", "rows", "softmax", "unary"]
