"""Mutations of GGUF files. A mutation is a list that begins with its name.

First those of keys and tensors are done, then those of the encoded bytes. What a mutation names and
another has taken away is passed over, so that any of them can be left out.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz.gguf_base import Source
from tests.fuzz.gguf_fields import fields
from tests.gguf_builder import VALUE_TYPES, Encoder, Raw, Typed

Mutation = list[Any]


def text_of(name: str | bytes) -> str:
    """A key or name; bytes that are no UTF-8 as lone surrogates."""
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def damage(source: Source, mutations: list[Mutation]) -> tuple[bytes, int]:
    """The file's bytes after all mutations, and the length that it is extended to (a hole)."""
    for mutation in mutations:
        if mutation[0] in _OF_SOURCE:
            _OF_SOURCE[mutation[0]](source, *mutation[1:])
    encoded = bytearray(_encode(source))
    where = {}
    if any(mutation[0] == "field" for mutation in mutations):
        where = fields(bytes(encoded), source.byte_order)
    length = 0
    for name, *arguments in mutations:
        if name == "field" and arguments[0] in where:
            field = where[arguments[0]]
            order: Any = source.byte_order
            value = (int(arguments[1]) % 2 ** (8 * field.size)).to_bytes(field.size, order)
            encoded[field.at : field.at + field.size] = value
        elif name == "sparse":
            length = max(length, arguments[0])
        elif name in _OF_BYTES:
            _OF_BYTES[name](encoded, *arguments)
    return bytes(encoded), length


def _encode(source: Source) -> bytes:
    source.pairs = [(_raw(key), _with_raw_texts(value)) for key, value in source.pairs]
    source.tensors = [(_raw(name), tensor) for name, tensor in source.tensors]
    return source.encode()


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def _with_raw_texts(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [_raw(v) if isinstance(v, str) else v for v in value]
    return value


def value_of(described: list[Any]) -> Any:
    """What `gguf_builder` is given for a value as recipes have it."""
    type, *rest = described
    if type == "nested":
        return _nested(rest[0])
    if type == "arr":
        element, elements = rest
        return Typed(element, [_fitting(element, v) for v in _expanded(elements)])
    if type == "str":
        text = rest[0] if isinstance(rest[0], str) else "".join(_expanded(rest[0]))
        return Typed("str", _raw(text))
    return Typed(type, _fitting(type, rest[0]))


def _expanded(described: Any) -> list[Any]:
    if isinstance(described, dict):
        unit, n = described["repeat"]
        return [unit] * min(max(n, 0), 10**6)
    return list(described)


def _fitting(type: str, value: Any) -> Any:
    """The value as one that the type can hold."""
    if type in ("str", "arr"):
        return _raw(value) if isinstance(value, str) else value
    if type == "bool":
        return bool(value)
    if not isinstance(value, int | float):
        value = 0
    if type in ("f32", "f64"):
        largest = 3.4e38 if type == "f32" else 1.7e308
        return float(value) if abs(value) == math.inf else float(min(max(value, -largest), largest))
    bits = 8 * struct.calcsize(VALUE_TYPES[type][1])
    whole = int(value) if abs(value) < float("inf") else 0
    whole %= 2**bits
    return whole - 2**bits if type[0] == "i" and whole >= 2 ** (bits - 1) else whole


def _nested(depth: int) -> Raw:
    """An array of one array of one array … of no element."""
    array = struct.pack("<IQ", VALUE_TYPES["arr"][0], 1)
    inner = struct.pack("<IQ", VALUE_TYPES["u8"][0], 0)
    return Raw(Encoder().number("u32", VALUE_TYPES["arr"][0]) + array * (depth - 1) + inner)


def _set(source: Source, key: str, described: list[Any]) -> None:
    names = [text_of(name) for name, _ in source.pairs]
    pair = (key, value_of(described))
    if key in names:
        source.pairs[names.index(key)] = pair
    else:
        source.pairs.append(pair)


def _on_key(source: Source, key: str, change: Callable[[int], None]) -> None:
    for i, (name, _) in enumerate(source.pairs):
        if text_of(name) == key:
            change(i)
            return


def _drop(source: Source, key: str) -> None:
    _on_key(source, key, lambda i: source.pairs.pop(i) and None)


def _repeat(source: Source, key: str) -> None:
    _on_key(source, key, lambda i: source.pairs.append(source.pairs[i]))


def _swap(source: Source, key: str, other: str) -> None:
    """The two keys' values."""

    def swap(i: int) -> None:
        def with_other(j: int) -> None:
            (a, x), (b, y) = source.pairs[i], source.pairs[j]
            source.pairs[i], source.pairs[j] = (a, y), (b, x)

        _on_key(source, other, with_other)

    _on_key(source, key, swap)


def _rename(source: Source, key: str, name: str) -> None:
    def rename(i: int) -> None:
        source.pairs[i] = (name, source.pairs[i][1])

    _on_key(source, key, rename)


def _retype(source: Source, key: str, type: str) -> None:
    """The same number, or elements, as another type."""

    def retype(i: int) -> None:
        name, value = source.pairs[i]
        value = value.value if isinstance(value, Typed) else value
        if isinstance(value, list | np.ndarray):
            if type != "arr":
                source.pairs[i] = (name, Typed(type, [_fitting(type, _of(type, v)) for v in value]))
        elif not isinstance(value, Raw) and type != "arr":
            source.pairs[i] = (name, Typed(type, _fitting(type, _of(type, value))))

    _on_key(source, key, retype)


def _of(type: str, value: Any) -> Any:
    if type == "str":
        return value if isinstance(value, str | bytes) else str(value)
    return value


def _change_array(source: Source, key: str, change: Callable[[list[Any]], Any]) -> None:
    def on(i: int) -> None:
        name, value = source.pairs[i]
        if isinstance(value, list | np.ndarray):
            listed = value.tolist() if isinstance(value, np.ndarray) else list(value)
            source.pairs[i] = (name, change(listed))

    _on_key(source, key, on)


def _element(source: Source, key: str, i: int, value: Any) -> None:
    def change(array: list[Any]) -> list[Any]:
        if not array:
            return array
        at = i % len(array)
        old = array[at]
        if isinstance(old, str | bytes):
            array[at] = value if isinstance(value, str) else str(value)
        elif not isinstance(value, str):
            number = float(value) if isinstance(old, float) else _fitting("i32", value)
            array[at] = _fitting("f32", number) if isinstance(old, float) else number
        return array

    _change_array(source, key, change)


def _cut(source: Source, key: str, n: int) -> None:
    _change_array(source, key, lambda array: array[:n])


def _extend(source: Source, key: str, n: int) -> None:
    _change_array(source, key, lambda array: array + array[:n])


def _reverse(source: Source, key: str) -> None:
    _change_array(source, key, lambda array: array[::-1])


def _same(source: Source, key: str) -> None:
    _change_array(source, key, lambda array: array[:1] * len(array))


def _on_tensor(source: Source, name: str, change: Callable[[int], None]) -> None:
    for i, (known, _) in enumerate(source.tensors):
        if text_of(known) == name:
            change(i)
            return


def _ne(source: Source, name: str, ne: list[int]) -> None:
    def change(i: int) -> None:
        key, (type, _, data) = source.tensors[i]
        source.tensors[i] = (key, (type, [n % 2**64 for n in ne], data))

    _on_tensor(source, name, change)


def _tensor_type(source: Source, name: str, type: int) -> None:
    """Another type, with data of the length that it asks for: what was there, again and again."""

    def change(i: int) -> None:
        key, (_, ne, data) = source.tensors[i]
        source.tensors[i] = (key, (type % 2**32, ne, data * 8 if len(data) < 10**6 else data))

    _on_tensor(source, name, change)


def _drop_tensor(source: Source, name: str) -> None:
    _on_tensor(source, name, lambda i: source.tensors.pop(i) and None)


def _repeat_tensor(source: Source, name: str) -> None:
    _on_tensor(source, name, lambda i: source.tensors.append(source.tensors[i]))


def _rename_tensor(source: Source, name: str, other: str) -> None:
    def change(i: int) -> None:
        source.tensors[i] = (other, source.tensors[i][1])

    _on_tensor(source, name, change)


_PATTERNS = {"nan": b"\0\0\xc0\x7f", "inf": b"\0\0\x80\x7f", "ones": b"\xff", "zeros": b"\0",
             "huge": b"\xff\xff\x7f\x7f"}  # fmt: skip


def _data(source: Source, name: str, what: str) -> None:
    def change(i: int) -> None:
        key, (type, ne, data) = source.tensors[i]
        if what == "random":
            data = random.Random(name).randbytes(len(data))
        elif what == "short":
            data = data[: len(data) // 2]
        else:
            data = (_PATTERNS[what] * len(data))[: len(data)]
        source.tensors[i] = (key, (type, ne, data))

    _on_tensor(source, name, change)


_OF_SOURCE: dict[str, Callable[..., None]] = {
    "set": _set,
    "drop": _drop,
    "repeat": _repeat,
    "swap": _swap,
    "rename": _rename,
    "type": _retype,
    "element": _element,
    "cut": _cut,
    "extend": _extend,
    "reverse": _reverse,
    "same": _same,
    "ne": _ne,
    "tensor type": _tensor_type,
    "drop tensor": _drop_tensor,
    "repeat tensor": _repeat_tensor,
    "rename tensor": _rename_tensor,
    "data": _data,
}


def _flip(data: bytearray, at: int, bit: int) -> None:
    if at < len(data):
        data[at] ^= 1 << bit % 8


def _bytes(data: bytearray, at: int, digits: str) -> None:
    data[at : at + len(digits) // 2] = bytes.fromhex(digits)


def _insert(data: bytearray, at: int, digits: str) -> None:
    data[at:at] = bytes.fromhex(digits)


def _delete(data: bytearray, at: int, n: int) -> None:
    del data[at : at + n]


def _cut_file(data: bytearray, at: int) -> None:
    del data[at:]


_OF_BYTES: dict[str, Callable[..., None]] = {
    "flip": _flip,
    "bytes": _bytes,
    "insert": _insert,
    "delete": _delete,
    "cut file": _cut_file,
}
