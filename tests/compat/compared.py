"""Results compared with recorded ones: names and types, and values where these are decided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

ANY_VALUE = {"id", "created", "model"}  # differ from run to run, or with the folder
ABSOLUTE, RELATIVE = 0.08, 0.01
"""Of log-probabilities and embeddings: activations of 8 bits, rounded by other kernels.

Both engines are as far from exact products: 0.02 in the root mean square of log-probabilities.
"""

_MANY = 16


def plain(value: Any) -> Any:
    """A value as JSON has it: numbers of seven digits; of many numbers their count and the first.

    numpy's scalars, which some of llama-cpp-python's results have, are Python's.
    """
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > _MANY and all(isinstance(each, float) for each in value):
            return {"n": len(value), "first": plain(value[:8])}
        return [plain(each) for each in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.7g}")
    return int(value) if isinstance(value, np.integer) else value


def differences(found: Any, expected: Any, shape: bool, at: str = "") -> list[str]:
    """Where two results differ: in names and types, and unless only the `shape` counts in values.

    Where only the shape counts and two lists have other lengths, their first elements are compared.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = [f"{at}: has {sorted(found)}, not {sorted(expected)}"]
        lines *= found.keys() != expected.keys()
        for key in expected.keys() & found.keys():
            loose = shape or key in ANY_VALUE
            lines += differences(found[key], expected[key], loose, f"{at}.{key}")
        return lines
    if isinstance(expected, list) and isinstance(found, list):
        pairs = list(zip(found, expected, strict=False))
        lines = [f"{at}: has {len(found)} elements, not {len(expected)}"]
        lines *= not pairs and found != expected if shape else len(found) != len(expected)
        for i, pair in enumerate(pairs[:1] if shape and len(found) != len(expected) else pairs):
            lines += differences(*pair, shape, f"{at}[{i}]")
        return lines
    if type(found) is not type(expected):
        return [f"{at}: is a {type(found).__name__}, not a {type(expected).__name__}"]
    if shape:
        return []
    if isinstance(expected, float):
        same = math.isclose(found, expected, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    else:
        same = found == expected
    return [] if same else [f"{at}: is {found!r}, not {expected!r}"]
