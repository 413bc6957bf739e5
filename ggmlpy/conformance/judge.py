"""How a result is judged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.conformance.case import Case

_EXACT_ZEROS = ("flash_attn_ext", "soft_max_ext", "soft_max")  # what is masked is exactly 0


def nmse(got: NDArray[Any], want: NDArray[Any]) -> float:
    """The squared error over the squared size of `want`, summed over all elements."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    error = float(np.sum((got - want) ** 2))
    size = float(np.sum(want**2))
    if error == 0:
        return 0.0
    return error / size if size > 0 else math.inf


def compare(case: Case, got: NDArray[Any], want: NDArray[Any]) -> str:
    """What is wrong with `got`: empty if it is as good as `want`.

    Integers must be equal. Inf and NaN must lie in the same places, with the same signs; what a
    mask cuts off must be exactly 0; the rest is judged by NMSE.
    """
    if got.shape != want.shape:
        return f"the shape is {got.shape}, it must be {want.shape}"
    if not np.issubdtype(want.dtype, np.floating):
        return _first_difference("integers", got, want, got != want)
    for what, differ in (
        ("NaN", np.isnan(got) != np.isnan(want)),
        ("inf", (np.isinf(got) | np.isinf(want)) & (got != want)),
        ("0", (want == 0) & (got != 0) if case.op in _EXACT_ZEROS else np.zeros(1, np.bool_)),
    ):
        wrong = _first_difference(what, got, want, differ)
        if wrong:
            return wrong
    finite = np.isfinite(want)
    error = nmse(got[finite], want[finite])
    return "" if error <= case.max_nmse else _worst(error, case, got, want)


def _first_difference(
    what: str, got: NDArray[Any], want: NDArray[Any], differ: NDArray[np.bool_]
) -> str:
    if not differ.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(differ)[0])
    count = int(differ.sum())
    return f"{count} places differ in {what}, the first at {place}: {got[place]}, not {want[place]}"


def _worst(error: float, case: Case, got: NDArray[Any], want: NDArray[Any]) -> str:
    distance = np.abs(np.nan_to_num(got - want, nan=0.0, posinf=0.0, neginf=0.0))
    place = tuple(int(i) for i in np.unravel_index(int(distance.argmax()), distance.shape))
    return (
        f"NMSE is {error:.3g}, it may be {case.max_nmse:.3g}; "
        f"worst at {place}: {got[place]}, not {want[place]}"
    )


def judge(node, got, expected):
    want, rows = expected
    if rows is not None:
        got, want = got[rows], want[rows]
    return compare(
        Case(
            node.op.name,
            ne=[s.ne for s in node.src],
            types=[s.type.name for s in node.src] or ["f32"],
            max_nmse=1e-2,
        ),
        got,
        want,
    )
