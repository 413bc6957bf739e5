"""Gradients, the loss, and steps of optimisers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.args import SPAN, TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.elementwise import THREADS, as_rows, over_pieces
from ggmlpy.backends.cuda.kernels.reduce_rows import launch_rows
from ggmlpy.backends.cuda.shapes import rows_ok
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step
from ggmlpy.ops.training import Updated


def _form(name: str) -> Form:
    return Form("training.cu", name)


def _args(*names: str, **numbers: str) -> np.dtype[Any]:
    return np.dtype([*((name, TENSOR) for name in names), *numbers.items()], align=True)


def _of_pieces(w: Work, form: Form, args: np.dtype[Any], *names: str, **numbers: Any) -> Launch:
    """A thread for each piece of the tensors of these names, which have one shape."""
    tensors = as_rows(**{name: w[name] for name in names})
    values = {**tensors, **numbers}
    return Launch(form, args, over_pieces(tensors["y"]), THREADS, values=values)


def _rows(step: Step) -> bool:
    return all(rows_ok(x) for x in step.tensors)


# --- gradients ------------------------------------------------------------------------------------

SILU_BACK = _form("silu_back")
SILU_ARGS = _args("y", "grad", "x")


@kernel("silu_back", ("f32", "f32"), forms=[SILU_BACK], requires=_rows)
def silu_back(w: Work) -> Iterator[Launch]:
    yield _of_pieces(w, SILU_BACK, SILU_ARGS, "y", "grad", "x")


def _of_rows(op: str, n_operands: int, args: np.dtype[Any]) -> None:
    """A kernel whose teams have a row of y each."""
    form = _form(op)

    @kernel(op, ("f32",) * n_operands, forms=[form], requires=_rows)
    def launch(w: Work) -> Iterator[Launch]:
        yield launch_rows(form, args, w["y"].ne[0], w["y"].spec.n_rows)


_of_rows("rms_norm_back", 2, _args("y", "grad", "x", eps="f4", rows_per_block="i4"))
_of_rows("soft_max_back", 2, _args("y", "grad", "weights", scale="f4", rows_per_block="i4"))
_of_rows("cross_entropy_loss_back", 3, _args("y", "grad", "logits", "labels", rows_per_block="i4"))

# --- the loss -------------------------------------------------------------------------------------

LOSS_ROWS, LOSS = _form("cross_entropy_rows"), _form("cross_entropy_loss")
LOSS_ROW_ARGS = np.dtype(
    [("logits", TENSOR), ("labels", TENSOR), ("sums", SPAN), ("rows_per_block", "i4")], align=True
)
LOSS_ARGS = np.dtype([("y", TENSOR), ("logits", TENSOR), ("sums", SPAN)], align=True)


@kernel("cross_entropy_loss", ("f32", "f32"), forms=[LOSS_ROWS, LOSS], requires=_rows)
def cross_entropy_loss(w: Work) -> Iterator[Launch]:
    """The sum of each row, then their mean."""
    logits = w["logits"]
    values = {"sums": w.scratch(4 * int(logits.spec.n_rows))}
    yield launch_rows(LOSS_ROWS, LOSS_ROW_ARGS, logits.ne[0], logits.spec.n_rows, values)
    yield Launch(LOSS, LOSS_ARGS, (1, 1, 1), THREADS, values=values)


# --- optimisers -----------------------------------------------------------------------------------

MOMENT, WEIGHT, SGD = _form("adamw_moment"), _form("adamw_weight"), _form("sgd")
MOMENT_ARGS = _args("y", "x", "grad", "params", i_beta="i4", squares="i4")
WEIGHT_ARGS = _args("y", "w", "m", "v", "params")
SGD_ARGS = _args("y", "w", "grad", "params")


@kernel("opt_step_adamw", ("f32",) * 3, forms=[MOMENT])
def adamw_moment(w: Work) -> Iterator[Launch]:
    squares = w.params["updated"] is Updated.SQUARE
    numbers = {"i_beta": 2 if squares else 1, "squares": squares}
    yield _of_pieces(w, MOMENT, MOMENT_ARGS, "y", "x", "grad", **numbers)


@kernel("opt_step_adamw", ("f32",) * 4, forms=[WEIGHT])
def adamw_weight(w: Work) -> Iterator[Launch]:
    yield _of_pieces(w, WEIGHT, WEIGHT_ARGS, "y", "w", "m", "v")


@kernel("opt_step_sgd", ("f32",) * 3, forms=[SGD])
def sgd(w: Work) -> Iterator[Launch]:
    yield _of_pieces(w, SGD, SGD_ARGS, "y", "w", "grad")
