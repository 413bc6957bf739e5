"""The short causal convolution of recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.shapes import blocks, over_elements, rows_ok
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step

ARGS = np.dtype([(name, TENSOR) for name in ("y", "x", "kernel")], align=True)
LISTED_ARGS = np.dtype([(name, TENSOR) for name in ("y", "x", "kernel", "taps")], align=True)
CONV, CONV_LISTED = Form("recurrent.cu", "ssm_conv"), Form("recurrent.cu", "ssm_conv_listed")
THREADS = 128
_STEPS = 8  # of a thread, as in recurrent.cu


def _rows(step: Step) -> bool:
    return all(rows_ok(operand) for operand in step.operands.values())


@kernel("ssm_conv", ("f32", "f32"), forms=[CONV], requires=_rows)
def ssm_conv(w: Work) -> Iterator[Launch]:
    n_channels, n_steps, n_seqs, _ = w["y"].ne
    n = int(n_channels) * blocks(n_steps, _STEPS) * int(n_seqs)
    yield Launch(CONV, ARGS, (blocks(n, THREADS), 1, 1), THREADS)


@kernel("ssm_conv", ("f32", "f32", "i32"), forms=[CONV_LISTED], requires=_rows)
def ssm_conv_listed(w: Work) -> Iterator[Launch]:
    yield Launch(CONV_LISTED, LISTED_ARGS, over_elements(w["y"], THREADS), THREADS)
