"""Results of quantised types: each element is as near to its value as the quantiser brings it.

Backends may round a scale, or an element between two codes, in another way: an element must be no
farther from the exact value than in ggml's quantiser, up to what the scale's own rounding moves it.
"""

from __future__ import annotations

import numpy as np

from ggmlpy.conformance.bounds.expected import F64
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.types import IQ4_NL, TensorType

_SCALE_UNITS = 2.0**-11  # the unit of rounding of f16, in which scales are stored


def quantised_error(values: F64, type: TensorType) -> F64:
    """The largest error of each element, from that of the quantiser."""
    blocks = values.reshape(-1, type.block_size)
    with np.errstate(all="ignore"):
        stored = to_float(from_float(blocks.astype(np.float32), type), type).astype(np.float64)
    error = np.abs(stored - blocks)
    if type is IQ4_NL:  # a search for the scale with the least error may find another one
        error = np.maximum(error, 3 * np.sqrt((error * error).mean(axis=1, keepdims=True)))
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    error = error + 2 * _SCALE_UNITS * np.abs(blocks) + 2.0**-20 * largest
    found: F64 = error.reshape(values.shape)
    return found
