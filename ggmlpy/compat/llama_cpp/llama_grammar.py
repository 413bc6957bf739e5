"""Grammars that an answer must keep to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ggmlpy.common.arguments import kind_of
from ggmlpy.compat.llama_cpp.schema_converter import *  # noqa: F403 - one list of names
from ggmlpy.compat.llama_cpp.schema_converter import SchemaConverter
from ggmlpy.errors import ArgumentError, GrammarError, MissingPackage
from ggmlpy.grammar import Grammar
from ggmlpy.grammar.library import matcher_class

JSON_GBNF = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""

JSON_ARR_GBNF = r"""
# An array of JSON, an element a line, and nothing behind it.
root   ::= "[\n" ws (value (",\n" ws value)*)? "]"
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= [ \t\n]*
"""

LIST_GBNF = r"""
# Lines that begin with a dash; no character of them breaks a line.
root ::= ("- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n")+
"""

ARITHMETIC_GBNF = r"""
# Lines of an expression, "=" and a term.
root ::= (sum "=" ws term "\n")+
sum  ::= term ([-+*/] term)*
term ::= ([a-z] [a-z0-9_]* | [0-9]+ | "(" ws sum ")") ws
ws   ::= [ \t\n]*
"""

C_GBNF = r"""
# Functions of a small part of C.
root     ::= (type name "(" (type name)? ")" block)*
block    ::= "{" (simple ";" | return | loop | branch | comment)* "}"
simple   ::= type? assign | call
assign   ::= name ws "=" ws sum
return   ::= "return" ws sum ";"
loop     ::= ("while" "(" test | "for" "(" type? assign ";" ws test ";" ws assign) ")" block
branch   ::= "if" "(" test ")" block ("else" block)?
comment  ::= "//" [^\n]* "\n" | "/*" ([^*] | "*" [^/])* "*/"
test     ::= sum ("<=" | "<" | "==" | "!=" | ">=" | ">") sum
sum      ::= product ([+-] product)*
product  ::= factor ([*/] factor)*
factor   ::= call | name | number | "-" factor | "(" ws sum ws ")"
call     ::= name "(" (sum ("," ws sum)*)? ")"
type     ::= ("int" | "float" | "char") ws
name     ::= [a-zA-Z_] [a-zA-Z_0-9]*
number   ::= [0-9]+
ws       ::= [ \t\n]+
"""

CHESS_GBNF = JAPANESE_GBNF = JSON_GBNF  # llama-cpp-python has grammars of JSON by these names


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
        """JSON of a schema, given as its text. White space is a space at most, and objects with
        `properties` have no others unless `additionalProperties` allows them.

        Keywords and formats that llguidance does not know are ignored, as llama-cpp-python does:
        `ggmlpy.Grammar.json_schema` refuses them. Raises GrammarError (a ValueError) for text that
        is not JSON and, where llguidance is installed, for a schema that it cannot follow.
        """
        grammar = cls(_grammar=json_schema, _is_schema=True)
        _check(grammar.as_own())
        return grammar

    def as_own(self) -> Grammar:
        """The same as a `ggmlpy.Grammar`. Raises GrammarError (a ValueError)."""
        if not self._is_schema:
            return Grammar.of(self._grammar)
        closed = _closed(_parsed(self._grammar))
        if isinstance(closed, dict):
            closed.setdefault("x-guidance", {"whitespace_pattern": " ?", "coerce_one_of": True})
        return Grammar.json_schema(closed)


def own_grammar(grammar: LlamaGrammar | None) -> Grammar | None:
    """The argument `grammar` as a `ggmlpy.Grammar`. Raises ArgumentError, GrammarError."""
    if grammar is None:
        return None
    if not isinstance(grammar, LlamaGrammar):
        raise ArgumentError(
            f"grammar is {kind_of(grammar)}: it must be a LlamaGrammar, as"
            " LlamaGrammar.from_string(text) makes of GBNF"
        )
    return grammar.as_own()


def _check(grammar: Grammar) -> None:
    """Raise GrammarError for a schema that llguidance refuses. Needs it: without, nothing is
    checked here, and the use of the grammar raises MissingPackage."""
    try:
        library = matcher_class()
    except MissingPackage:
        return
    is_error, messages = library.validate_grammar_with_warnings(grammar.source(lambda _: None))
    if is_error:
        raise grammar.refusal(messages[0])


def _parsed(schema: str) -> Any:
    try:
        return json.loads(schema)
    except ValueError as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from None


def json_schema_to_gbnf(schema: str, prop_order: list[str] | None = None) -> str:
    """A grammar in GBNF of a schema, given as its text; properties in `prop_order` come first.

    Raises GrammarError (a ValueError) for what is no schema, or none that GBNF can say;
    `LlamaGrammar.from_json_schema` follows more.
    """
    converter = SchemaConverter(
        prop_order={name: i for i, name in enumerate(prop_order or ())},
        allow_fetch=False,
        dotall=False,
        raw_pattern=False,
    )
    converter.visit(converter.resolve_refs(_parsed(schema), "stdin"), "")
    return converter.format_grammar()


# Keywords that llguidance refuses.
_IGNORED = frozenset(
    (
        *("uniqueItems", "contains", "minContains", "maxContains", "not", "if", "then", "else"),
        *("dependentRequired", "dependentSchemas", "dependencies", "propertyNames"),
        *("unevaluatedProperties", "unevaluatedItems"),
    )
)
# Formats that llguidance knows; it refuses others.
_FORMATS = frozenset(
    (
        *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        "uri",
    )
)


def _closed(schema: Any) -> Any:
    """A schema as llama-cpp-python understands it: its objects have no properties but those that it
    names, unless it says otherwise, and keywords that cannot be followed are left out."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        key: _closed_part(key, value)
        for key, value in schema.items()
        if key not in _IGNORED and not (key == "format" and str(value) not in _FORMATS)
    }
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def _closed_part(key: str, value: Any) -> Any:
    """The value of a keyword of a schema, with the schemas in it closed."""
    if key in ("enum", "const", "default", "examples"):
        return value
    maps = ("properties", "patternProperties", "$defs", "definitions")
    if key in maps and isinstance(value, dict):
        return {name: _closed(each) for name, each in value.items()}
    return _closed(value)
