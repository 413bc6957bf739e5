"""Gated linear units: act(gate) * up, of two tensors or of the halves of one's rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.elementwise import THREADS, as_rows, over_pieces
from ggmlpy.backends.cuda.shapes import rows_ok
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step

GLU = Form("glu.cu", "glu")
# The ops in the order of glu.cuh.
GLUS = ("reglu", "swiglu", "geglu", "geglu_erf", "geglu_quick", "swiglu_oai", "swiglu_clamp")
ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "a", "b")),
        *((name, "i4") for name in ("glu", "type", "swapped")),
        *((name, "f4") for name in ("alpha", "limit")),
    ],
    align=True,
)


def glu_values(step: Step) -> dict[str, Any]:
    """The fields glu, alpha and limit of a step whose node is a gated linear unit."""
    op = step.node.op
    assert op is not None
    params = op.params()
    return {
        "glu": GLUS.index(op.name),
        "alpha": params.get("alpha", 1.0),
        "limit": params.get("limit", float("inf")),
    }


def requires(step: Step) -> bool:
    return all(rows_ok(x) for x in step.tensors)


def _glu(op: str, types: tuple[str, ...]) -> None:
    @kernel(op, types, forms=[GLU], requires=requires)
    def launch(w: Work) -> Iterator[Launch]:
        values = {**glu_values(w.step), "type": w["y"].type.id, "y": w["y"]}
        if len(types) == 2:
            values |= as_rows(y=w["y"], a=w["a"], b=w["b"])
        yield Launch(GLU, ARGS, over_pieces(values["y"]), THREADS, values=values)


for _op in GLUS:
    for _type in ("f32", "f16"):
        _glu(_op, (_type,))
        _glu(_op, (_type, _type))
