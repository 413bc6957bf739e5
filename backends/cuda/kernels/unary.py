"""Functions of one tensor, element by element."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.elementwise import FLOATS, THREADS, as_rows, over_pieces
from ggmlpy.backends.cuda.source import Form

UNARY = Form("unary.cu", "unary")
ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "x")),
        *((name, "i4") for name in ("function", "type")),
        *((f"p{i}", "f4") for i in range(4)),
    ],
    align=True,
)

# The functions in the order of unary.cu, by op, and the parameters of those that have some.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sqr", "sqrt", "log", "sin", "cos", "abs", "sgn", "neg", "step", "tanh"), ()),
    **dict.fromkeys(("elu", "relu", "sigmoid", "gelu", "gelu_quick", "gelu_erf", "silu"), ()),
    **dict.fromkeys(("hardswish", "hardsigmoid", "exp", "expm1", "softplus"), ()),
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), ()),
    "scale": ("s", "b"),
    "clamp": ("min", "max"),
    "leaky_relu": ("negative_slope",),
    "xielu": ("alpha_n", "alpha_p", "beta", "eps"),
}


def _unary(op: str, function: int, type: str) -> None:
    @kernel(op, (type,), forms=[UNARY])
    def launch(w: Work) -> Iterator[Launch]:
        tensors = as_rows(y=w["y"], x=w["x"])
        values = {
            **tensors,
            "function": function,
            "type": w["y"].type.id,
            **{f"p{i}": 0.0 for i in range(4)},
            **{f"p{i}": w.params[name] for i, name in enumerate(FUNCTIONS[op])},
        }
        yield Launch(UNARY, ARGS, over_pieces(tensors["y"]), THREADS, values=values)


for _i, _op in enumerate(FUNCTIONS):
    for _type in FLOATS:
        _unary(_op, _i, _type)
