"""Transposed convolutions of signals and images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.convolution_shapes import as_images, numbers_fit
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form

ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "kernel", "x")),
        ("stride", "i4"),
        ("kernel_type", "i4"),
    ],
    align=True,
)
FORM = Form("conv_transpose.cu", "conv_transpose")
THREADS = 128
_PART = 4  # channels of a thread, as in conv_transpose.cu


def _launch(w: Work, stride: int, layouts: dict[str, Any]) -> Iterator[Launch]:
    shape = layouts.get("y", w["y"]).ne
    n = int(shape[0]) * int(shape[1]) * blocks(shape[2], _PART) * int(shape[3])
    values = {**layouts, "stride": stride, "kernel_type": w["kernel"].type.id}
    yield Launch(FORM, ARGS, (blocks(n, THREADS), 1, 1), THREADS, values=values)


def _of_signals(w: Work) -> Iterator[Launch]:
    layouts = {name: as_images(w[name]) for name in ("y", "kernel", "x")}
    yield from _launch(w, w.params["s0"], layouts)


def _of_images(w: Work) -> Iterator[Launch]:
    yield from _launch(w, w.params["stride"], {})


for _type in ("f32", "f16"):
    kernel("conv_transpose_1d", (_type, "f32"), forms=[FORM], requires=numbers_fit)(_of_signals)
    kernel("conv_transpose_2d", (_type, "f32"), forms=[FORM], requires=numbers_fit)(_of_images)
