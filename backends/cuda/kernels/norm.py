"""Normalisation of rows and groups, and the steps that are fused with it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.reduce_rows import launch_rows
from ggmlpy.backends.cuda.shapes import rows_ok
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step
from ggmlpy.graph.count import has_counts

ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("x", TENSOR),
        ("weight", TENSOR),
        ("b", TENSOR),
        ("eps", "f4"),
        ("rows_per_block", "i4"),
    ],
    align=True,
)
GROUP_ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), ("n_groups", "i4"), ("eps", "f4"), ("rows_per_block", "i4")],
    align=True,
)
RESIDUAL_ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("sum", TENSOR),
        ("a", TENSOR),
        ("b", TENSOR),
        ("inner", TENSOR),
        ("weight", TENSOR),
        ("inner_eps", "f4"),
        ("eps", "f4"),
        ("rows_per_block", "i4"),
    ],
    align=True,
)
GROUP_NORM = Form("norm.cu", "group_norm")
RESIDUAL, RESIDUAL_OF_NORM = (Form("norm.cu", f"residual{of}") for of in ("", "_of_norm"))


def _rows(step: Step) -> bool:
    return all(rows_ok(tensor) for tensor in step.tensors)


def _declare(op: str, n_operands: int, form: Form) -> None:
    @kernel(op, ("f32",) * n_operands, forms=[form], requires=_rows)
    def launch(w: Work) -> Iterator[Launch]:
        x = w["x"]
        yield launch_rows(form, ARGS, x.ne[0], x.spec.n_rows)


for _name, _kernel in (("rms_norm", "rms_norm"), ("norm", "layer_norm")):
    _form = Form("norm.cu", _kernel)
    _declare(_name, 1, _form)
    _declare(f"{_name}+mul", 2, _form)
    _declare(f"{_name}+mul+add", 3, _form)
_declare("l2_norm", 1, Form("norm.cu", "l2_norm"))


def _planes(step: Step) -> bool:
    """Groups are contiguous: strides are those of bounds."""
    return not has_counts(step.operands["x"].ne[:2])


@kernel("group_norm", ("f32",), forms=[GROUP_NORM], requires=_planes)
def group_norm(w: Work) -> Iterator[Launch]:
    width, height, n_channels, n_images = w["x"].ne
    n_groups = w.params["n_groups"]
    per_group = -(-int(n_channels) // n_groups)
    n = int(width) * int(height) * per_group
    yield launch_rows(GROUP_NORM, GROUP_ARGS, n, n_groups * int(n_images))


@kernel("add+rms_norm+mul", ("f32",) * 3, forms=[RESIDUAL], requires=_rows)
def add_norm(w: Work) -> Iterator[Launch]:
    a = w["a"]
    plain = {"inner_eps": 0.0}
    yield launch_rows(RESIDUAL, RESIDUAL_ARGS, a.ne[0], a.spec.n_rows, plain)


@kernel("rms_norm+mul+add+rms_norm+mul", ("f32",) * 4, forms=[RESIDUAL_OF_NORM], requires=_rows)
def norm_add_norm(w: Work) -> Iterator[Launch]:
    a = w["a"]
    yield launch_rows(RESIDUAL_OF_NORM, RESIDUAL_ARGS, a.ne[0], a.spec.n_rows)
