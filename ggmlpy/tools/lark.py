"""Grammars of answers that must call a tool, in llguidance's Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from ggmlpy.tools.definitions import Tool

# As models are trained to write it: with other white space allowed, some write nothing else.
_SPELLING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Lark:
    """A grammar that is written part by part. Markers stand in it as `@"…"@`: the vocabulary says
    which of them are tokens (`with_tokens`)."""

    def __init__(self, think: tuple[str, str] | None, thinks: bool = False) -> None:
        """`think` are the markers of reasoning that an answer may begin with, or within which it
        begins."""
        self._rules: list[str] = []
        self._texts: list[str] = []  # rules of texts up to a marker
        self._think = think
        self._thinks = thinks

    def marker(self, text: str) -> str:
        """A marker of a format."""
        return f"@{json.dumps(text, ensure_ascii=False)}@"

    def text(self, text: str) -> str:
        """A literal text."""
        return json.dumps(text, ensure_ascii=False)

    def json(self, tool: Tool) -> str:
        """The arguments of a tool as a JSON object."""
        return self.schema(tool.schema)

    def schema(self, schema: Any) -> str:
        """JSON that a schema describes."""
        return f"%json {json.dumps({**schema, 'x-guidance': _SPELLING}, default=dict)}"

    def value(self, schema: Any) -> str:
        """The value of one parameter, as a rule."""
        return self.rule(self.schema(schema))

    def object(self, tool: Tool, arguments: str = "arguments", end: str = '"}"') -> str:
        """A call as an object. Its arguments are JSON of their own, in which a reference of the
        schema finds what it names."""
        head = self.text(f'{{"name": {json.dumps(tool.name)}, "{arguments}": ')
        return f"{head} {self.json(tool)} {end}"

    def either(self, parts: Sequence[str]) -> str:
        """One of some parts."""
        return self.rule(" | ".join(self.rule(part) for part in parts))

    def pairs(self, tool: Tool, equals: str, separator: str, value: Callable[[Any], str]) -> str:
        """The parameters of a tool in the order of its schema, of which some may be left out.

        `value` gives the grammar of a value by its schema.
        """
        alone = ""  # what may come from a parameter on, where none stands before it
        behind = ""  # the same behind others
        for name, schema in reversed(list(tool.properties.items())):
            pair = self.rule(f"{self.text(name + equals)} {value(schema)}")
            one = f"{self.text(separator)} {pair}"
            if name in tool.required:
                alone, behind = f"{pair} {behind}", f"{one} {behind}"
            else:
                rest = f" | {alone}" if alone else ""
                alone, behind = f"({pair} {behind}{rest})", f"({one})? {behind}"
                alone = alone if rest else f"{alone}?"
        return alone

    def rule(self, body: str) -> str:
        """A rule with this body."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def add(self, name: str, body: str) -> None:
        """A rule or terminal of this name."""
        self._rules.append(f"{name}: {body}")

    def calls(self, one: str, between: str, *, parallel: bool) -> str:
        """The grammar of one call or several."""
        call = self.rule(one)
        rest = f"({between} {call})*" if between else f"{call}*"
        return self.start(f"{call} {rest}" if parallel else call)

    def start(self, body: str) -> str:
        """The whole grammar."""
        rules = list(self._rules)
        if self._think is not None:
            open, close = self._think
            begin = "" if self._thinks else f"{self.marker(open)} "
            rules.append(f"thinking: {begin}{self.until(close)} SPACE?")
            rules.append("SPACE: /[ \\n]+/")
            body = f"thinking{'' if self._thinks else '?'} {body}"
        return "\n".join([f"start: {body}", *rules, *self._texts])

    def until(self, marker: str) -> str:
        """Any text, and the marker behind it."""
        name = f"until{len(self._texts)}"
        self._texts.append(f"{name}: @until {json.dumps(marker, ensure_ascii=False)}@")
        return name


def with_tokens(grammar: str, token_of: Callable[[str], int | None]) -> str:
    """The grammar for a vocabulary: markers that are one token are that token, others its texts.

    `token_of` gives the token of a text that is exactly one, if answers lack its text.
    """

    def text_until(found: re.Match[str]) -> str:
        marker = json.loads(found[2])
        token = token_of(marker)
        if token is None:
            return f"{found[1]}[suffix={found[2]}]: /(?s:.*)/"
        return f"{found[1]}: /(?s:.*)/ <[{token}]>"

    def marker(found: re.Match[str]) -> str:
        token = token_of(json.loads(found[1]))
        return found[1] if token is None else f"<[{token}]>"

    grammar = re.sub(r"^(\w+): @until (\"(?:[^\"\\]|\\.)*\")@$", text_until, grammar, flags=re.M)
    return re.sub(r"@(\"(?:[^\"\\]|\\.)*\")@", marker, grammar)
