"""Typed fields of a JSON object. A wrong one raises ApiError with its name and what it must be.

    read(body, {"model": text, "n": integer(1, 128), "stop": either(text, listed(text))})

gives those fields that are there, and not null. Others are left alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from ggmlpy.server.errors import ApiError, invalid

Kind = Callable[[str, Any], Any]  # (the field's name, its value) -> what is meant
_MOST_TOOLS = 1024  # each has its schema compiled
_MOST_BITS = 63  # of an integer without its sign


def read(body: Mapping[str, Any], kinds: Mapping[str, Kind], at: str = "") -> dict[str, Any]:
    """The known fields of an object, which in errors is `at`, such as "messages[0]"."""
    return {
        name: kind(_path(at, name), body[name])
        for name, kind in kinds.items()
        if body.get(name) is not None
    }


def needed(body: Mapping[str, Any], name: str, kind: Kind, at: str = "") -> Any:
    """A field that must be there, see `read`."""
    path = _path(at, name)
    if body.get(name) is None:
        raise invalid(path, f"{path} is missing: this request needs it")
    return kind(path, body[name])


def _path(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def wrong(name: str, value: Any, must: str) -> ApiError:
    """The error of a value."""
    shown = json.dumps(value, ensure_ascii=False, default=str)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}…"
    return invalid(name, f"{name} is {shown}: it must be {must}")


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(name, value, "a string")
    return value


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")
    return value


def integer(least: int | None = None, most: int | None = None) -> Kind:
    """An integer of at most 64 bits; 3.0 is one, as in JSON."""
    must = "an integer" + _limits(least, most)

    def kind(name: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong(name, value, must)
        if not (least is None or value >= least) or not (most is None or value <= most):
            raise wrong(name, value, must)
        if value.bit_length() > _MOST_BITS:
            raise wrong(name, value, f"{must}, of at most {_MOST_BITS + 1} bits")
        return value

    return kind


def number(least: float | None = None, most: float | None = None) -> Kind:
    """A finite number."""
    must = "a number" + _limits(least, most)

    def kind(name: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise wrong(name, value, must)
        try:
            found = float(value)
        except OverflowError:
            raise wrong(name, value, must) from None
        if not math.isfinite(found):
            raise wrong(name, value, must)
        if not (least is None or found >= least) or not (most is None or found <= most):
            raise wrong(name, value, must)
        return found

    return kind


def mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(name, value, "an object")
    return value


def function_tool(
    at: str, tool: Mapping[str, Any], schema: str, *, is_needed: bool
) -> dict[str, Any]:
    """A tool as chat completions have it, of an object whose parameters are its field `schema`."""
    function: dict[str, Any] = {"name": needed(tool, "name", text, at)}
    function |= read(tool, {"description": text}, at)
    if is_needed or tool.get(schema) is not None:
        function["parameters"] = needed(tool, schema, mapping, at)
    return {"type": "function", "function": function}


def listed(kind: Kind, *, least: int = 0, most: int | None = None) -> Kind:
    """A list, each of whose items is of a kind."""

    def read_list(name: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise wrong(name, value, "a list")
        if len(value) < least or (most is not None and len(value) > most):
            limits = _limits(least, most).removeprefix(" of ")
            has = f"has {len(value)} items" if value else "is empty"
            raise invalid(name, f"{name} {has}: there must be {limits}")
        return [kind(f"{name}[{i}]", item) for i, item in enumerate(value)]

    return read_list


def tool_list(name: str, value: Any) -> list[dict[str, Any]]:
    """The definitions of tools, which something else checks."""
    found: list[dict[str, Any]] = listed(mapping, most=_MOST_TOOLS)(name, value)
    return found


def one_of(*names: str) -> Kind:
    """One of some strings."""

    def kind(name: str, value: Any) -> str:
        if value not in names:
            raise wrong(name, value, "one of " + ", ".join(json.dumps(each) for each in names))
        return str(value)

    return kind


def either(*kinds: Kind, must: str) -> Kind:
    """Of the first kind that fits."""

    def read_one(name: str, value: Any) -> Any:
        for kind in kinds:
            try:
                return kind(name, value)
            except ApiError:
                continue
        raise wrong(name, value, must)

    return read_one


def anything(name: str, value: Any) -> Any:
    """What something else checks."""
    return value


def _limits(least: float | None, most: float | None) -> str:
    if least is None and most is None:
        return ""
    if most is None:
        return f" of at least {least}"
    return f" from {least} to {most}" if least is not None else f" of at most {most}"
