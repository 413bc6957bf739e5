"""Normalisation of rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.shapes import over_rows, rows_ok
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step

ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("eps", "f4")], align=True)
THREADS = 256


def requires(step: Step) -> bool:
    return rows_ok(step.operands["x"]) and rows_ok(step.results["y"])


def _declare(name: str) -> None:
    form = Form("norm.cu", name)

    @kernel(name, ("f32",), forms=[form], requires=requires)
    def launch(w: Work) -> Iterator[Launch]:
        yield Launch(form, ARGS, over_rows(w["x"]), THREADS)


for _name in ("rms_norm", "norm", "l2_norm"):
    _declare(_name)
