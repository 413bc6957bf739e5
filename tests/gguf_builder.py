"""GGUF files made by hand for tests, sound or damaged, independent of the reader and of `gguf`.

Nothing here is checked: a wrong count, shape, offset or type id is written as it is given.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VALUE_TYPES = {
    name: (id, code)
    for id, (name, code) in enumerate(
        [
            ("u8", "B"),
            ("i8", "b"),
            ("u16", "H"),
            ("i16", "h"),
            ("u32", "I"),
            ("i32", "i"),
            ("f32", "f"),
            ("bool", "?"),
            ("str", ""),
            ("arr", ""),
            ("u64", "Q"),
            ("i64", "q"),
            ("f64", "d"),
        ]
    )
}
TENSOR_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "q4_K": 12, "i8": 24, "i32": 26}
TENSOR_TYPES |= {"q6_K": 14, "i16": 25, "i64": 27, "f64": 28, "bf16": 30, "iq4_nl": 20}


@dataclass(frozen=True)
class Typed:
    """A metadata value (or the elements of a list) of a chosen type: `Typed("u16", 3)`."""

    type: str
    value: Any


@dataclass(frozen=True)
class Raw:
    """A metadata value as bytes: the type id and all that follows it."""

    data: bytes


Tensor = tuple[str | int, Iterable[int], bytes]
"""(type name or id, ne, data)"""


def _pairs(items: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return list(items.items() if isinstance(items, Mapping) else items)


class Encoder:
    """Numbers, strings and values as bytes, in one byte order."""

    def __init__(self, byte_order: str = "little") -> None:
        self.prefix = "<" if byte_order == "little" else ">"

    def number(self, type: str, value: Any) -> bytes:
        return struct.pack(self.prefix + VALUE_TYPES[type][1], value)

    def string(self, text: str | bytes) -> bytes:
        raw = text if isinstance(text, bytes) else text.encode()
        return self.number("u64", len(raw)) + raw

    def value(self, value: Any) -> bytes:
        """The type id and the value. Ints become u32 (i32, u64, i64 if they must), floats f32."""
        if isinstance(value, Raw):
            return value.data
        type, value = (
            (value.type, value.value) if isinstance(value, Typed) else (type_of(value), value)
        )
        if isinstance(value, list | np.ndarray):
            type = element_type(value) if type == "arr" else type
            return self.number("u32", VALUE_TYPES["arr"][0]) + self.array(type, value)
        return self.number("u32", VALUE_TYPES[type][0]) + self.plain(type, value)

    def array(self, type: str, values: Any) -> bytes:
        head = self.number("u32", VALUE_TYPES[type][0]) + self.number("u64", len(values))
        return head + b"".join(self.plain(type, value) for value in values)

    def plain(self, type: str, value: Any) -> bytes:
        if type == "str":
            return self.string(value)
        if type == "arr":
            return self.array(element_type(value), value)
        return self.number(type, value)


def type_of(value: Any) -> str:
    """The value type that a Python value is written as."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        if value < 0:
            return "i32" if value >= -(2**31) else "i64"
        return "u32" if value < 2**32 else "u64"
    if isinstance(value, float):
        return "f32"
    return "str" if isinstance(value, str | bytes) else "arr"


def element_type(values: Any) -> str:
    """The element type that a list is written with; lists of ints are i32."""
    if isinstance(values, np.ndarray):
        kind = values.dtype.kind
        return "bool" if kind == "b" else f"{kind}{values.dtype.itemsize * 8}"
    type = type_of(values[0]) if len(values) else "i32"
    return "i32" if type in ("u32", "i32") else type


def gguf_bytes(
    metadata: Mapping[str, Any] | Iterable[tuple[str | bytes, Any]] = (),
    tensors: Mapping[str, Tensor] | Iterable[tuple[str | bytes, Tensor]] = (),
    version: int = 3,
    byte_order: str = "little",
    alignment: int = 32,
    *,
    magic: bytes = b"GGUF",
    n_kv: int | None = None,
    n_tensors: int | None = None,
    offsets: Mapping[str, int] | None = None,
) -> bytes:
    """A GGUF file. Counts and tensor offsets can be overridden; pairs can hold a name twice.

    An alignment other than 32 is written to the metadata unless it is there. Tensor data is written
    as given (in a big-endian file: swap it first).
    """
    pairs, entries = _pairs(metadata), _pairs(tensors)
    if alignment != 32 and "general.alignment" not in dict(pairs):
        pairs.insert(0, ("general.alignment", alignment))
    encode = Encoder(byte_order)
    header = magic + encode.number("u32", version)
    header += encode.number("u64", len(entries) if n_tensors is None else n_tensors)
    header += encode.number("u64", len(pairs) if n_kv is None else n_kv)
    for key, value in pairs:
        header += encode.string(key) + encode.value(value)
    data = b""
    for name, (type, ne, raw) in entries:
        data += b"\0" * (-len(data) % alignment)
        dims = list(ne)
        type_id = type if isinstance(type, int) else TENSOR_TYPES[type]
        header += encode.string(name) + encode.number("u32", len(dims))
        header += b"".join(encode.number("u64", n) for n in dims)
        header += encode.number("u32", type_id)
        header += encode.number("u64", (offsets or {}).get(name, len(data)))
        data += raw
    padding = b"\0" * (-len(header) % alignment) if entries else b""
    return header + padding + data


def build_gguf(
    path: Path,
    metadata: Mapping[str, Any] | Iterable[tuple[str | bytes, Any]] = (),
    tensors: Mapping[str, Tensor] | Iterable[tuple[str | bytes, Tensor]] = (),
    version: int = 3,
    byte_order: str = "little",
    alignment: int = 32,
    **damage: Any,
) -> Path:
    """Write `gguf_bytes(...)` to `path` and return it."""
    path.write_bytes(gguf_bytes(metadata, tensors, version, byte_order, alignment, **damage))
    return path
