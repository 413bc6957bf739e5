"""Formats of calls with arguments in JSON, and the generic one for templates that know no tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ggmlpy.grammar.lazy import AT_START, BEHIND_A_TEXT
from ggmlpy.tools.answer import new_id
from ggmlpy.tools.definitions import Tool
from ggmlpy.tools.formats import BAR, Format, LazyCalls, call_objects, listed
from ggmlpy.tools.lark import Lark
from ggmlpy.tools.parsing import AnswerParser
from ggmlpy.tools.reader import Reading


class TaggedObjects(Format):
    """<tool_call>{"name": …, "arguments": {…}}</tool_call>, one for each call: Hermes, Qwen 2.5 and
    3, Granite 4, and others."""

    name = "hermes"
    calls_tools = True
    begins = ("<tool_call>",)
    tokens = ("</tool_call>",)

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        space, n_before = (yield from p.reader.space()), p.n_calls
        if (yield from self.read_object(p, marker + space)):
            yield from p.reader.space()
            yield from p.reader.accept("</tool_call>")
        elif p.n_calls > n_before:  # it has begun: what is wrong in it is no text
            yield from p.reader.text_until("</tool_call>")
            p.end_call()

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        call = lark.either([lark.object(tool) for tool in tools])
        begin, end = map(lark.marker, (*self.begins, *self.tokens))
        one = f"{begin} {lark.gap(_LINE)} {call} {lark.gap(_LINE)} {end}"
        return lark.calls(one, lark.text(_LINE), parallel=parallel)


class BareObjects(Format):
    """{"name": …, "parameters": {…}} as the whole answer: Llama 3.1 to 3.3."""

    name = "llama 3"
    calls_tools = True
    tokens = ("<|python_tag|>",)

    def read(self, p: AnswerParser) -> Reading[None]:
        r = p.reader
        yield from self.read_reasoning(p)
        space = yield from r.space()
        yield from r.accept("<|python_tag|>")
        while p.names and (yield from r.peek()) == "{":
            if not (yield from self.read_object(p, space)):
                break
            space = yield from r.space()
            if (yield from r.accept(";")):
                space = yield from r.space()
        else:
            p.content(space)
        yield from r.until((), p.content)

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        call = lark.either([lark.object(tool, arguments="parameters") for tool in tools])
        return lark.calls(call, '"; "', parallel=parallel)

    def lazy(self, tools: Sequence[Tool], *, parallel: bool) -> LazyCalls:
        lark = self.lark(Lark(is_lazy=True), tools, parallel=parallel)
        first = rf"{AT_START}(?:<\|python_tag\|>\s*)?"
        object = r'\{\s*"name"\s*:\s*"'
        return LazyCalls(lark, rf"(?:{first}|{BEHIND_A_TEXT}\}}\s*;\s*){object}", '{"name":"')


class MarkedArray(Format):
    """[TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}]: Mistral's older models, with
    <|tool_call|> Granite 3, with tags around the list Nemotron Nano 2 and Apriel. Newer ones of
    Mistral: [TOOL_CALLS]name[ARGS]{…}, for each call."""

    name = "mistral"
    calls_tools = True
    begins = ("[TOOL_CALLS]",)
    tokens: tuple[str, ...] = ("[ARGS]", "[CALL_ID]")

    def __init__(
        self,
        think: tuple[str, str] | None = None,
        *,
        marker: str = "[TOOL_CALLS]",
        end: str = "",
        is_named: bool = False,
    ) -> None:
        """`end` is a marker behind the list."""
        super().__init__(think)
        self.begins = (marker,)
        if end:
            self.tokens = (end,)
        self._end = end
        self._is_named = is_named

    def new_id(self) -> str:
        return new_id(9, "")  # Mistral's templates take no others

    def written(self, calls: Sequence[tuple[str, Any]]) -> str:
        return self.begins[0] + json.dumps(call_objects(calls), ensure_ascii=False) + self._end

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        r = p.reader
        before = marker + (yield from r.space())
        if (yield from r.accept("[")):
            yield from self.read_array(p, before + "[")
            if self._end:
                yield from r.space()
                yield from r.accept(self._end)
        elif (yield from r.peek()) == "{":
            yield from self.read_object(p, before)
        else:
            name, found = yield from r.text_until("[ARGS]", "[CALL_ID]")
            id = ""
            before += name + found
            if found == "[CALL_ID]":
                id, found = yield from r.text_until("[ARGS]")
                before += id + found
            yield from self.read_named(p, name.strip(), before, id.strip())

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        (begin,) = map(lark.marker, self.begins)
        if self._is_named:
            args = lark.marker("[ARGS]")
            if lark.is_lazy:
                args = f"({lark.marker('[CALL_ID]')} /[a-zA-Z0-9]{{9}}/)? {args} GAP?"
            calls = [f"{lark.text(t.name)} {args} {lark.json(t)}" for t in tools]
            return lark.calls(f"{begin} {lark.either(calls)}", "", parallel=parallel)
        end = lark.spelled("}")
        if "[TOOL_CALLS]" in self.begins:
            lark.add("ID", "/[a-zA-Z0-9]{9}/")
            id = f"{lark.spelled(_ID)} ID {lark.text(_QUOTE)}"
            end = f"({id})? {end}" if lark.is_lazy else f"{id} {end}"
        elif self._end and lark.is_lazy:
            lark.add("ID", '/"[^"\\\\]{1,64}"/')
            end = f"({lark.spelled(_ID[:-1])} ID)? {end}"
        call = lark.either([lark.object(tool, end=end) for tool in tools])
        comma = lark.spelled(",") if lark.is_lazy else '"," " "?'
        rest = f" ({comma} {call})*" if parallel else ""
        last = f"{lark.free} {lark.marker(self._end)}" if self._end else ""
        return lark.start(f"{begin} {lark.spelled('[')} {call}{rest} {lark.spelled(']')} {last}")


_LINE, _QUOTE, _ID = "\n", '"', ', "id": "'


class DeepSeek(Format):
    """Calls between control tokens: R1 and V3 with a line of the name and a block of JSON, V3.1
    with the name before the separator."""

    name = "deepseek"
    calls_tools = True
    begins = (f"<{BAR}tool▁calls▁begin{BAR}>",)
    tokens = (
        f"<{BAR}tool▁call▁begin{BAR}>",
        f"<{BAR}tool▁sep{BAR}>",
        f"<{BAR}tool▁call▁end{BAR}>",
        f"<{BAR}tool▁calls▁end{BAR}>",
    )

    def __init__(self, think: tuple[str, str] | None = None, *, has_block: bool = True) -> None:
        super().__init__(think)
        self._has_block = has_block

    def description(self, functions: Sequence[Mapping[str, Any]]) -> str:
        begin, sep, end, last = self.tokens
        call = f"{begin}NAME{sep}ARGUMENTS{end}"
        if self._has_block:
            call = f"{begin}function{sep}NAME\n```json\nARGUMENTS\n```{end}"
        return (
            "You can call these tools, which are described by JSON schemas of their parameters:"
            f"\n\n{listed(functions)}\n\nTo call them, write this, with one part from"
            f" {begin} to {end} for each call, and ARGUMENTS as a JSON object:"
            f"\n{self.begins[0]}{call}{last}"
        )

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        r = p.reader
        begin, sep, end, last = self.tokens
        before = marker + (yield from r.space())
        while (yield from r.accept(begin)):
            head, found = yield from r.text_until(sep)
            before += begin + head + found
            if (yield from r.peek()) != "{":
                head, line = yield from r.text_until("\n")
                before += head + line
                if (yield from r.accept("```json")):
                    before += "```json"
            if not (yield from self.read_named(p, head.strip(), before)):
                return
            yield from r.space()
            yield from r.accept("```")
            yield from r.accept(end)
            yield from r.space()
            before = ""
        if before:
            p.content(before)
        else:
            yield from r.accept(last)

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        first, (begin, sep, end, last) = lark.marker(self.begins[0]), map(lark.marker, self.tokens)

        def call(tool: Tool) -> str:
            name = lark.text(tool.name)
            if self._has_block:
                return f'"function" {sep} {name} "\\n```json\\n" {lark.json(tool)} "\\n```" {end}'
            return f"{name} {sep} {lark.json(tool)} {end}"

        one = f"{begin} {lark.either([call(tool) for tool in tools])}"
        rest = f' ("\\n"? {one})*' if parallel else ""
        return lark.start(f"{first} {one}{rest} {last}")


class Harmony(Format):
    """Messages with channels: gpt-oss. Analysis is reasoning, calls go to functions.NAME."""

    name = "gpt-oss"
    calls_tools = True
    tokens = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
    _RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
    _CHANNEL = re.compile(r"<\|channel\|>\s*([a-z]+)")
    _CUT = re.compile(  # a header whose end has not come
        r"(<\|start\|>[a-z]*)?\s*(to=\S*)?\s*(<\|channel\|>[a-z]*)?\s*(to=\S*)?\s*"
        r"(<\|constrain\|>)?[a-z]*(<\|?[a-z]*\|?)?"
    )

    @property
    def reasoning(self) -> tuple[str, str]:
        return "<|channel|>analysis<|message|>", "<|end|>"

    def markers(self, *, with_calls: bool) -> list[str]:
        return list(self.tokens)

    def read(self, p: AnswerParser) -> Reading[None]:
        r = p.reader
        while True:
            header = yield from self._begun(p)
            if not header:
                return
            head, found = yield from r.text_until("<|message|>")
            header += head
            if not found:
                if not self._CUT.fullmatch(header):
                    p.content(header)
                return
            recipient = self._RECIPIENT.search(header)
            channel = self._CHANNEL.search(header)
            if recipient is not None and recipient[1] in p.names:
                yield from self.read_named(p, recipient[1], "")
                yield from r.text_until("<|end|>", "<|call|>")
            elif channel is not None and channel[1] == "analysis" and not p.shows_reasoning:
                yield from p.reasoning("<|end|>")
            else:
                yield from r.until(["<|end|>", "<|return|>"], p.content)

    def _begun(self, p: AnswerParser) -> Reading[str]:
        """What begins a header, behind text that has none, which is content; "" at the end."""
        r = p.reader
        space = yield from r.space()
        for mark in ("<|channel|>", "<|start|>", "to="):
            if (yield from r.accept(mark)):
                return mark
        p.content(space)
        return (yield from r.until(["<|channel|>", "<|start|>"], p.content))

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        channel, constrain, message = map(lark.marker, self.tokens[1:4])
        analysis = f'{channel} "analysis" {message} {lark.until("<|end|>")}'
        analysis += f' {lark.marker("<|start|>")} "assistant"'
        header = f'" " {constrain} "json" {message}'
        calls = [f"{lark.text(f'functions.{t.name}')} {header} {lark.json(t)}" for t in tools]
        return lark.start(f'({analysis})? {channel} "commentary to=" {lark.either(calls)}')

    def lazy(self, tools: Sequence[Tool], *, parallel: bool) -> LazyCalls:
        lark = Lark(is_lazy=True)
        channel, constrain, message = map(lark.marker, self.tokens[1:4])
        json = f'(" "? {constrain}? " "? "json")? {message} GAP?'
        header = lark.either([json, f'{channel} "commentary" {json}'])
        calls = [f"{lark.text(tool.name)} {header} {lark.json(tool)}" for tool in tools]
        channels = r"<\|channel\|>\s*(?:commentary|analysis)?"
        trigger = rf"(?:<\|start\|>assistant\s*(?:{channels})?|{channels})\s*to=functions\."
        return LazyCalls(lark.start(lark.either(calls)), trigger, before="<|start|>assistant")


class Generic(Format):
    """For templates that know no tools: {"tool_calls": [{"name": …, "arguments": {…}}]} or
    {"response": "…"}, which the grammar ensures and the system message describes."""

    name = "generic"
    calls_tools = True

    def read(self, p: AnswerParser) -> Reading[None]:
        r = p.reader
        yield from self.read_reasoning(p)
        r.mark()
        yield from r.space()
        key = yield from self._key(p)
        if key == "response" and (yield from r.accept('"')):
            yield from r.json_characters(p.content)
            return
        if key == "tool_calls" and (yield from r.accept("[")):
            yield from self.read_array(p, r.since_mark())
            if not p.n_calls:
                yield from r.until((), p.content)
            return
        p.content(r.since_mark())
        yield from r.until((), p.content)

    def _key(self, p: AnswerParser) -> Reading[str | None]:
        """The first key of the object, with the colon; None where there is none."""
        r = p.reader
        if not (yield from r.accept("{")):
            return None
        yield from r.space()
        key = yield from r.json_string()
        yield from r.space()
        if not (yield from r.accept(":")):
            return None
        yield from r.space()
        return key

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        return lark.start(self._calls(lark, tools, parallel))

    def answers(self, tools: Sequence[Tool], *, parallel: bool, thinks: bool) -> str:
        """The grammar of an answer that calls tools or says something, see `grammar`."""
        lark = Lark(self.think, thinks)
        calls = self._calls(lark, tools, parallel)
        says = f'{lark.text(_SAYS)} {lark.schema({"type": "string"})} "}}"'
        return lark.start(lark.either([calls, says]))

    def _calls(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> str:
        """The object of calls."""
        call = lark.either([lark.object(tool) for tool in tools])
        rest = f' (", " {call})*' if parallel else ""
        return f'{lark.text(_CALLS)} {call}{rest} "]}}"'


_CALLS, _SAYS = '{"tool_calls": [', '{"response": '
