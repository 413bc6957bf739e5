"""Conversion of stored bytes to and from float32 in numpy: the oracle for every type.

Block formats come from the `gguf` package, except for what it lacks: q1_0, q2_0 and the quantiser
of iq4_nl. Arrays are in numpy order, rows last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import Unsupported
from ggmlpy.graph.types import BF16, IQ4_NL, Q1_0, Q2_0, TensorType

Bytes = NDArray[np.uint8]


def to_float(raw: Bytes, type: TensorType) -> NDArray[np.float32]:
    """Rows of stored bytes `[..., row_bytes]` as f32 `[..., n]`.

    Raises Unsupported for a quantised type that has no reader: those of activations.
    """
    if type.dtype is not None:
        return np.ascontiguousarray(raw).view(type.dtype).astype(np.float32, copy=False)
    if type is BF16:
        wide = np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32)
    if type in _READERS:
        blocks = np.ascontiguousarray(raw).reshape(-1, type.type_size)
        n = raw.shape[-1] // type.type_size * type.block_size
        return _READERS[type](blocks).reshape(*raw.shape[:-1], n)
    try:
        with np.errstate(all="ignore"):  # scales may be infinite or NaN
            floats = gguf.quants.dequantize(
                np.ascontiguousarray(raw), gguf.GGMLQuantizationType(type.id)
            )
    except NotImplementedError as error:
        raise Unsupported(f"{type.name} cannot be read as floats: {error}") from error
    return np.asarray(floats, dtype=np.float32)


def from_float(values: NDArray[Any], type: TensorType) -> Bytes:
    """f32 rows `[..., n]` as stored bytes `[..., row_bytes]`.

    For a quantised type, values must be finite. Raises Unsupported for a type without a quantiser
    (the iq1, iq2, iq3 families), ShapeError unless a row is whole blocks.
    """
    row_bytes = type.row_bytes(values.shape[-1])
    if type.dtype is not None:
        return np.ascontiguousarray(values.astype(type.dtype)).view(np.uint8)
    floats = np.ascontiguousarray(values, dtype=np.float32)
    if type is BF16:
        return _to_bf16(floats).view(np.uint8)
    if type in _WRITERS:
        blocks = floats.reshape(-1, type.block_size)
        return _WRITERS[type](blocks).reshape(*floats.shape[:-1], row_bytes)
    try:
        with np.errstate(all="ignore"):  # results for NaN and infinity are not defined
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


_IQ4_VALUES = np.array(gguf.quants.IQ4_NL.kvalues, np.float32)
_IQ4_MIDDLES = (_IQ4_VALUES[:-1] + _IQ4_VALUES[1:]) / 2  # from each of these on, the next code
_IQ4_LEAST = np.float32(1e-15)  # ggml treats blocks of smaller magnitudes as zeros


def _to_iq4_nl(x: NDArray[np.float32]) -> Bytes:
    """Blocks [n, 32] as d f16 | qs 16 x u8, low nibbles first: [n, 18].

    ggml's algorithm without an importance matrix: codes for the scale that maps the x of largest
    magnitude, of equals the first, to -127; then d = sum(w q x) / sum(w q^2) with w = x^2, which
    has the least weighted error for these codes. Sums run from the first element to the last.
    """
    farthest = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)
    is_zero = np.abs(farthest) < _IQ4_LEAST
    x = np.where(is_zero, np.float32(0), x)
    scale = 1 / (np.where(is_zero, np.float32(1), farthest) / _IQ4_VALUES[0])
    codes = np.searchsorted(_IQ4_MIDDLES, x * scale, side="right").astype(np.uint8)
    q, w = _IQ4_VALUES[codes], x * x
    size = np.where(is_zero[:, 0], np.float32(1), _sum_in_order(w * q * q))
    d = _sum_in_order(w * q * x) / size
    packed = np.empty((len(x), IQ4_NL.type_size), np.uint8)
    packed[:, :2] = d.astype(np.float16)[:, None].view(np.uint8)
    packed[:, 2:] = codes[:, :16] | codes[:, 16:] << 4
    return packed


def _sum_in_order(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sum of each row of [n, k], [n], from first element to last and rounded at every step."""
    return np.add.accumulate(x, axis=1, dtype=np.float32)[:, -1]


def _read_q1_0(blocks: Bytes) -> NDArray[np.float32]:
    """Blocks d f16 | qs 16 x u8 [n, 18] as [n, 128]: d where bit i of qs is set, else -d."""
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return np.where(bits, d, -d)


def _to_q1_0(x: NDArray[np.float32]) -> Bytes:
    """Blocks [n, 128] as [n, 18]: d is the mean magnitude, a bit tells x >= 0."""
    with np.errstate(over="ignore"):  # d may be infinite as f16
        d = (_sum_in_order(np.abs(x)) / np.float32(128)).astype(np.float16)
    bits = np.packbits(x >= 0, axis=1, bitorder="little")
    return np.concatenate([d[:, None].view(np.uint8), bits], axis=1)


_PAIRS = np.array([0, 2, 4, 6], np.uint8)  # where the codes of q2_0 lie in a byte


def _read_q2_0(blocks: Bytes) -> NDArray[np.float32]:
    """Blocks d f16 | qs 16 x u8 [n, 18] as [n, 64]: d * (q - 1), q[i] is pair i of bits of qs."""
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    codes = (blocks[:, 2:, None] >> _PAIRS & 3).reshape(len(blocks), Q2_0.block_size)
    with np.errstate(invalid="ignore"):  # d may be infinite
        return (codes.astype(np.float32) - 1) * d


def _to_q2_0(x: NDArray[np.float32]) -> Bytes:
    """Blocks [n, 64] as [n, 18]: d is the largest magnitude, so codes are 0, 1 and 2 alone."""
    d = np.abs(x).max(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        ratios = x * np.where(d > 0, 1 / d, np.float32(0))
        scales = d.astype(np.float16)
    # Halves are rounded away from zero. Ratios that a denormal d makes infinite or NaN become code
    # 0, as ggml's conversion to integers does on x86; such a d is 0 as f16.
    codes = np.where(ratios >= 0.5, 2, np.where(ratios > -0.5, 1, 0))
    codes = np.where(np.isfinite(ratios), codes, 0).astype(np.uint8)
    packed = (codes.reshape(len(x), 16, 4) << _PAIRS).sum(axis=2, dtype=np.uint8)
    return np.concatenate([scales.view(np.uint8), packed], axis=1)


_READERS: dict[TensorType, Callable[[Bytes], NDArray[np.float32]]] = {
    Q1_0: _read_q1_0,
    Q2_0: _read_q2_0,
}
_WRITERS: dict[TensorType, Callable[[NDArray[np.float32]], Bytes]] = {
    IQ4_NL: _to_iq4_nl,
    Q1_0: _to_q1_0,
    Q2_0: _to_q2_0,
}


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
