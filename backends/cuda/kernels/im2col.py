"""Windows as rows, and back: im2col in one to three dimensions, im2col_back, col2im_1d."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Layout, Work, kernel
from ggmlpy.backends.cuda.kernels.convolution_shapes import (
    STEPS,
    as_images,
    numbers_fit,
    steps_of,
)
from ggmlpy.backends.cuda.shapes import blocks, over_elements
from ggmlpy.backends.cuda.source import Form
from ggmlpy.graph.tensor import Tensor

THREADS = 256
_WINDOWS = 8  # of a thread, as in im2col.cu
IM2COL, IM2COL_BACK, COL2IM = (
    Form("im2col.cu", name) for name in ("im2col", "im2col_back", "col2im_1d")
)
ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "x", "kernel")),
        ("steps", "i4", STEPS),
        *((name, "i4") for name in ("n_channels", "y_type", "x_type")),
    ],
    align=True,
)
BACK_ARGS = np.dtype(
    [*((name, TENSOR) for name in ("y", "grad", "kernel")), ("steps", "i4", STEPS)], align=True
)
SIGNAL_ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), *((name, "i4") for name in ("s0", "p0", "oc", "type"))],
    align=True,
)


def _as_windows(y: Tensor) -> Layout:
    """Windows of signals [elements, OW, N] as those of images of one line."""
    n, n_wide, n_signals, _ = y.ne
    return Layout(y, (n, n_wide, 1, n_signals), (y.nb[0], y.nb[1], y.nb[2], y.nb[2]))


def _as_kernel(kernel: Tensor) -> Layout:
    """Of signals [KW, C, ...] for those of images [KW, 1, C, ...]."""
    return Layout(kernel, (kernel.ne[0], 1, *kernel.ne[1:3]), (*kernel.nb[:1], 0, *kernel.nb[1:3]))


def _im2col(w: Work) -> Iterator[Launch]:
    y, x = w["y"], w["x"]
    values: dict[str, Any] = {
        "steps": steps_of(w),
        "n_channels": w.params.get("IC", 0),
        "y_type": y.type.id,
        "x_type": x.type.id,
    }
    if not w.params.get("is_2D", True):
        values |= {"y": _as_windows(y), "x": as_images(x), "kernel": _as_kernel(w["kernel"])}
    n_lines = int(y.ne[2]) * int(y.ne[3])
    n = int(y.ne[0]) * blocks(y.ne[1], _WINDOWS) * n_lines
    yield Launch(IM2COL, ARGS, (blocks(n, THREADS), 1, 1), THREADS, values=values)


for _kernel in ("f32", "f16", "bf16"):
    for _x in ("f32", "f16"):
        for _op in ("im2col", "im2col_3d"):
            kernel(_op, (_kernel, _x), forms=[IM2COL], requires=numbers_fit)(_im2col)


def _im2col_back(w: Work) -> Iterator[Launch]:
    y = w["y"]
    values: dict[str, Any] = {"steps": steps_of(w)}
    if not w.params["is_2D"]:
        layouts = as_images(y), _as_windows(w["grad"]), _as_kernel(w["kernel"])
        values |= dict(zip(("y", "grad", "kernel"), layouts, strict=True))
    grid = over_elements(y, THREADS)
    yield Launch(IM2COL_BACK, BACK_ARGS, grid, THREADS, values=values)


for _kernel in ("f32", "f16", "bf16"):
    kernel("im2col_back", ("f32", _kernel), forms=[IM2COL_BACK], requires=numbers_fit)(_im2col_back)


def _col2im(w: Work) -> Iterator[Launch]:
    y = w["y"]
    values = {"type": y.type.id}
    yield Launch(COL2IM, SIGNAL_ARGS, over_elements(y, THREADS), THREADS, values=values)


for _type in ("f32", "f16", "bf16"):
    kernel("col2im_1d", (_type,), forms=[COL2IM], requires=numbers_fit)(_col2im)
