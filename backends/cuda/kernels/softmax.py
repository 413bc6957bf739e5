"""Softmax of rows with scale, mask, ALiBi's slopes and sinks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.reduce_rows import launch_rows
from ggmlpy.backends.cuda.source import Form
from ggmlpy.graph.types import F16

ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("x", TENSOR),
        ("mask", TENSOR),
        ("sinks", TENSOR),
        ("scale", "f4"),
        ("max_bias", "f4"),
        ("mask_is_f16", "i4"),
        ("rows_per_block", "i4"),
    ],
    align=True,
)
SOFT_MAX = Form("softmax.cu", "soft_max")


def _declare(*types: str) -> None:
    @kernel("soft_max", types, forms=[SOFT_MAX])
    def launch(w: Work) -> Iterator[Launch]:
        x, mask = w["x"], w.step.operands.get("mask")
        values = {"mask_is_f16": mask is not None and mask.type is F16}
        yield launch_rows(SOFT_MAX, ARGS, x.ne[0], x.spec.n_rows, values)


_declare("f32")
_declare("f32", "f16")
_declare("f32", "f32")  # a mask, or sinks
_declare("f32", "f16", "f32")
_declare("f32", "f32", "f32")
