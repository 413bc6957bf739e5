"""Between stored bytes and float32, in numpy: the meaning of every type, used as the oracle.

The block formats themselves come from the `gguf` package. Arrays are in numpy order, rows last.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import Unsupported
from ggmlpy.types import BF16, TensorType

Bytes = NDArray[np.uint8]


def to_float(raw: Bytes, type: TensorType) -> NDArray[np.float32]:
    """Rows of stored bytes `[..., row_bytes]` as f32 `[..., n]`.

    Raises Unsupported for a quantised type whose layout the `gguf` package does not know.
    """
    if type.dtype is not None:
        return np.ascontiguousarray(raw).view(type.dtype).astype(np.float32, copy=False)
    if type is BF16:
        wide = np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32)
    try:
        floats = gguf.quants.dequantize(
            np.ascontiguousarray(raw), gguf.GGMLQuantizationType(type.id)
        )
    except NotImplementedError as error:
        raise Unsupported(f"{type.name} cannot be read as floats: {error}") from error
    return np.asarray(floats, dtype=np.float32)


def from_float(values: NDArray[Any], type: TensorType) -> Bytes:
    """f32 rows `[..., n]` as stored bytes `[..., row_bytes]`.

    Raises Unsupported for a type that has no quantiser (the iq1, iq2, iq3 families),
    ShapeError unless a row is whole blocks.
    """
    type.row_bytes(values.shape[-1])
    if type.dtype is not None:
        return np.ascontiguousarray(values.astype(type.dtype)).view(np.uint8)
    floats = np.ascontiguousarray(values, dtype=np.float32)
    if type is BF16:
        return _to_bf16(floats).view(np.uint8)
    try:
        packed = gguf.quants.quantize(floats, gguf.GGMLQuantizationType(type.id))
    except NotImplementedError as error:
        raise Unsupported(f"{type.name} cannot be written from floats: {error}") from error
    return np.asarray(packed, dtype=np.uint8)


def _to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest even; a NaN stays a NaN (its top bits might round to infinity)."""
    bits = values.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    quiet = ((bits >> 16) | 64).astype(np.uint16)
    return np.where(np.isnan(values), quiet, rounded)


@cache
def has_quantizer(type: TensorType) -> bool:
    """Whether `from_float` can write this type."""
    if type.dtype is not None or type is BF16:
        return True
    try:
        from_float(np.zeros((1, type.block_size), np.float32), type)
    except Unsupported:
        return False
    return True
