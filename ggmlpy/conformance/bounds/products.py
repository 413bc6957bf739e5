"""Products with weights, of activations that the backend rounds as it declares.

The oracle rounds them in the same way, so what is left is the error of the sum. Where an activation
lies on the border between two roundings either is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ggmlpy.backends.rounding import Rounding
from ggmlpy.conformance.bounds.expected import F64, Array, Magnitude, of_sum, wide
from ggmlpy.graph.op import Op
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.types import BF16

_BLOCK = 32
_NEAR_TIE = (
    1e-4  # of a step: 127 / max|x| and x times it are rounded, each by less than 1e-5 of one
)
_LEAST = 2.0**-119  # of max|x|: below it steps are denormal, and a block counts as zeros


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
        return Activations(wide(to_float(from_float(x, BF16), BF16)))
    if rounding in (Rounding.INT8X32, Rounding.Q8_0):
        return _in_steps(x, rounding is Rounding.Q8_0)
    return Activations(wide(x))


def _in_steps(x: Array, is_half: bool) -> Activations:
    """Blocks of 32 as whole numbers from -127 to 127 times a step."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, _BLOCK)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    is_zero = largest < _LEAST
    with np.errstate(all="ignore"):
        d = np.where(is_zero, np.float32(0), largest / np.float32(127))
        inverse = np.where(is_zero, np.float32(0), np.float32(127) / largest)
        position = wide(blocks) * wide(inverse)
        q = np.rint(position)
    step = wide(d.astype(np.float16) if is_half else d)
    values = np.where(np.isfinite(largest), q * step, np.nan)
    near = np.abs(np.abs(position - np.floor(position)) - 0.5) < _NEAR_TIE
    slack = (near * step).reshape(x.shape) if near.any() else None
    return Activations(values.reshape(x.shape), slack)


def product(op: Op, sources: Sequence[Array], rounding: Rounding) -> Magnitude:
    """mul_mat and mul_mat_id: weights, x, and ids of the latter."""
    weights, x, *ids = sources
    n = weights.shape[3]
    seen = rounded_activations(x, rounding)
    values = wide(op.reference(weights, seen.values, *ids))
    largest = _largest_of_blocks(weights)
    size = of_sum(wide(op.reference(largest, np.abs(seen.values), *ids)), values, n)
    if seen.slack is not None:
        size = size + wide(op.reference(np.abs(weights), seen.slack, *ids)) * 2.0**24
    return Magnitude(values, size)


def _largest_of_blocks(weights: Array) -> Array:
    """For each weight the largest magnitude among its 32 neighbours.

    A quantised weight is a difference of a scaled code and an offset, whose parts a product may sum
    apart: the neighbours tell how large these are.
    """
    n = weights.shape[3]
    if n % _BLOCK:
        return np.abs(weights)
    blocks = np.abs(weights).reshape(*weights.shape[:3], -1, _BLOCK)
    return np.broadcast_to(blocks.max(axis=-1, keepdims=True), blocks.shape).reshape(weights.shape)
