"""Tensor types: all types of the GGUF format.

A *block* is the unit in which a type is stored: `block_size` elements in `type_size` bytes. Plain
types have blocks of one element. Ids and sizes come from the `gguf` package, except for those of
ggml's newest types, which its oldest supported version lacks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import gguf
import numpy as np

from ggmlpy.errors import ShapeError

_NUMPY: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "f64": np.dtype(np.float64),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
}


@dataclass(frozen=True, slots=True, eq=False)
class TensorType:
    """One storage type. There is one object per type, so `is` compares them."""

    name: str  # ggml's spelling: "f32", "q4_0", "q4_K"
    id: int  # the number in a GGUF file
    block_size: int  # elements per block
    type_size: int  # bytes per block
    dtype: np.dtype | None  # numpy's type of an element; None for bf16 and quantised types

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], TensorType], tuple[str]]:
        return type_of, (self.name,)  # unpickles to the same object, so that `is` compares

    @property
    def is_quantized(self) -> bool:
        return self.block_size > 1

    @property
    def is_float(self) -> bool:
        """Plain floating point: f16, f32, f64, bf16."""
        return self.name in ("f32", "f16", "bf16", "f64")

    def row_bytes(self, n: int) -> int:
        """Bytes of `n` consecutive elements. Raises ShapeError unless they are whole blocks."""
        if n % self.block_size:
            raise ShapeError(
                f"{self.name} is stored in blocks of {self.block_size} elements, a row has {n}"
            )
        return n // self.block_size * self.type_size


def _ggml_name(gguf_name: str) -> str:
    """ggml writes q4_K but iq2_xxs: only a lone trailing K is a capital."""
    lower = gguf_name.lower()
    return lower[:-1] + "K" if lower.endswith("_k") else lower


def _tensor_type(gguf_type: gguf.GGMLQuantizationType) -> TensorType:
    block_size, type_size = gguf.GGML_QUANT_SIZES[gguf_type]
    dtype: np.dtype | None = _NUMPY.get(gguf_type.name.lower())
    return TensorType(_ggml_name(gguf_type.name), int(gguf_type), block_size, type_size, dtype)


_NEWEST = (
    TensorType("q1_0", 41, block_size=128, type_size=18, dtype=None),
    TensorType("q2_0", 42, block_size=64, type_size=18, dtype=None),
)
TYPES: dict[str, TensorType] = {t.name: t for t in map(_tensor_type, gguf.GGMLQuantizationType)}
TYPES |= {t.name: t for t in _NEWEST}
BY_ID: dict[int, TensorType] = {t.id: t for t in TYPES.values()}
_BY_LOWER_NAME = {name.lower(): t for name, t in TYPES.items()}

F32 = TYPES["f32"]
F16 = TYPES["f16"]
BF16 = TYPES["bf16"]
I32 = TYPES["i32"]
I64 = TYPES["i64"]
Q8_0 = TYPES["q8_0"]
Q4_0 = TYPES["q4_0"]
Q1_0 = TYPES["q1_0"]
Q2_0 = TYPES["q2_0"]
IQ4_NL = TYPES["iq4_nl"]
Q4_K = TYPES["q4_K"]
Q6_K = TYPES["q6_K"]

_BY_DTYPE = {t.dtype: t for t in TYPES.values() if t.dtype is not None}


def type_of(spec: str | TensorType | np.dtype) -> TensorType:
    """The type with this name, in any case, or of this dtype. Raises ShapeError if unknown."""
    if isinstance(spec, TensorType):
        return spec
    if isinstance(spec, np.dtype):
        found = _BY_DTYPE.get(spec.newbyteorder("="))
        if found is None:
            allowed = ", ".join(sorted(str(d) for d in _BY_DTYPE))
            raise ShapeError(f"no tensor type holds numpy {spec}; these do: {allowed}")
        return found
    found = _BY_LOWER_NAME.get(str(spec).lower())
    if found is None:
        raise ShapeError(f"unknown tensor type {spec!r}; known: {', '.join(TYPES)}")
    return found


assert sys.byteorder == "little", "tensor data is little-endian, as GGUF files are"
