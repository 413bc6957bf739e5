"""Tensors made, padded, shifted and cut; windows and positions of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.elementwise import THREADS, over_pieces
from ggmlpy.backends.cuda.source import Form
from ggmlpy.ops.triangular import TriType

Values = Callable[[Work], dict[str, Any]]


def _shape(
    op: str,
    types: tuple[str, ...],
    fields: list[Any],
    values: Values = lambda w: {},
    name: str | None = None,
) -> None:
    """A kernel whose threads make the pieces of y; `fields` are those after y."""
    form = Form("shape.cu", name or op)
    args = np.dtype([("y", TENSOR), *fields], align=True)

    @kernel(op, types, forms=[form])
    def launch(w: Work) -> Iterator[Launch]:
        yield Launch(form, args, over_pieces(w["y"]), THREADS, values=values(w))


def _type(w: Work) -> dict[str, Any]:
    return {"type": w["y"].type.id}


def _four(name: str) -> Values:
    """The parameters name0 to name3 as one field."""

    def values(w: Work) -> dict[str, Any]:
        return {_FIELDS[name]: [w.params[f"{name}{i}"] for i in range(4)]}

    return values


_FIELDS = {"lp": "before", "shift": "shift"}
_X = ("x", TENSOR)

# --- made -----------------------------------------------------------------------------------------

for _name in ("f32", "f16"):
    _shape("fill", (_name,), [("type", "i4"), ("c", "f4")], _type)
_shape("arange", (), [("start", "f8"), ("step", "f8")])

# --- padded and shifted ---------------------------------------------------------------------------

_shape("pad", ("f32",), [_X, ("before", "i8", (4,)), ("circular", "i4")], _four("lp"))
_shape("pad_reflect_1d", ("f32",), [_X, ("p0", "i4")])
_shape("roll", ("f32",), [_X, ("shift", "i8", (4,))], _four("shift"))

# --- parts of matrices ----------------------------------------------------------------------------

_TRIANGLE = [_X, ("shift", "i8"), ("upper", "i4"), ("other", "f4")]


def _part(w: Work) -> dict[str, Any]:
    """What tri keeps: columns from the diagonal or the one after it on, or those before."""
    kind = w.params["type"]
    return {
        "upper": kind in (TriType.UPPER_DIAG, TriType.UPPER),
        "shift": int(kind in (TriType.UPPER, TriType.LOWER_DIAG)),
        "other": 0.0,
    }


def _below(other: float) -> Values:
    """Columns up to that of the query are kept."""

    def values(w: Work) -> dict[str, Any]:
        return {"upper": 0, "shift": w.params["n_past"] + 1, "other": other}

    return values


_shape("diag", ("f32",), [_X])
_shape("tri", ("f32",), _TRIANGLE, _part, "triangle")
_shape("diag_mask_inf", ("f32",), _TRIANGLE, _below(float("-inf")), "triangle")
_shape("diag_mask_zero", ("f32",), _TRIANGLE, _below(0.0), "triangle")

# --- windows and positions of images --------------------------------------------------------------

_shape("win_part", ("f32",), [_X, ("w", "i4")])
_shape("win_unpart", ("f32",), [_X, ("w", "i4")])
for _name in ("f32", "f16"):
    _shape("get_rel_pos", (_name,), [_X, ("type", "i4")], _type)
_shape("add_rel_pos", ("f32", "f32", "f32"), [(name, TENSOR) for name in ("a", "pw", "ph")])
