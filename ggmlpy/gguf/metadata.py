"""The keys and values of a GGUF file, with typed getters."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, Literal, TypeVar

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import WeightError
from ggmlpy.gguf.arrays import (
    ARRAY,
    BOOL,
    NUMBERS,
    STRING,
    LazyArray,
    read_array,
    unknown_type,
)
from ggmlpy.gguf.cursor import Cursor

Value = int | float | bool | str | LazyArray
Kind = Literal["str", "int", "float", "bool"]
T = TypeVar("T")

_MAX_KEY_BYTES = 65_535  # the format's limit
_ARTICLES = {"str": "a string", "int": "an integer", "float": "a float", "bool": "a bool"}
_INTEGERS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
_FLOATS = ("f32", "f64")


class _Required(Enum):
    """The type of REQUIRED, which means that there is no default."""

    REQUIRED = 0


REQUIRED: Final = _Required.REQUIRED


class Metadata(Mapping[str, Value]):
    """The metadata of a file.

    `metadata[key]` is any value, and raises KeyError for a missing key. The getters return a value
    of one type and raise WeightError, with the key, for any other. A default replaces a missing
    key, not a value of a wrong type.
    """

    __slots__ = ("_name", "_types", "_values")

    def __init__(self, name: str, values: dict[str, Value], types: dict[str, str]) -> None:
        self._name = name
        self._values = values
        self._types = types

    @property
    def name(self) -> builtins.str:
        """The file's name, for messages."""
        return self._name

    def __getitem__(self, key: builtins.str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[builtins.str]:
        return iter(self._values)

    def __len__(self) -> builtins.int:
        return len(self._values)

    def __repr__(self) -> builtins.str:
        return f"Metadata({self._name}, {len(self)} keys)"

    def value_type(self, key: builtins.str) -> builtins.str:
        """The stored type: "u32", "f32", "bool", "str", …, or "arr[str]", "arr[i32]", …"""
        if key not in self._types:
            raise self._missing(key)
        return self._types[key]

    def str(self, key: builtins.str, default: T | _Required = REQUIRED) -> builtins.str | T:
        """A string; bytes that are not UTF-8 are decoded with "surrogateescape"."""
        value = self._values.get(key)
        return value if isinstance(value, builtins.str) else self._other(key, "str", default)

    def int(self, key: builtins.str, default: T | _Required = REQUIRED) -> builtins.int | T:
        """An integer of any width."""
        value = self._values.get(key)
        if isinstance(value, builtins.int) and not isinstance(value, builtins.bool):
            return value
        return self._other(key, "int", default)

    def float(self, key: builtins.str, default: T | _Required = REQUIRED) -> builtins.float | T:
        """A float of either width."""
        value = self._values.get(key)
        return value if isinstance(value, builtins.float) else self._other(key, "float", default)

    def bool(self, key: builtins.str, default: T | _Required = REQUIRED) -> builtins.bool | T:
        value = self._values.get(key)
        return value if isinstance(value, builtins.bool) else self._other(key, "bool", default)

    def array(
        self,
        key: builtins.str,
        default: T | _Required = REQUIRED,
        *,
        of: Kind | None = None,
    ) -> LazyArray | T:
        """An array; with `of`, one with elements of that kind, of any width."""
        value = self._values.get(key)
        if isinstance(value, LazyArray) and (of is None or value.type in _stored_as(of)):
            return value
        return self._other(key, "array" if of is None else f"array of {of}", default)

    def _other(self, key: builtins.str, type: builtins.str, default: T | _Required) -> T:
        """The default of a missing key. Raises WeightError without one, or for another type."""
        if key in self._values:
            must = _ARTICLES.get(type, f"an {type}")
            raise WeightError(
                f"{self._name}: key {quoted(key)} has type {self._types[key]}, must be {must}"
            )
        if isinstance(default, _Required):
            raise self._missing(key)
        return default

    def _missing(self, key: builtins.str) -> WeightError:
        return WeightError(f"{self._name}: key {quoted(key)} is missing")


def _stored_as(kind: Kind) -> tuple[str, ...]:
    """The stored types of this kind."""
    return {"int": _INTEGERS, "float": _FLOATS}.get(kind, (kind,))


def read_metadata(cursor: Cursor, n: int) -> Metadata:
    """Read `n` keys and values at the cursor. Raises GGUFError with the key that is wrong."""
    values: dict[str, Value] = {}
    types: dict[str, str] = {}
    for i in range(n):
        cursor.at = f"key {i + 1} of {n}"
        key = cursor.text(_MAX_KEY_BYTES)
        cursor.at = f"key {quoted(key)}"
        if not key:
            raise cursor.error("is empty: a key must have a name")
        if key in values:
            raise cursor.error("is there twice")
        values[key], types[key] = _read_value(cursor)
    return Metadata(cursor.part.name, values, types)


def _read_value(cursor: Cursor) -> tuple[Value, str]:
    """A value and the name of its type."""
    type_id = cursor.u32()
    if type_id in NUMBERS:
        type = NUMBERS[type_id]
        number = cursor.number(type.code)
        return (number != 0 if type is BOOL else number), type.name
    if type_id == STRING:
        return cursor.string().decode(errors="surrogateescape"), "str"
    if type_id == ARRAY:
        array = read_array(cursor)
        return array, f"arr[{array.type}]"
    raise unknown_type(cursor, type_id)
