"""What is wrong with a result."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ggmlpy.conformance.bounds.expected import Array, Expected
from ggmlpy.graph.tensor import Tensor

_EXACT_ZEROS = ("flash_attn_ext", "soft_max")  # what is masked is exactly 0


def judge(node: Tensor, got: Array, expected: Expected) -> str:
    """What is wrong with `got`, in one line; empty if nothing is.

    Inf and NaN must lie in the same places, with the same signs; what a mask cuts off must be 0;
    every other element must be within its error.
    """
    want = expected.values
    if got.shape != want.shape:
        return f"the shape is {got.shape}, it must be {want.shape}"
    written = np.ones(want.shape, np.bool_)
    if expected.rows is not None:
        written &= expected.rows[..., None]
    wrong = _wrong(node, got, expected) & written
    if not wrong.any():
        return ""
    return _worst(node, got, expected, wrong)


def _wrong(node: Tensor, got: Array, expected: Expected) -> NDArray[np.bool_]:
    """Which elements are not right."""
    want = expected.values
    if want.dtype.kind != "f":
        return np.asarray(got != want)
    if expected.exact:
        return np.asarray((got != want) & ~(np.isnan(got) & np.isnan(want)))
    assert node.op is not None
    with np.errstate(all="ignore"):
        want = _as_stored(want, node)
        far = ~(np.abs(got.astype(np.float64) - expected.values) <= expected.error)
    special = ~np.isfinite(want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    wrong: NDArray[np.bool_] = np.where(special, ~same, far)
    if node.op.name in _EXACT_ZEROS:
        wrong |= (expected.values == 0) & (got != 0)
    return wrong


def _as_stored(want: Array, node: Tensor) -> Array:
    """Values beyond the largest number of a type are infinite in it."""
    if node.type.name == "f16":
        return want.astype(np.float16)
    if node.type.is_float:
        return want.astype(np.float32)
    return want


def _worst(node: Tensor, got: Array, expected: Expected, wrong: NDArray[np.bool_]) -> str:
    """The wrong element that is farthest out, and how many are wrong."""
    want = expected.values.astype(np.float64)
    with np.errstate(all="ignore"):
        distance = np.abs(got.astype(np.float64) - want)
        beyond = np.where(np.isfinite(distance), distance / (expected.error + 1e-300), np.inf)
    at = np.unravel_index(int(np.argmax(np.where(wrong, beyond, -1))), wrong.shape)
    place = [int(i) for i in at[::-1]]
    value, right = got[at], want[at]
    text = f"{int(wrong.sum())} of {wrong.size} elements are wrong, the worst at ne {place}: "
    if got.dtype.kind != "f":
        return f"{text}{value}, not {int(right)}"
    text += f"{value:.9g}, not {right:.9g}"
    if not (np.isfinite(value) and np.isfinite(right)):
        return text
    units = distance[at] / np.spacing(np.abs(np.asarray(right).astype(_stored_type(node))))
    return f"{text} (off by {distance[at]:.3g}, {units:.0f} ULP; {expected.error[at]:.3g} is right)"


def _stored_type(node: Tensor) -> type[np.floating]:
    return np.float16 if node.type.name == "f16" else np.float32


def nmse(got: Array, want: Array) -> float:
    """The squared error over the squared size of `want`, summed over all elements: how engines
    that round in different ways are compared."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    error = float(np.sum((got - want) ** 2))
    size = float(np.sum(want**2))
    if error == 0:
        return 0.0
    return error / size if size > 0 else float("inf")
