"""Pooling over windows, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.convolution_shapes import numbers_fit
from ggmlpy.backends.cuda.shapes import over_elements
from ggmlpy.backends.cuda.source import Form

THREADS = 256
_LINE = [(name, "i4") for name in ("op", "k0", "s0", "p0")]
_PLANE = [(name, "i4") for name in ("op", "k0", "k1", "s0", "s1", "p0", "p1")]
_Y, _X, _GRAD = ((name, TENSOR) for name in ("y", "x", "grad"))


def _pool(op: str, types: tuple[str, ...], fields: list[Any]) -> None:
    form = Form("pool.cu", op)
    args = np.dtype(fields, align=True)

    @kernel(op, types, forms=[form], requires=numbers_fit)
    def launch(w: Work) -> Iterator[Launch]:
        values = {"type": w["x"].type.id}
        yield Launch(form, args, over_elements(w["y"], THREADS), THREADS, values=values)


for _type in ("f32", "f16"):
    _pool("pool_1d", (_type,), [_Y, _X, ("type", "i4"), *_LINE])
_pool("pool_2d", ("f32",), [_Y, _X, *_PLANE])
_pool("pool_2d_back", ("f32", "f32"), [_Y, _GRAD, _X, *_PLANE])
