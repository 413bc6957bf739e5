"""Grammars that an answer must keep to, as they are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ggmlpy.common.arguments import kind_of
from ggmlpy.errors import ArgumentError, GrammarError
from ggmlpy.grammar.gbnf import parse_gbnf
from ggmlpy.grammar.lark import lark_of
from ggmlpy.grammar.library import matcher_class, reason
from ggmlpy.grammar.schema_errors import refused_part

Kind = Literal["gbnf", "lark", "regex", "json_schema", "choices"]
TokenOf = Callable[[str], int | None]

# As in llama.cpp: models that may write any white space sometimes write nothing else.
_WHITESPACE = r" |\n{1,2}[ \t]{0,20}"
_LARK_MARK = "%llguidance"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must be: made by one of the class methods, for the option `grammar`.

    The answer is a text of the grammar as a whole, or the beginning of one where `max_tokens` or
    `stop` ends it.
    """

    kind: Kind
    text: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str) -> Grammar:
        """JSON that a schema describes (draft 2020-12), given as an object or as its text.

        Properties come in the order of `properties`. White space is a space, or up to two line
        breaks and an indentation, unless the schema's "x-guidance" says otherwise, as in
        {"x-guidance": {"whitespace_flexible": false}}. Raises GrammarError for text that is no
        JSON, ArgumentError for what is no schema.
        """
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except ValueError as error:
                raise GrammarError(f"the JSON schema is not JSON: {error}") from None
        if not isinstance(schema, Mapping | bool):
            raise ArgumentError(
                f"the JSON schema is {kind_of(schema)}: it must be an object, true or false"
            )
        try:
            return cls("json_schema", json.dumps(schema, default=_plain))
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"the JSON schema cannot be written as JSON: {error}") from None

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """A regular expression, in the syntax of Rust's crate regex, that the whole text matches.

        ^ and $ at its ends change nothing; look-around and back-references are not available.
        """
        return cls("regex", _text("pattern", pattern))

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """A grammar in llama.cpp's GBNF, whose start is the rule `root`."""
        return cls("gbnf", _text("grammar", text))

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A grammar in llguidance's variant of Lark, whose start is the rule `start`."""
        return cls("lark", _text("grammar", text))

    @classmethod
    def choices(cls, texts: Sequence[str]) -> Grammar:
        """One of some texts."""
        if isinstance(texts, str | bytes) or not isinstance(texts, Sequence):
            raise ArgumentError(f"choices is {kind_of(texts)}: it must be a list of texts")
        for i, text in enumerate(texts):
            _text(f"choices[{i}]", text)
        if not texts:
            raise GrammarError("choices is empty: there must be at least one text")
        return cls("choices", json.dumps(list(texts)))

    @classmethod
    def of(cls, text: str) -> Grammar:
        """A grammar in GBNF, or one in Lark if it begins with %llguidance, as in llama.cpp."""
        _text("grammar", text)
        return cls.lark(text) if text.lstrip().startswith(_LARK_MARK) else cls.gbnf(text)

    def source(self, token_of: TokenOf) -> str:
        """The grammar as llguidance takes it.

        `token_of` gives the token of a text that is exactly one token. Raises GrammarError,
        MissingPackage.
        """
        library = matcher_class()
        match self.kind:
            case "json_schema":
                try:
                    return schema_source(self.text)
                except ValueError as error:  # "x-guidance" is something else
                    raise self.refusal(str(error)) from None
            case "regex":
                return library.grammar_from_regex(self.text)
            case "choices":
                texts = " | ".join(map(json.dumps, json.loads(self.text)))
                return library.grammar_from_lark(f"start: CHOICE\nCHOICE: {texts}")
            case "gbnf":
                return library.grammar_from_lark(lark_of(parse_gbnf(self.text), token_of))
            case _:
                return library.grammar_from_lark(self.text)

    def refusal(self, error: str) -> GrammarError:
        """Why llguidance refuses the grammar."""
        what = {"json_schema": "the JSON schema", "regex": "the regular expression"}
        if self.kind == "json_schema":
            pointer, why = refused_part(json.loads(self.text), _error_of_schema, error)
            return GrammarError(f"the JSON schema is refused at {pointer}: {why}")
        return GrammarError(f"{what.get(self.kind, 'the grammar')} is refused: {reason(error)}")


def schema_source(schema: str) -> str:
    """A JSON schema as llguidance takes it."""
    schema = {"true": "{}", "false": '{"allOf": [false]}'}.get(schema, schema)  # takes objects only
    options = json.loads(schema).get("x-guidance", {})
    is_fixed = isinstance(options, dict) and options.get("whitespace_flexible") is False
    return matcher_class().grammar_from_json_schema(
        schema, defaults=None if is_fixed else {"whitespace_pattern": _WHITESPACE}
    )


def _error_of_schema(schema: Any) -> str:
    """Why llguidance refuses a schema; "" if it does not."""
    library = matcher_class()
    try:
        source = schema_source(json.dumps(schema))
    except ValueError as error:
        return str(error)
    is_error, messages = library.validate_grammar_with_warnings(source)
    return messages[0] if is_error else ""


def schema_refusal(schema: Mapping[str, Any]) -> GrammarError | None:
    """Why a JSON schema cannot be used; None if it can. Raises MissingPackage."""
    grammar = Grammar.json_schema(schema)
    error = _error_of_schema(json.loads(grammar.text))
    return grammar.refusal(error) if error else None


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ArgumentError(f"{name} is {kind_of(value)}: it must be a string")
    return value


def _plain(value: Any) -> Any:
    """Of mappings and sequences what JSON has."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{kind_of(value)} is not JSON")
