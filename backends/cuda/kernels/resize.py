"""Images of another size, and embeddings of time steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.shapes import over_elements
from ggmlpy.backends.cuda.source import Form
from ggmlpy.ops.resize import ScaleFlag

THREADS = 256
UPSCALE = Form("resize.cu", "upscale")
UPSCALE_ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), ("mode", "i4"), ("aligned", "i4")], align=True
)
_ANTIALIAS = 3  # in place of the mode BILINEAR, as in resize.cu


@kernel("upscale", ("f32",), forms=[UPSCALE])
def upscale(w: Work) -> Iterator[Launch]:
    flags = w.params["flags"]
    values = {
        "mode": _ANTIALIAS if flags & ScaleFlag.ANTIALIAS else int(w.params["mode"]),
        "aligned": bool(flags & ScaleFlag.ALIGN_CORNERS),
    }
    yield Launch(UPSCALE, UPSCALE_ARGS, over_elements(w["y"], THREADS), THREADS, values=values)


STEPS = Form("resize.cu", "timestep_embedding")
STEP_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("log_period", "f8")], align=True)


@kernel("timestep_embedding", ("f32",), forms=[STEPS])
def timestep_embedding(w: Work) -> Iterator[Launch]:
    values = {"log_period": math.log(w.params["max_period"])}
    yield Launch(STEPS, STEP_ARGS, over_elements(w["y"], THREADS), THREADS, values=values)
