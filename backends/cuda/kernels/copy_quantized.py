"""Blocks of quantised types to f32: copies, and rows gathered by indices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.elementwise import THREADS, as_rows, over_pieces
from ggmlpy.backends.cuda.kernels.rows import GET_ARGS
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step
from ggmlpy.graph.count import same_counts

TYPES = (  # as in copy_quantized.cu
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "nvfp4", "tq1_0", "tq2_0"),
    *("q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_xs"),
    *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "q1_0", "q2_0"),
)
DEQUANTIZE, GET_ROWS = (Form("copy_quantized.cu", name) for name in ("dequantize", "get_rows"))
DEQUANTIZE_ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), ("type", "i4"), ("same_shape", "i4")], align=True
)


def _to_f32(step: Step) -> bool:
    """Blocks of a row lie one after another."""
    x, y = step.operands["x"], step.results["y"]
    return y.type.name == "f32" and (x.rows_contiguous or x.ne[0] == x.type.block_size)


def _dequantize(w: Work) -> Iterator[Launch]:
    y, x = w["y"], w["x"]
    same_shape = y.ne == x.ne and same_counts(y.ne, x.ne)
    tensors = as_rows(x=x, y=y)
    values = {**tensors, "type": x.type.id, "same_shape": same_shape}
    grid = over_pieces(tensors["x"])
    yield Launch(DEQUANTIZE, DEQUANTIZE_ARGS, grid, THREADS, values=values)


def _get_rows(w: Work) -> Iterator[Launch]:
    values = {"type": w["x"].type.id}
    yield Launch(GET_ROWS, GET_ARGS, over_pieces(w["y"]), THREADS, values=values)


for _type in TYPES:
    kernel("cast", (_type,), forms=[DEQUANTIZE], requires=_to_f32)(_dequantize)
    kernel("cpy", (_type, "f32"), forms=[DEQUANTIZE], requires=_to_f32)(_dequantize)
    kernel("get_rows", (_type, "i32"), forms=[GET_ROWS])(_get_rows)
