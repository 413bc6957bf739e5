"""Results of quantised types: each element is as near to its value as the quantiser brings it.

Backends may round in another way what lies on a border: a scale between two numbers of its type, an
element between two codes. So an element may be as far from its value as ggml's quantiser takes it
from there, or takes values that differ by what f32 arithmetic loses.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.conformance.bounds.expected import F64
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.types import IQ4_NL, TensorType

_LOST = 2.0**-21  # of the largest element: quotients and differences of f32, 8 units


def quantised_error(values: F64, type: TensorType) -> F64:
    """The largest error of each element, from that of the quantiser."""
    blocks = values.reshape(-1, type.block_size)
    with np.errstate(all="ignore"):
        error = np.max([np.abs(_stored(x, type) - blocks) for x in _neighbours(blocks)], axis=0)
        largest = np.abs(blocks).max(axis=1, keepdims=True)
    if type is IQ4_NL:  # a search for the scale with the least error may find another one
        error = np.maximum(error, 3 * np.sqrt((error * error).mean(axis=1, keepdims=True)))
    found: F64 = (error + _LOST * largest).reshape(values.shape)
    return found


def _stored(blocks: F64, type: TensorType) -> F64:
    """What the quantiser makes of blocks."""
    return to_float(from_float(blocks.astype(np.float32), type), type).astype(np.float64)


def _neighbours(blocks: F64) -> Iterator[F64]:
    """Blocks, and those that differ by so little that a right quantiser may take one for another.

    All elements are a little larger or smaller, which moves scales over borders; then all but the
    extreme ones, which scales depend on, are shifted, which moves codes over borders.
    """
    yield from (blocks, (1 + _LOST) * blocks, (1 - _LOST) * blocks)
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    step = _LOST * np.maximum(np.abs(low), np.abs(high))
    extreme = (blocks == low) | (blocks == high)
    for shift in (-step, step):
        yield np.where(extreme, blocks, np.clip(blocks + shift, low, high))
