"""Formats of calls as in a programming language: Python's of LFM2, and Gemma's."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from ggmlpy.tools.definitions import Tool
from ggmlpy.tools.formats import Format
from ggmlpy.tools.lark import Lark
from ggmlpy.tools.parsing import AnswerParser
from ggmlpy.tools.reader import Reading


class PythonCalls(Format):
    """[name(key="value", n=1)] between control tokens: LFM2."""

    name = "lfm2"
    calls_tools = True
    begins = ("<|tool_call_start|>",)
    tokens = ("<|tool_call_end|>",)

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        text, end = yield from p.reader.text_until("<|tool_call_end|>")
        calls = _python_calls(text)
        if calls is None or not all(name in p.names for name, _ in calls):
            p.content(marker + text + end)
            return
        for name, arguments in calls:
            p.whole_call(name, arguments)

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        calls = []
        for tool in tools:
            given = [n for n in tool.properties if n in tool.required]
            optional = [n for n in tool.properties if n not in tool.required]
            parts = [f"{lark.text(n + '=')} {lark.value(tool.properties[n])}" for n in given]
            body = ' ", " '.join(parts)
            for n in optional if given else ():
                body += f' (", " {lark.text(n + "=")} {lark.value(tool.properties[n])})?'
            if optional and not given:
                either = [
                    f"{lark.text(n + '=')} {lark.value(tool.properties[n])}" for n in optional
                ]
                body = f"({lark.either(either)})?"
            calls.append(f'{lark.text(tool.name + "(")} {body} ")"')
        one = lark.either(calls)
        rest = f' (", " {one})*' if parallel else ""
        begin, end = lark.marker(self.begins[0]), lark.marker(self.tokens[0])
        return lark.start(f'{begin} "[" {one}{rest} "]" {end}')


_WORDS = {"true": True, "false": False, "null": None}


def _python_calls(text: str) -> list[tuple[str, dict[str, Any]]] | None:
    """Calls with keywords of literals, in Python's or JSON's words; None for anything else."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    calls = []
    for node in tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]:
        if not isinstance(node, ast.Call) or node.args:
            return None
        try:
            given = {str(k.arg): _literal(k.value) for k in node.keywords if k.arg is not None}
        except (ValueError, TypeError, RecursionError):
            return None
        calls.append((ast.unparse(node.func), given))
    return calls or None


def _literal(node: ast.expr) -> Any:
    """The value of a literal. Raises ValueError for another expression."""
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _literal(key) for key in node.keys]
        return dict(zip(map(str, keys), map(_literal, node.values), strict=True))
    value = ast.literal_eval(node)
    if isinstance(value, bytes | complex | set) or value is ...:
        raise ValueError("no JSON")
    return value


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
            values = _GemmaValue(text[found.end() :], self.tokens[1]).whole()
        if found is None or not isinstance(values, dict):
            p.content(marker + text + end)
        else:
            p.whole_call(found[1], values)

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        quote = lark.marker(self.tokens[1])

        def value(schema: Any) -> str:
            if isinstance(schema, dict) and schema.get("type") == "string":
                if "enum" in schema:
                    texts = [lark.text(str(each)) for each in schema["enum"]]
                    return f"{quote} {lark.either(texts)} {quote}"
                return f"{quote} {lark.until(self.tokens[1])}"
            return lark.value(schema)

        calls = []
        for tool in tools:
            given = [n for n in tool.properties if n in tool.required]
            body = ' "," '.join(f"{lark.text(n + ':')} {value(tool.properties[n])}" for n in given)
            calls.append(f'{lark.text(f"call:{tool.name}{{")} {body} "}}"')
        begin, end = lark.marker(self.begins[0]), lark.marker(self.tokens[0])
        return lark.calls(f"{begin} {lark.either(calls)} {end}", "", parallel=parallel)


class _GemmaValue:
    """A value in Gemma's notation: JSON with bare keys, and strings between its own quotes."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text.strip()
        self._quote = quote
        self._at = 0

    def whole(self) -> Any:
        """The value; None where there is none, or more behind it."""
        try:
            value = self._value()
        except (ValueError, RecursionError):
            return None
        return value if self._at == len(self._text) else None

    def _value(self) -> Any:
        self._space()
        if self._accept(self._quote):
            end = self._text.index(self._quote, self._at)
            text, self._at = self._text[self._at : end], end + len(self._quote)
            return text
        if self._accept("{"):
            made: dict[str, Any] = {}
            while not self._accept("}"):
                key = self._key()
                made[key] = self._value()
                self._accept(",")
            return made
        if self._accept("["):
            items = []
            while not self._accept("]"):
                items.append(self._value())
                self._accept(",")
            return items
        value, self._at = _JSON.raw_decode(self._text, self._at)
        return value

    def _key(self) -> str:
        self._space()
        if self._text.startswith(self._quote, self._at):
            key = str(self._value())
        else:
            end = self._text.index(":", self._at)
            key, self._at = self._text[self._at : end].strip().strip('"'), end
        self._space()
        if not self._accept(":"):
            raise ValueError("no colon")
        return key

    def _accept(self, text: str) -> bool:
        self._space()
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _space(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1


_JSON = json.JSONDecoder()
