"""Grammars that an answer must keep to."""

from __future__ import annotations

from pathlib import Path

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
        """JSON that validates against a schema, given as its text."""
        return cls(_grammar=json_schema, _is_schema=True)

    def as_own(self) -> Grammar:
        """The same as a `ggmlpy.Grammar`. Raises GrammarError (a ValueError)."""
        if self._is_schema:
            return Grammar.json_schema(self._grammar)
        return Grammar.of(self._grammar)
