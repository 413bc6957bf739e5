"""Grammars that an answer must keep to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ggmlpy.errors import GrammarError
from ggmlpy.grammar import Grammar

JSON_GBNF = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


class LlamaGrammar:
    """A grammar in GBNF, or a JSON schema. Needs the package llguidance where it is used."""

    def __init__(
        self, *args: object, _grammar: str, _is_schema: bool = False, **kwargs: object
    ) -> None:
        """Use `from_string`, `from_file` or `from_json_schema`."""
        self._grammar = _grammar
        self._is_schema = _is_schema
        self._root = "root"

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar in GBNF, whose start is `root`."""
        return cls(_grammar=grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """A file with a grammar in GBNF."""
        try:
            grammar = Path(file).read_text(encoding="utf-8")
        except OSError as error:
            raise Exception(f"from_file: error reading grammar file: {error}") from None
        if not grammar:
            raise ValueError(f"from_file: the grammar file {str(file)!r} is empty")
        return cls.from_string(grammar, verbose=verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """JSON that validates against a schema, given as its text. White space is a space at most,
        and objects with `properties` have no others unless `additionalProperties` allows them."""
        return cls(_grammar=json_schema, _is_schema=True)

    def as_own(self) -> Grammar:
        """The same as a `ggmlpy.Grammar`. Raises GrammarError (a ValueError)."""
        if not self._is_schema:
            return Grammar.of(self._grammar)
        try:
            schema = json.loads(self._grammar)
        except ValueError as error:
            raise GrammarError(f"the JSON schema is not JSON: {error}") from None
        closed = _closed(schema)
        if isinstance(closed, dict):
            closed.setdefault("x-guidance", {"whitespace_pattern": " ?"})
        return Grammar.json_schema(closed)


def _closed(schema: Any) -> Any:
    """A schema whose objects have no properties but those that it names, as in llama.cpp, unless it
    says otherwise."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed_part(key, value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def _closed_part(key: str, value: Any) -> Any:
    """The value of a keyword of a schema, with the schemas in it closed."""
    if key in ("enum", "const", "default", "examples"):
        return value
    maps = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
    if key in maps and isinstance(value, dict):
        return {name: _closed(each) for name, each in value.items()}
    return _closed(value)
