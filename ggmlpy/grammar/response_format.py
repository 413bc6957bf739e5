"""The options that ask for structured output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmlpy.common.arguments import kind_of
from ggmlpy.errors import ArgumentError
from ggmlpy.grammar.spec import Grammar

_FORMS = (
    '{"type": "text"}, {"type": "json_object"} with or without "schema", or'
    ' {"type": "json_schema", "json_schema": {"schema": …}}'
)


def grammar_option(grammar: Any, response_format: Any) -> Grammar | None:
    """The grammar that the options `grammar` and `response_format` ask for.

    Raises ArgumentError for another type, or if both ask for one.
    """
    asked = None if response_format is None else of_response_format(response_format)
    if grammar is None:
        return asked
    if asked is not None:
        raise ArgumentError("grammar and response_format are both given: give one of them")
    if isinstance(grammar, Grammar):
        return grammar
    if isinstance(grammar, str):
        return Grammar.of(grammar)
    raise ArgumentError(
        f"grammar is {kind_of(grammar)}: it must be a Grammar, or the text of one in GBNF"
    )


def of_response_format(given: Any) -> Grammar | None:
    """The grammar of a `response_format`, OpenAI's or llama.cpp's; None for text."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or kind not in ("text", "json_object", "json_schema"):
        raise ArgumentError(f"response_format is {given!r}: it must be {_FORMS}")
    if kind == "text":
        return None
    schema = given.get("schema")
    if kind == "json_object":
        return Grammar.json_object() if schema is None else Grammar.json_schema(schema)
    inner = given.get("json_schema")
    if schema is None and isinstance(inner, Mapping):
        schema = inner.get("schema")
    if schema is None:
        raise ArgumentError(f"response_format has no schema: it must be {_FORMS}")
    return Grammar.json_schema(schema)
