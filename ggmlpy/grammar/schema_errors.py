"""The part of a JSON schema that is refused, as a JSON pointer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from ggmlpy.grammar.library import reason

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_OF_ONE = (
    "items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if",
    "then", "else", "unevaluatedProperties", "unevaluatedItems",
)  # fmt: skip
_UNUSED = ("$defs", "definitions")  # unless a $ref leads there
_ROOT = "x-root"
_MOST = 2000  # subschemas that are tried
_UNSATISFIABLE = "Unsatisfiable schema: "
_ELSEWHERE = re.compile(r"Resource '(?:json-schema:///)?([^']*)' is not present in a registry")


def refused_part(schema: Any, error_of: Callable[[Any], str], error: str) -> tuple[str, str]:
    """The JSON pointer of the innermost refused subschema ("#" for the whole), and why it is.

    `error_of` says why a schema is refused, "" if it is not. `error` is that of the whole.
    """
    pointer, seen, n_left = "#", {"#"}, _MOST
    whole = {_ROOT: _moved(schema)}
    while True:
        for child in _children(schema, pointer):
            n_left -= 1
            if child in seen or _reference(schema, child) in seen or n_left < 0:
                continue
            seen.add(child)
            found = error_of({"$ref": f"#/{_ROOT}{child[1:]}", **whole})
            if found and found.removeprefix(_UNSATISFIABLE) in error:
                pointer, error = child, found
                break
        else:
            return pointer, _said(error)


def _children(schema: Any, pointer: str) -> Iterator[str]:
    """The pointers of a subschema's own subschemas, and of what it refers to."""
    at = _resolved(schema, pointer)
    if not isinstance(at, dict):
        return
    if (reference := _reference(schema, pointer)) is not None:
        yield reference
    for key, value in at.items():
        inner = f"{pointer}/{_escaped(key)}"
        if key in _OF_NAMES and key not in _UNUSED and isinstance(value, dict):
            yield from (f"{inner}/{_escaped(name)}" for name in value)
        elif key in _OF_LISTS and isinstance(value, list):
            yield from (f"{inner}/{i}" for i in range(len(value)))
        elif key in _OF_ONE and isinstance(value, dict | bool):
            yield inner


def _reference(schema: Any, pointer: str) -> str | None:
    """The pointer that a subschema refers to."""
    at = _resolved(schema, pointer)
    reference = at.get("$ref") if isinstance(at, dict) else None
    return reference if isinstance(reference, str) and reference.startswith("#") else None


def _resolved(schema: Any, pointer: str) -> Any:
    """What a pointer leads to; None if to nothing."""
    for part in pointer.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, dict) and key in schema:
            schema = schema[key]
        elif isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
            schema = schema[int(key)]
        else:
            return None
    return schema


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _moved(schema: Any) -> Any:
    """The schema with references as they are where it is a part of another document."""
    if isinstance(schema, list):
        return [_moved(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = f"#/{_ROOT}{reference[1:]}"
    return moved


def _said(error: str) -> str:
    if (elsewhere := _ELSEWHERE.match(error.strip())) is not None:
        return f"a reference leads to another document, {json.dumps(elsewhere[1])}"
    if error.strip().startswith("oneOf constraints are not supported"):
        return (
            'the branches of "oneOf" may overlap: "anyOf" allows what any of them does, and so does'
            ' "oneOf" with {"x-guidance": {"coerce_one_of": true}} at the root'
        )
    keys = re.fullmatch(r"Unimplemented keys: (\[.*\])", error.strip())
    if keys is None:
        return reason(error)
    names = ", ".join(json.dumps(key) for key in json.loads(keys[1]))
    return f"keywords that are not supported: {names}"
