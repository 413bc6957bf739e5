"""Metadata arrays, which are read from the file on demand.

An array is its element type (u32), its length (u64), then the elements. Numbers become a view of
the file. Strings are located when the file is opened (see `strings.py`), and decoded on demand.
Arrays of arrays are skipped when the file is opened, and read on demand.
"""

from __future__ import annotations

import array
import builtins
import operator
import struct
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, SupportsIndex, overload

import gguf
import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import GGUFError, WeightError
from ggmlpy.gguf.cursor import Cursor
from ggmlpy.gguf.part import Part
from ggmlpy.gguf.strings import string_starts

MAX_DEPTH = 4  # of nested arrays; known models have none
_ARRAY_STEPS = 64  # locating a nested array takes as long as so many strings


class Number(NamedTuple):
    """A number type: llama.cpp's name for it, and its letter for `struct` and numpy."""

    name: str
    code: str


_T = gguf.GGUFValueType
STRING = int(_T.STRING)
ARRAY = int(_T.ARRAY)
BOOL = Number("bool", "B")  # stored as one byte, true unless 0
NUMBERS = {
    int(_T.UINT8): Number("u8", "B"),
    int(_T.INT8): Number("i8", "b"),
    int(_T.UINT16): Number("u16", "H"),
    int(_T.INT16): Number("i16", "h"),
    int(_T.UINT32): Number("u32", "I"),
    int(_T.INT32): Number("i32", "i"),
    int(_T.FLOAT32): Number("f32", "f"),
    int(_T.BOOL): BOOL,
    int(_T.UINT64): Number("u64", "Q"),
    int(_T.INT64): Number("i64", "q"),
    int(_T.FLOAT64): Number("f64", "d"),
}


class LazyArray(Sequence[Any]):
    """A metadata array, read from the file on demand.

    Elements are int, float, bool, str, or LazyArray (in an array of arrays). A string that is not
    UTF-8 is decoded with "surrogateescape"; `bytes` returns it as stored.
    """

    __slots__ = ("_label", "_n", "_part", "type")

    def __init__(self, part: Part, label: str, type: str, n: int) -> None:
        self._part = part
        self._label = label  # 'key "tokenizer.ggml.tokens"'
        self._n = n
        self.type = type
        """The type of the elements: "u8" … "f64", "bool", "str", or "arr[…]"."""

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, slice):
            return self._items(range(*index.indices(self._n)))
        return self._item(self._checked(index))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"LazyArray({self.type}, {self._n})"

    def numpy(self) -> NDArray[Any]:
        """The numbers, read-only: a view of the file, which may be unaligned.

        Booleans, and numbers of a big-endian file, are converted copies. Raises WeightError for an
        array of strings or arrays.
        """
        raise self._wrong("numbers")

    def bytes(self, index: SupportsIndex) -> builtins.bytes:
        """String `index` as stored. Raises WeightError for an array of anything else."""
        raise self._wrong("strings")

    @abstractmethod
    def tolist(self) -> list[Any]:
        """All elements as Python objects; arrays of arrays become lists of lists."""

    @abstractmethod
    def _item(self, index: int) -> Any:
        """Element `index`, which is in range(len(self))."""

    def _items(self, indices: range) -> list[Any]:
        return [self._item(i) for i in indices]

    def _checked(self, index: SupportsIndex) -> int:
        i = operator.index(index)
        if not -self._n <= i < self._n:
            raise IndexError(f"{self._label} has {self._n} elements, index {i} is outside")
        return i % self._n

    def _wrong(self, must_be: str) -> WeightError:
        return WeightError(
            f"{self._part.name}: {self._label} is an array of {self.type}, must hold {must_be}"
        )


class _Numbers(LazyArray):
    __slots__ = ("_begin", "_layout")

    def __init__(self, part: Part, label: str, number: Number, n: int, begin: int) -> None:
        super().__init__(part, label, number.name, n)
        self._begin = begin
        self._layout = part.prefix + number.code  # of one element, for struct and numpy

    def numpy(self) -> NDArray[Any]:
        values: NDArray[Any] = np.frombuffer(self._part.view, self._layout, self._n, self._begin)
        if self.type == "bool":
            values = values != 0
        elif not values.dtype.isnative:
            values = values.astype(values.dtype.newbyteorder("="))
        values.flags.writeable = False
        return values

    def tolist(self) -> list[Any]:
        values: list[Any] = self.numpy().tolist()
        return values

    def _item(self, index: int) -> Any:
        begin = self._begin + index * struct.calcsize(self._layout)
        value = struct.unpack_from(self._layout, self._part.view, begin)[0]
        return value != 0 if self.type == "bool" else value


class _Strings(LazyArray):
    __slots__ = ("_starts",)

    def __init__(self, part: Part, label: str, n: int, starts: NDArray[np.int64]) -> None:
        super().__init__(part, label, "str", n)
        self._starts = starts  # n + 1; string i is the bytes starts[i] + 8 … starts[i + 1]

    def bytes(self, index: SupportsIndex) -> builtins.bytes:
        i = self._checked(index)
        begin, end = self._starts[i : i + 2].tolist()
        return builtins.bytes(self._part.view[begin + 8 : end])

    def tolist(self) -> list[str]:
        return self._items(range(self._n))

    def _items(self, indices: range) -> list[str]:
        listed = self._split_at_zeros(indices) if indices.step == 1 else None
        return listed if listed is not None else [self._item(i) for i in indices]

    def _split_at_zeros(self, indices: range) -> list[str] | None:
        """Consecutive strings, decoded at once with a zero byte in place of each length.

        None if one of them contains a zero byte.
        """
        n = len(indices)
        if n == 0:
            return []
        starts = self._starts[indices.start : indices.stop + 1]
        first, last = int(starts[0]), int(starts[-1])
        stored = np.frombuffer(self._part.view, np.uint8, last - first, first).copy()
        self._part.release(first, last)
        lengths = starts[:-1] - first
        stored[lengths] = 0
        kept = np.ones(len(stored), np.bool_)
        for i in range(1, 8):
            kept[lengths + i] = False
        joined = stored[kept]
        if np.count_nonzero(joined == 0) != n:
            return None
        return joined[1:].tobytes().decode(errors="surrogateescape").split("\0")

    def _item(self, index: int) -> str:
        return self.bytes(index).decode(errors="surrogateescape")


class _Arrays(LazyArray):
    __slots__ = ("_depth", "_starts")

    def __init__(
        self, part: Part, label: str, type: str, starts: array.array[int], depth: int
    ) -> None:
        super().__init__(part, label, type, len(starts))
        self._starts = starts
        self._depth = depth

    def tolist(self) -> list[Any]:
        return [self._item(i).tolist() for i in range(self._n)]

    def _item(self, index: int) -> LazyArray:
        label = f"element {index} of {self._label}"
        return read_array(Cursor(self._part, self._starts[index], label), self._depth + 1)


def read_array(cursor: Cursor, depth: int = 0) -> LazyArray:
    """Read the array at the cursor. Raises GGUFError if the file cannot hold it."""
    type_id, n = cursor.u32(), cursor.u64()
    if type_id in NUMBERS:
        number = NUMBERS[type_id]
        size = struct.calcsize(number.code)
        cursor.check_count(n, size, f"elements of type {number.name}")
        return _Numbers(cursor.part, cursor.at, number, n, cursor.skip(n * size))
    if type_id == STRING:
        cursor.check_steps(n, 8, "strings")
        return _Strings(cursor.part, cursor.at, n, string_starts(cursor, n))
    if type_id == ARRAY:
        return _read_arrays(cursor, n, depth)
    raise unknown_type(cursor, type_id)


def _read_arrays(cursor: Cursor, n: int, depth: int) -> LazyArray:
    if depth + 1 >= MAX_DEPTH:
        raise cursor.error(f"has arrays nested deeper than {MAX_DEPTH} levels")
    cursor.check_steps(n, 12, "arrays", _ARRAY_STEPS)
    label, type, starts = cursor.at, "arr", array.array("q")
    for i in range(n):
        starts.append(cursor.pos)
        cursor.at = f"element {i} of {label}"
        inner = read_array(cursor, depth + 1)
        type = f"arr[{inner.type}]" if type in ("arr", f"arr[{inner.type}]") else "arr[mixed]"
    cursor.at = label
    return _Arrays(cursor.part, label, type, starts, depth)


def unknown_type(cursor: Cursor, type_id: int) -> GGUFError:
    """The error for an unknown value type."""
    known = ", ".join(f"{id} {number.name}" for id, number in NUMBERS.items())
    return cursor.error(
        f"has the unknown value type {type_id}; known are {known}, {STRING} str, {ARRAY} array"
    )
