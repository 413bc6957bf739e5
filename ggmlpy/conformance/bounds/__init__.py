"""What a right result of a node is: exact values, and for each element the error that it may have.

    expected = expect(node, sources, Rounding.F32)

Bounds follow from the op and its sources: a few units of rounding of what is summed. There is no
limit that a backend is compared by as a whole, so that one wrong element is found among millions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ggmlpy.backends.rounding import Rounding
from ggmlpy.conformance.bounds import attention, functions, recurrent, sums, training
from ggmlpy.conformance.bounds.exact import EXACT
from ggmlpy.conformance.bounds.expected import (
    Array,
    Expected,
    Magnitude,
    has_rule,
    rule_of,
    stored_error,
    wide,
)
from ggmlpy.conformance.bounds.products import product
from ggmlpy.conformance.bounds.quantised import quantised_error
from ggmlpy.graph.arrays import read_array, write_array
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Tensor

__all__ = ["Expected", "expect", "knows"]

assert all(
    (attention, functions, recurrent, sums, training)
)  # importing them is what declares the rules

PRODUCTS = ("mul_mat", "mul_mat_id")


def knows(name: str) -> bool:
    """Whether there is a bound for results of the op."""
    return name in EXACT or name in PRODUCTS or has_rule(name)


def expect(node: Tensor, sources: Sequence[Array], rounding: Rounding = Rounding.F32) -> Expected:
    """What a backend must give for a node that read these values, `[ne3, ne2, ne1, ne0]` each.

    `rounding` is that which the backend declares for the node. Raises IndexOutOfRange.
    """
    assert node.op is not None
    with np.errstate(all="ignore"):
        rows = node.op.written_rows(*sources)
        if node.op.name in EXACT:
            return _exact(node, sources, rows)
        if node.op.name in PRODUCTS:
            made = product(node, sources, rounding)
        elif node.op.name == "flash_attn_ext" and rounding is Rounding.F16:
            made = attention.half_attention(node.op, sources)
        else:
            made = rule_of(node)(node.op, sources)
        return Expected(made.values, _error(node, made), exact=False, rows=rows)


def _exact(node: Tensor, sources: Sequence[Array], rows: Array | None) -> Expected:
    """Values as they are stored; where they are quantised on the way, as near as that brings."""
    assert node.op is not None
    values = node.op.reference(*sources)
    if node.type.is_quantized and not _copies_blocks(node):
        return Expected(wide(values), quantised_error(wide(values), node.type), False, rows)
    spec = Spec(node.ne, node.type)
    if not node.type.is_quantized:
        data = np.zeros(spec.n_bytes, np.uint8)
        write_array(data, spec, 0, values)
        values = read_array(data, spec)
    return Expected(values, np.zeros(values.shape), True, rows)


def _copies_blocks(node: Tensor) -> bool:
    """Whether the node copies a quantised tensor to its own type."""
    return node.src[0].type is node.type


def _error(node: Tensor, made: Magnitude) -> Array:
    if node.type.is_quantized:
        return quantised_error(made.values, node.type)
    return stored_error(made.values, made.size, node.type)
