"""Direct convolutions: of images and volumes, and of each channel by itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.convolution_shapes import STEPS, numbers_fit, steps_of
from ggmlpy.backends.cuda.shapes import blocks, over_elements
from ggmlpy.backends.cuda.source import Form
from ggmlpy.ops.convolution import channels_first

_TENSORS = [(name, TENSOR) for name in ("y", "kernel", "x")]
ARGS = np.dtype(
    [
        *_TENSORS,
        ("steps", "i4", STEPS),
        *((name, "i4") for name in ("in_channels", "out_channels", "kernel_type")),
    ],
    align=True,
)
DW_ARGS = np.dtype(
    [*_TENSORS, ("steps", "i4", STEPS), ("by_pixels", "i4"), ("kernel_type", "i4")], align=True
)
CONV_64, CONV_32, CONV_DW = (
    Form("convolution.cu", name) for name in ("conv_64", "conv_32", "conv_2d_dw")
)
_DW_THREADS = 256
_BLOCKS_PER_SM = 2  # of the large tiles, below which small ones use the GPU better


def _convolution(w: Work) -> Iterator[Launch]:
    y = w["y"]
    in_channels, out_channels = w.params.get("c", 0), w.params.get("oc", 0)
    values = {
        "steps": steps_of(w),
        "in_channels": in_channels,
        "out_channels": out_channels,
        "kernel_type": w["kernel"].type.id,
    }
    n_channels = out_channels or int(y.ne[2])
    n_pixels = y.spec.n_elements // n_channels

    def tiles(side: int) -> int:
        return blocks(n_channels, side) * blocks(n_pixels, side)

    if tiles(64) >= _BLOCKS_PER_SM * w.info.n_sm:
        yield Launch(CONV_64, ARGS, (tiles(64), 1, 1), 256, values=values)
    else:
        yield Launch(CONV_32, ARGS, (tiles(32), 1, 1), 64, values=values)


def _dw(w: Work) -> Iterator[Launch]:
    y = w["y"]
    values = {
        "steps": steps_of(w),
        "by_pixels": channels_first(w["x"].spec),
        "kernel_type": w["kernel"].type.id,
    }
    grid = over_elements(y, _DW_THREADS)
    yield Launch(CONV_DW, DW_ARGS, grid, _DW_THREADS, values=values)


for _type in ("f32", "f16"):
    for _op in ("conv_2d", "conv_3d"):
        _forms = (CONV_64, CONV_32)
        kernel(_op, (_type, "f32"), forms=_forms, requires=numbers_fit)(_convolution)
    kernel("conv_2d_dw", (_type, "f32"), forms=[CONV_DW], requires=numbers_fit)(_dw)
