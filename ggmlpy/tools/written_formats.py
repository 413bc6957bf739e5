"""Formats of calls as in a programming language: Python's of LFM2, and Gemma's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ggmlpy.tools.definitions import NOTES, SHARED, Tool, choices_of, is_text, kinds_of
from ggmlpy.tools.formats import Format
from ggmlpy.tools.lark import Lark
from ggmlpy.tools.literals import LiteralReader
from ggmlpy.tools.parsing import AnswerParser
from ggmlpy.tools.reader import Reading


class PythonCalls(Format):
    """[name(key="value", n=1)] between control tokens: LFM2."""

    name = "lfm2"
    calls_tools = True
    begins = ("<|tool_call_start|>",)
    tokens = ("<|tool_call_end|>",)

    def written(self, calls: Sequence[tuple[str, Any]]) -> str:
        parts = []
        for name, arguments in calls:
            pairs = (f"{key}={_python_literal(value)}" for key, value in arguments.items())
            parts.append(f"{name}({', '.join(pairs)})")
        return f"{self.begins[0]}[{', '.join(parts)}]{self.tokens[0]}"

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        text, end = yield from p.reader.text_until("<|tool_call_end|>")
        calls = _python_calls(text)
        if calls is None or not all(name in p.names for name, _ in calls):
            p.content(marker + text + end)
            return
        for name, arguments in calls:
            p.whole_call(name, arguments)

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        def value(schema: Any) -> str:
            return lark.nested(schema, leaf, key) if lark.is_lazy else lark.value(schema)

        def key(name: str) -> str:
            return lark.either([lark.text(json.dumps(name)), lark.text(repr(name))])

        def leaf(schema: Any) -> str:
            given, kinds = lark.value(schema), kinds_of(schema)
            choices = choices_of(schema)
            if is_text(schema) and choices is not None:
                return lark.either([given, *(lark.text(repr(each)) for each in choices)])
            if not isinstance(schema, Mapping) or not schema.keys() <= _BARE:
                return given
            ways = [text for kind, text in _PYTHON.items() if kind in kinds]
            return lark.either([given, *ways]) if kinds <= _SCALARS else given

        calls = []
        gap = lark.free
        for tool in tools:
            inside = lark.pairs(tool, "=", ", ", value)
            calls.append(f'{lark.text(tool.name + "(")} {gap} {inside} {gap} ")"')
        one = lark.either(calls)
        comma = '"," GAP?' if lark.is_lazy else '", "'
        rest = f" ({comma} {one})*" if parallel else ""
        begin, end = lark.marker(self.begins[0]), lark.marker(self.tokens[0])
        return lark.start(f'{begin} {gap} "[" {gap} {one}{rest} {gap} "]" {gap} {end}')


# What Python has beside JSON, by the type of JSON.
_PYTHON = {"string": r"/'([^'\\\n]|\\.)*'/", "boolean": '"True" | "False"', "null": '"None"'}
_SCALARS = {"string", "boolean", "null", "integer", "number"}
_BARE = {"type", "anyOf", *NOTES, *SHARED}


def _python_literal(value: Any) -> str:
    """A value of JSON in Python, strings with the quotes that models write."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _python_calls(text: str) -> list[tuple[str, dict[str, Any]]] | None:
    """Calls with keywords of literals, in Python's or JSON's words; None for anything else."""
    reader = LiteralReader(text, ('"', "'"))
    calls: list[tuple[str, dict[str, Any]]] = []
    try:
        is_list = reader.take("[")
        while not calls or reader.take(","):
            name = reader.word()
            reader.expect("(")
            calls.append((name, reader.pairs("=", ")")))
        if is_list:
            reader.expect("]")
    except ValueError:
        return None
    return calls if reader.is_at_end else None


class GemmaCalls(Format):
    """call:name{key:value} between markers, with its own quotes around strings: Gemma 4, and
    FunctionGemma with other markers."""

    name = "gemma"
    calls_tools = True

    def __init__(
        self, think: tuple[str, str] | None = None, *, begin: str, end: str, quote: str
    ) -> None:
        super().__init__(think)
        self.begins = (begin,)
        self.tokens = (end, quote)

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        text, end = yield from p.reader.text_until(self.tokens[0])
        found = re.match(r"\s*call:([^{\s]+)\s*", text)
        values = None
        if found is not None and found[1] in p.names:
            values = _gemma_values(text[found.end() :], self.tokens[1])
        if found is None or values is None:
            p.content(marker + text + end)
        else:
            p.whole_call(found[1], values)

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        quote, gap = lark.marker(self.tokens[1]), lark.free

        def value(schema: Any) -> str:
            return lark.nested(schema, leaf, lark.text)

        def leaf(schema: Any) -> str:
            if not is_text(schema):
                return lark.value(schema)
            choices = choices_of(schema)
            if choices is not None:
                return f"{quote} {lark.either(list(map(lark.text, choices)))} {quote}"
            return f"{quote} {lark.until(self.tokens[1], schema)}"

        calls = []
        for tool in tools:
            inside = lark.pairs(tool, ":", ",", value)
            calls.append(f'{lark.text(f"call:{tool.name}{{")} {gap} {inside} {gap} "}}"')
        begin, end = lark.marker(self.begins[0]), lark.marker(self.tokens[0])
        return lark.calls(f"{begin} {gap} {lark.either(calls)} {gap} {end}", "", parallel=parallel)


def _gemma_values(text: str, quote: str) -> dict[str, Any] | None:
    """Arguments in Gemma's notation: JSON with bare keys, and strings between its own quotes."""
    reader = LiteralReader(text, (quote, '"'))
    try:
        reader.expect("{")
        values = reader.pairs(":", "}")
    except ValueError:
        return None
    return values if reader.is_at_end else None
