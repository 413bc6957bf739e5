"""Products with weights, of activations that the backend rounds as it declares.

The oracle rounds them in the same way, so what is left is the error of the sum. Where an activation
lies on the border between two roundings either is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ggmlpy.backends.rounding import Rounding
from ggmlpy.conformance.bounds.expected import EPS, F64, Array, Magnitude, of_sum, wide
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import BF16

_BLOCK = 32
_LEAST = 2.0**-119  # of max|x|: below it steps are denormal, and a block counts as zeros
# Backends compute x * (127 / max|x|) or x * (1 / (max|x| / 127)), with an error of 3 units at most;
# one more for reciprocals that are not rounded correctly.
_POSITION_UNITS = 4

# Types whose weights are a scaled code and an offset, which a product may sum apart.
_WITH_OFFSET = frozenset({
    "q4_0", "q4_1", "q5_0", "q5_1", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "tq1_0", "tq2_0",
    "iq1_s", "iq1_m", "q1_0", "q2_0",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Activations:
    """x as a product sees it, and for each element what another right rounding may add."""

    values: F64
    slack: F64 | None = None


def rounded_activations(x: Array, rounding: Rounding) -> Activations:
    """x rounded as a backend declares."""
    if rounding is Rounding.F16:
        return Activations(wide(x.astype(np.float16)))
    if rounding is Rounding.BF16:
        return Activations(wide(_as_bf16(x)))
    if rounding is Rounding.BF16X2:
        first = _as_bf16(x)
        rest = np.where(np.isinf(first), np.float32(0), x - first)
        return Activations(wide(first) + wide(_as_bf16(rest)))
    if rounding in (Rounding.INT8X32, Rounding.Q8_0):
        return _in_steps(x, rounding is Rounding.Q8_0)
    return Activations(wide(x))


def _as_bf16(x: Array) -> Array:
    return to_float(from_float(x, BF16), BF16)


def _in_steps(x: Array, is_half: bool) -> Activations:
    """Blocks of 32 as whole numbers from -127 to 127 times a step."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, _BLOCK)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    is_zero = largest < _LEAST
    with np.errstate(all="ignore"):
        d = np.where(is_zero, np.float32(0), largest / np.float32(127))
        position = np.where(is_zero, 0, wide(blocks) * (127 / wide(largest)))
        q = np.rint(position)
    step = wide(d.astype(np.float16) if is_half else d)
    values = np.where(np.isfinite(largest), q * step, np.nan)
    to_tie = np.abs(np.abs(position - np.floor(position)) - 0.5)
    near = to_tie <= _POSITION_UNITS * EPS * np.abs(position)
    slack = (near * step).reshape(x.shape) if near.any() else None
    return Activations(values.reshape(x.shape), slack)


def product(node: Tensor, sources: Sequence[Array], rounding: Rounding) -> Magnitude:
    """mul_mat and mul_mat_id: weights, x, and ids of the latter."""
    op = node.op
    assert op is not None
    weights, x, *ids = sources
    seen = rounded_activations(x, rounding)
    values = wide(op.reference(weights, seen.values, *ids))
    has_offset = node.src[0].type.name in _WITH_OFFSET
    parts = _largest_of_blocks(weights) if has_offset else np.abs(weights)
    sums = wide(op.reference(parts, np.abs(seen.values), *ids))
    size = of_sum(sums, values, weights.shape[3])
    if seen.slack is not None:
        size = size + wide(op.reference(np.abs(weights), seen.slack, *ids)) / EPS
    return Magnitude(values, size)


def _largest_of_blocks(weights: Array) -> Array:
    """For each weight the largest magnitude among its 32 neighbours.

    The neighbours tell how large the scaled codes and the offset are that the weight is made of.
    """
    blocks = np.abs(weights).reshape(*weights.shape[:3], -1, _BLOCK)
    return np.broadcast_to(blocks.max(axis=-1, keepdims=True), blocks.shape).reshape(weights.shape)
