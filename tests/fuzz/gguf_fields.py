"""Where the numbers of a GGUF file lie, by names that a recipe can say: `llama.block_count type`.

A reader of its own, for files that are sound at least at their beginning: it ends where it cannot
go on.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # by value type
_STRING, _ARRAY = 8, 9
_MAX_ELEMENTS = 3  # of an array that get names: its first ones


@dataclass(frozen=True, slots=True)
class Field:
    """A number in a file."""

    at: int
    size: int


def fields(data: bytes, byte_order: str = "little") -> dict[str, Field]:
    """The numbers of a file by name, up to the first thing in it that makes no sense."""
    walk = _Walk(data, "<" if byte_order == "little" else ">")
    with contextlib.suppress(struct.error, KeyError, RecursionError):
        walk.header()
    return walk.fields


class _Walk:
    def __init__(self, data: bytes, prefix: str) -> None:
        self._data = data
        self._prefix = prefix
        self._at = 0
        self.fields: dict[str, Field] = {}

    def header(self) -> None:
        self._number("magic", 4)
        self._number("version", 4)
        n_tensors = self._number("n_tensors", 8)
        n_kv = self._number("n_kv", 8)
        for i in range(n_kv):
            key = self._string(f"key {i}")
            self._value(key, self._number(f"{key} type", 4))
        for i in range(n_tensors):
            self._tensor(self._string(f"tensor {i}"))

    def _number(self, name: str, size: int) -> int:
        self.fields[name] = Field(self._at, size)
        return self._take(size)

    def _take(self, size: int) -> int:
        code = {1: "B", 2: "H", 4: "I", 8: "Q"}[size]
        (value,) = struct.unpack_from(self._prefix + code, self._data, self._at)
        self._at += size
        return int(value)

    def _string(self, name: str) -> str:
        n = self._number(f"{name} length", 8)
        self._at += n
        return self._data[self._at - n : self._at].decode(errors="replace")

    def _value(self, name: str, type: int) -> None:
        if type == _STRING:
            self._string(name)
        elif type == _ARRAY:
            self._array(name)
        else:
            self._number(f"{name} value", _SIZES[type])

    def _array(self, name: str) -> None:
        element = self._number(f"{name} element type", 4)
        n = self._number(f"{name} count", 8)
        for i in range(min(n, _MAX_ELEMENTS)):
            self._value(f"{name}[{i}]", element)
        left = n - min(n, _MAX_ELEMENTS)
        if element in _SIZES:
            self._at += left * _SIZES[element]
        else:
            for _ in range(left):
                n_bytes = self._take(8)
                self._at += n_bytes

    def _tensor(self, name: str) -> None:
        n_dims = self._number(f"{name} n_dims", 4)
        for i in range(n_dims):
            self._number(f"{name} ne{i}", 8)
        self._number(f"{name} type", 4)
        self._number(f"{name} offset", 8)
