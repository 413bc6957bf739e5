"""Metadata as it is stored: taken over from a file, changed, written to another."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import ArgumentError
from ggmlpy.gguf import GGUFFile, LazyArray
from ggmlpy.gguf.arrays import ARRAY, NUMBERS, STRING
from ggmlpy.gguf.overrides import Scalar

Stored = dict[str, bytes]
"""Keys, and their values as a file has them: the number of the type, then the value."""

_ID_OF = {number.name: id for id, number in NUMBERS.items()} | {"str": STRING}
_CODE_OF = {number.name: number.code for number in NUMBERS.values()}


def stored_keys(file: GGUFFile) -> Stored:
    """The metadata of a file, little-endian, in its order."""
    metadata = file.metadata
    return {key: _stored(metadata.value_type(key), metadata[key]) for key in metadata}


def stored_number(type: str, value: float) -> bytes:
    """A number of a type that GGUF has: "u32", "f32", "bool", …"""
    return struct.pack(f"<I{_CODE_OF[type]}", _ID_OF[type], value)


def stored_text(text: str) -> bytes:
    """A string."""
    return struct.pack("<I", STRING) + text_bytes(text.encode(errors="surrogateescape"))


def stored_texts(texts: list[str]) -> bytes:
    """An array of strings."""
    head = struct.pack("<IIQ", ARRAY, STRING, len(texts))
    return head + b"".join(text_bytes(text.encode(errors="surrogateescape")) for text in texts)


def text_bytes(text: bytes) -> bytes:
    """A string without its type: its length, then its bytes."""
    return struct.pack("<Q", len(text)) + text


def put(keys: Stored, key: str, value: bytes) -> None:
    """Sets a key. As in ggml, it becomes the last one."""
    keys.pop(key, None)
    keys[key] = value


def stored_override(key: str, value: Scalar) -> bytes:
    """A value that replaces a key's: integers as u32 and floats as f32, as llama-quantize has them.

    Raises ArgumentError for an integer that a u32 cannot hold.
    """
    if isinstance(value, bool):
        return stored_number("bool", value)
    if isinstance(value, int):
        if not 0 <= value < 2**32:
            raise ArgumentError(f"key {quoted(key)}: {value} must be from 0 to 2^32 - 1")
        return stored_number("u32", value)
    if isinstance(value, float):
        return stored_number("f32", value)
    return stored_text(value)


def put_all(keys: Stored, overrides: Mapping[str, Scalar]) -> None:
    """Sets all of them."""
    for key, value in overrides.items():
        put(keys, key, stored_override(key, value))


def _stored(type: str, value: object) -> bytes:
    if isinstance(value, LazyArray):
        return struct.pack("<I", ARRAY) + _array(value)
    if isinstance(value, str):
        return stored_text(value)
    assert isinstance(value, int | float)
    return stored_number(type, value)


def _array(array: LazyArray) -> bytes:
    """An array without its type: the type of its elements, their number, the elements."""
    if array.type == "str":
        items = b"".join(text_bytes(array.bytes(i)) for i in range(len(array)))
        return struct.pack("<IQ", STRING, len(array)) + items
    if array.type.startswith("arr["):
        items = b"".join(_array(item) for item in array)
        return struct.pack("<IQ", ARRAY, len(array)) + items
    numbers = array.numpy()
    little = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    return struct.pack("<IQ", _ID_OF[array.type], len(array)) + little.tobytes()
