"""Values that take the place of a file's metadata.

general.name=str:A name   llama.rope.freq_base=float:50000   llama.context_length=int:4096
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ggmlpy.common.arguments import kind_of
from ggmlpy.common.quoting import quoted
from ggmlpy.errors import ArgumentError
from ggmlpy.gguf.arrays import LazyArray
from ggmlpy.gguf.metadata import Metadata, Value

Scalar = bool | int | float | str

# A comma, if an override follows: others belong to a text.
_NEXT = re.compile(r",(?=[\w.-]+=(?:bool|int|float|str):)")
_TYPES = {"bool": bool, "int": int, "float": float, "str": str}
_STORED = {bool: "bool", int: "i64", float: "f64", str: "str"}
_ARTICLES = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
_BOOLS = {"true": True, "false": False}


def overridden(metadata: Metadata, overrides: Mapping[str, Scalar]) -> Metadata:
    """The metadata with some values replaced, or added.

    A value must be of the kind that the file has: a text, an integer, true or false, a number,
    which may be given as an integer. Raises ArgumentError with the key; arrays cannot be replaced.
    """
    if not overrides:
        return metadata
    values: dict[str, Value] = {key: metadata[key] for key in metadata}
    types = {key: metadata.value_type(key) for key in metadata}
    for key, value in overrides.items():
        values[key] = _checked(key, value, values.get(key))
        types.setdefault(key, _STORED[type(values[key])])
    return Metadata(metadata.name, values, types)


def _checked(key: str, value: object, stored: Value | None) -> Scalar:
    if not isinstance(key, str) or not key:
        raise ArgumentError(f"kv_overrides: a key is {key!r}: it must be a text")
    if not isinstance(value, bool | int | float | str):
        raise ArgumentError(
            f"kv_overrides: {quoted(key)} is {kind_of(value)}: it must be a text, a number, or True"
            " or False"
        )
    if isinstance(stored, LazyArray):
        raise ArgumentError(f"kv_overrides: {quoted(key)} is an array in the file: it stays")
    if stored is None or type(stored) is type(value):
        return value
    if isinstance(stored, float) and type(value) is int:
        return float(value)
    raise ArgumentError(
        f"kv_overrides: {quoted(key)} is {value!r}: it must be {_ARTICLES[type(stored)]}, as in the"
        " file"
    )


def parse_overrides(texts: Iterable[str]) -> dict[str, Scalar]:
    """Overrides as the command line has them, KEY=TYPE:VALUE, of type int, float, bool or str.

    A text may have several, with commas between them. Raises ArgumentError with what is wrong.
    """
    found: dict[str, Scalar] = {}
    for text in (each for several in texts for each in _NEXT.split(several)):
        key, equals, rest = text.partition("=")
        kind, colon, value = rest.partition(":")
        if not (key and equals and colon) or kind not in _TYPES:
            raise ArgumentError(
                f"override-kv is {quoted(text)}: it must be KEY=TYPE:VALUE, with a type of"
                f" {', '.join(_TYPES)}"
            )
        found[key] = _parsed(text, kind, value)
    return found


def _parsed(text: str, kind: str, value: str) -> Scalar:
    try:
        return _BOOLS[value] if kind == "bool" else _TYPES[kind](value)
    except (KeyError, ValueError):
        must_be = _ARTICLES[_TYPES[kind]]
        raise ArgumentError(
            f"override-kv is {quoted(text)}: the value is {quoted(value)}, it must be {must_be}"
        ) from None
