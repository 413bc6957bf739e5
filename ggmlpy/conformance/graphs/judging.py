"""A node of a random graph is judged as one of a case is, where its values can be judged at all.

Values grow from node to node, so sources come that no case has: of those for which f32 and exact
numbers rightly part, nothing is said of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.rounding import Rounding
from ggmlpy.conformance.bounds import expect, knows
from ggmlpy.conformance.bounds.exact import EXACT
from ggmlpy.conformance.judge import judge
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.tensor import Tensor

_LARGEST_QUANTISED = 65504.0  # a block's scale is f16
_LARGE = 1e15  # beyond it sums of squares and products overflow in f32, and not in the reference

counted = {"judged": 0, "wild": 0}  # nodes that were judged, and those that cannot be

Array = NDArray[Any]


def judge_node(node: Tensor, sources: Sequence[Array], got: Array, rounding: Rounding) -> str:
    """Empty, or what is wrong with a node's result. Arrays are as read_array gives them."""
    assert node.op is not None
    with np.errstate(all="ignore"):  # infinite and NaN are valid
        if _is_wild(node, sources) or not knows(node.op.name):
            counted["wild"] += 1
            return ""
        counted["judged"] += 1
        try:
            wrong = judge(node, got, expect(node, sources, rounding))
        except GgmlpyError as error:
            return f"{node.op.name}: the reference refuses what the backend has run: {error}"
    return f"{node.op.name} is wrong: {node}: {wrong}" if wrong else ""


def _is_wild(node: Tensor, sources: Sequence[Array]) -> bool:
    """Whether f32 and the reference's f64 may rightly part: in sums of what is not finite, or huge.

    A mask's -inf is none of that. What a quantised block holds of such a number is not defined.
    """
    assert node.op is not None
    op = node.op.name
    floats = [x for x in sources if x.dtype.kind == "f"]
    if node.type.is_quantized:
        return any(bool((~(np.abs(x) <= _LARGEST_QUANTISED)).any()) for x in floats[:1])
    if op in EXACT:
        return False
    read = floats[:1] if "max" in op else floats[:3]
    return any(bool((~(np.abs(x) <= _LARGE)).any()) for x in read)
