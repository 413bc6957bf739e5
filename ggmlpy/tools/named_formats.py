"""Formats of calls with arguments in JSON that have names of their own for the parts: Kimi K2,
Command R and A, Functionary 3."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ggmlpy.tools.definitions import Tool
from ggmlpy.tools.formats import Format, LazyCalls
from ggmlpy.tools.lark import Lark
from ggmlpy.tools.parsing import AnswerParser
from ggmlpy.tools.reader import Reading


class KimiCalls(Format):
    """Calls in a section, each with an id functions.NAME:INDEX before its arguments: Kimi K2."""

    name = "kimi k2"
    calls_tools = True
    begins = ("<|tool_calls_section_begin|>",)
    tokens = (
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    )
    _ID = re.compile(r"\s*((?:functions\.)?([^\s]+?)(?::\d+)?)\s*")

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        r = p.reader
        begin, separator, end, last = self.tokens
        before = marker + (yield from r.space())
        while (yield from r.accept(begin)):
            head, found = yield from r.text_until(separator)
            id = self._ID.fullmatch(head)
            before += begin + head + found
            named, own_id = ("", "") if id is None else (id[2], id[1])
            if not (yield from self.read_named(p, named, before, own_id)):
                return
            yield from r.space()
            yield from r.accept(end)
            yield from r.space()
            before = ""
        if before:
            p.content(before)
        else:
            yield from r.accept(last)

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        first, (begin, separator, end, last) = self.begins[0], map(lark.marker, self.tokens)
        lark.add("INDEX", "/:[0-9]+/")
        calls = [
            f"{lark.text(f'functions.{tool.name}')} INDEX {separator} {lark.json(tool)} {end}"
            for tool in tools
        ]
        one = lark.rule(f"{begin} {lark.either(calls)}")
        return lark.start(f"{lark.marker(first)} {one}{'+' if parallel else ''} {last}")


class CommandCalls(Format):
    """Actions and responses between control tokens: Command R7B, Command A. An action is a list of
    objects with the keys tool_call_id, tool_name and parameters."""

    name = "command r"
    calls_tools = True
    begins = ("<|START_ACTION|>",)
    tokens = ("<|END_ACTION|>",)
    name_key = "tool_name"
    keeps_ids = False  # they count from 0 in each answer
    _AROUND_TEXTS = (
        *("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        *("<|START_TEXT|>", "<|END_TEXT|>"),
    )

    def markers(self, *, with_calls: bool) -> list[str]:
        return [*super().markers(with_calls=with_calls), *self._AROUND_TEXTS]

    def read(self, p: AnswerParser) -> Reading[None]:
        yield from self.read_reasoning(p)
        begins = self.begins if p.names else ()
        while marker := (yield from p.reader.until([*begins, *self._AROUND_TEXTS], p.content)):
            if marker in begins:
                yield from self.read_calls(p, marker)

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        r = p.reader
        before = marker + (yield from r.space())
        if not (yield from r.accept("[")):
            p.content(before)
            return
        yield from self.read_array(p, before + "[")
        yield from r.space()
        yield from r.accept(*self.tokens)

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        lark.add("INDEX", "/[0-9]{1,3}/")
        calls = []
        for tool in tools:
            rest = lark.spelled(f', "tool_name": "{tool.name}", "parameters": ')
            calls.append(f'INDEX "\\"" {rest} {lark.json(tool)} {lark.spelled("}")}')
        head = lark.spelled('{"tool_call_id": "')
        one = lark.rule(f"{head} {lark.either(calls)}")
        gap, line, last = lark.free, lark.gap("\n    "), lark.gap("\n")
        rest = f' ({gap} "," {line} {one})*' if parallel else ""
        begin, end = map(lark.marker, (*self.begins, *self.tokens))
        return lark.start(f'{begin} {gap} "[" {line} {one}{rest} {last} "]" {gap} {end}')


class FunctionCalls(Format):
    """<function=NAME>{…}</function>: Functionary 3.1, and Llama 3.1 with functions of one's own."""

    name = "functionary"
    calls_tools = True
    begins = ("<function=",)
    tokens = ("</function>",)

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        r = p.reader
        name, found = yield from r.text_until(">")
        if (yield from self.read_named(p, name, marker + name + found)):
            yield from r.space()
            yield from r.accept(*self.tokens)

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        calls = [
            f"{lark.text(f'{tool.name}>')} {lark.free} {lark.json(tool)} {lark.free}"
            for tool in tools
        ]
        begin, end = map(lark.marker, (*self.begins, *self.tokens))
        return lark.calls(f"{begin} {lark.either(calls)} {end}", lark.text("\n"), parallel=parallel)


class Recipients(Format):
    """>>>NAME and a line with the arguments, >>>all before text: Functionary 3.2, whose prompts end
    with the first >>>."""

    name = "functionary 3.2"
    calls_tools = True
    begins = (">>>",)
    # What may be a name: neither `all`, nor a part of that, nor white space, as behind a prompt of
    # Python.
    _NAMED = r">>>(?!\s|all\n|(?:a|al|all)?\Z)"

    def markers(self, *, with_calls: bool) -> list[str]:
        return list(self.begins)  # texts have a recipient too

    def read(self, p: AnswerParser) -> Reading[None]:
        r = p.reader
        marker = yield from self._marker(p)
        while True:
            recipient = yield from self._recipient(p)
            if recipient in p.names:
                yield from self.read_named(p, recipient, "")
            elif not recipient:
                p.content(marker)
            marker = yield from r.until(self.begins if p.names else (), p.content)
            if not marker:
                return

    def _marker(self, p: AnswerParser) -> Reading[str]:
        """The first marker, where the answer has that."""
        (marker,) = self.begins
        return marker if (yield from p.reader.accept(marker)) else ""

    def _recipient(self, p: AnswerParser) -> Reading[str]:
        """The name behind a marker; "" where there is none."""
        for name in ("all", *sorted(p.names)):
            if (yield from p.reader.accept(f"{name}\n")):
                return name
        return ""

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        lark.add("LINE", lark.text("\n"))
        calls = [f"{lark.text(t.name)} LINE {lark.free} {lark.json(t)}" for t in tools]
        return lark.calls(lark.either(calls), lark.text(self.begins[0]), parallel=parallel)

    def lazy(self, tools: Sequence[Tool], *, parallel: bool) -> LazyCalls:
        lark = self.lark(Lark(is_lazy=True), tools, parallel=parallel)
        return LazyCalls(lark, self._NAMED, before=self.begins[0])
