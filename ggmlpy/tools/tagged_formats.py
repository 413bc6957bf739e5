"""Formats of calls with tags around each parameter: Qwen3-Coder, GLM, DeepSeek's DSML."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from ggmlpy.tools.bare_texts import terminal_of
from ggmlpy.tools.definitions import Tool, choices_of, has_bare_text, is_text
from ggmlpy.tools.formats import BAR, Format, LazyCalls
from ggmlpy.tools.lark import Lark
from ggmlpy.tools.parsing import AnswerParser
from ggmlpy.tools.reader import Reading


class _Parameters:
    """Parameters that are read one by one, as JSON that grows."""

    def __init__(self, p: AnswerParser, tool: str) -> None:
        self._p = p
        self._n = 0
        p.begin(tool)

    def add(self, name: str, value: Any) -> None:
        start = ", " if self._n else "{"
        key, text = json.dumps(name, ensure_ascii=False), json.dumps(value, ensure_ascii=False)
        self._p.arguments(f"{start}{key}: {text}")
        self._n += 1

    def cut(self, name: str, text: str) -> None:
        """A parameter whose end has not come, so that the arguments are no JSON yet."""
        start = ", " if self._n else "{"
        key, begun = json.dumps(name, ensure_ascii=False), json.dumps(text, ensure_ascii=False)
        self._p.arguments(f"{start}{key}: {begun[:-1]}")

    def end(self) -> None:
        self._p.arguments("}" if self._n else "{}")
        self._p.end_call()


class _TaggedFormat(Format):
    """Strings stand between the tags as they are, other values as JSON."""

    tells_texts = False  # whether a tag says which of the two stands behind it

    def parameters(
        self,
        lark: Lark,
        tool: Tool,
        head: Callable[[str, bool], str],
        end: str,
        *,
        around: str = "",
        behind: str = "",
    ) -> str:
        """The parameters of a call in the order of the schema, of which some may be left out.

        `head` gives what begins one, by its name and whether it is text; the marker `end` ends it.
        White space stands `around` values.
        """
        gap = lark.gap(around) if around or lark.is_lazy else ""
        last = f"{gap} {lark.marker(end)}"
        parts = []
        for name, schema in tool.properties.items():
            start = lark.text(around) if around else ""
            line = f"{start}?" if start and lark.is_lazy else start
            choices = choices_of(schema)
            ways = []
            if choices is not None:
                for as_text in (True, False):
                    texts = [
                        lark.text(each if as_text else json.dumps(each, ensure_ascii=False))
                        for each in choices
                        if isinstance(each, str) == as_text
                    ]
                    if texts:
                        value = f"{line} {lark.either(texts)} {line} {lark.marker(end)}"
                        ways.append((as_text, value))
            elif is_text(schema) or has_bare_text(schema):
                is_any = lark.is_lazy and terminal_of(schema) is None
                text = lark.until(end) if is_any else lark.until(around + end, schema)
                ways.append((True, text if is_any else f"{start} {text}"))
            if not ways or (self.tells_texts and has_bare_text(schema)):
                ways.append((False, f"{gap} {lark.value(schema)} {last}"))
            part = lark.either([f"{head(name, as_text)} {value}" for as_text, value in ways])
            parts.append(f"{part} {behind}")
        return lark.any_of(list(tool.properties), parts, tool.required, "")


class TaggedFunctions(_TaggedFormat):
    """<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>: Qwen 3.5,
    Qwen3-Coder; with other tags and without line breaks around values Seed-OSS."""

    name = "qwen3-coder"
    calls_tools = True

    def __init__(
        self, think: tuple[str, str] | None = None, *, tag: str = "tool_call", around: str = "\n"
    ) -> None:
        """`around` stands before and behind a value."""
        super().__init__(think)
        self.begins = (f"<{tag}>",)
        self.tokens = (f"</{tag}>",)
        self._around = around

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        r = p.reader
        r.mark()
        yield from r.space()
        name = ""
        if (yield from r.accept("<function=")):
            name, _ = yield from r.text_until(">")
        if name not in p.names:
            p.content(marker + r.since_mark())
            return
        call = _Parameters(p, name)
        while True:
            yield from r.space()
            if not (yield from r.accept("<parameter=")):
                break
            key, _ = yield from r.text_until(">")
            text, found = yield from r.text_until("</parameter>")
            if not found:
                call.cut(key, text.removeprefix("\n"))
                return
            call.add(key, p.value(name, key, text.removeprefix("\n").removesuffix("\n")))
        ends = 0
        for end in ("</function>", *self.tokens):
            ends += yield from r.accept(end)
            yield from r.space()
        if ends:
            call.end()

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        line = lark.gap("\n")

        def head(name: str, as_text: bool) -> str:
            return lark.text(f"<parameter={name}>")

        def call(tool: Tool) -> str:
            inside = self.parameters(
                lark, tool, head, "</parameter>", around=self._around, behind=line
            )
            return f"{lark.text(f'<function={tool.name}>')} {line} {inside} {end} {line}"

        end = lark.text("</function>")
        calls = lark.either([call(tool) for tool in tools])
        first, last = map(lark.marker, (*self.begins, *self.tokens))
        return lark.calls(f"{first} {line} {calls} {last}", line, parallel=parallel)


class TaggedPairs(_TaggedFormat):
    """<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>: GLM 4.5 on."""

    name = "glm"
    calls_tools = True
    begins = ("<tool_call>",)
    tokens = ("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        r = p.reader
        r.mark()
        name, found = yield from r.text_until("\n", "<arg_key>", "</tool_call>")
        tool = name.strip()
        if tool not in p.names:
            p.content(marker + r.since_mark())
            return
        call = _Parameters(p, tool)
        while found != "</tool_call>":
            if found != "<arg_key>":
                yield from r.space()
                if not (yield from r.accept("<arg_key>")):
                    if not (yield from r.accept("</tool_call>")):
                        return
                    break
            key, _ = yield from r.text_until("</arg_key>")
            yield from r.space()
            yield from r.accept("<arg_value>")
            text, found = yield from r.text_until("</arg_value>")
            if not found:
                call.cut(key, text)
                return
            call.add(key, p.value(tool, key, text))
        call.end()

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        line = lark.gap("\n")
        key, end_key, value = map(lark.marker, self.tokens[1:4])

        def head(name: str, as_text: bool) -> str:
            return f"{key} {lark.text(name)} {end_key} {line} {value}"

        def call(tool: Tool) -> str:
            inside = self.parameters(lark, tool, head, "</arg_value>", behind=line)
            return f"{lark.text(tool.name)} {line} {inside}"

        calls = lark.either([call(tool) for tool in tools])
        one = f"{lark.marker('<tool_call>')} {calls} {lark.marker('</tool_call>')}"
        return lark.calls(one, line, parallel=parallel)


class Invocations(_TaggedFormat):
    """DSML, the tags of DeepSeek V3.2 on: one for the name, and one for each parameter, which says
    whether it is a string."""

    name = "deepseek dsml"
    calls_tools = True
    tells_texts = True
    begins = tuple(f"<{BAR}DSML{BAR}{each}>" for each in ("function_calls", "tool_calls"))
    tokens = (f"{BAR}DSML{BAR}",)
    _INVOKE = f'<{BAR}DSML{BAR}invoke name="'
    _END_INVOKE = f"</{BAR}DSML{BAR}invoke>"
    _PARAMETER = f'<{BAR}DSML{BAR}parameter name="'
    _END_PARAMETER = f"</{BAR}DSML{BAR}parameter>"

    def __init__(self, think: tuple[str, str] | None = None, *, is_newer: bool = False) -> None:
        """`is_newer`: the model writes the second of `begins`."""
        super().__init__(think)
        self._begin = self.begins[is_newer]

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        r = p.reader
        before = marker + (yield from r.space())
        while (yield from r.accept(self._INVOKE)):
            tool, found = yield from r.text_until('">')
            if tool not in p.names:
                p.content(before + self._INVOKE + tool + found)
                return
            before = ""
            call = _Parameters(p, tool)
            while True:
                yield from r.space()
                if not (yield from r.accept(self._PARAMETER)):
                    break
                key, _ = yield from r.text_until('"')
                attributes, _ = yield from r.text_until(">")
                text, found = yield from r.text_until(self._END_PARAMETER)
                if not found:
                    call.cut(key, text)
                    return
                if self.tells_texts:
                    as_text = 'string="true"' in attributes
                    call.add(key, text if as_text else p.value("", key, text))
                else:
                    call.add(key, p.value(tool, key, text))
            if not (yield from r.accept(self._END_INVOKE)):
                return
            call.end()
            yield from r.space()
        if before:
            p.content(before)
        else:
            yield from r.accept(marker.replace("<", "</"))

    def lazy(self, tools: Sequence[Tool], *, parallel: bool) -> LazyCalls:
        lark = self.lark(Lark(is_lazy=True), tools, parallel=parallel)
        return LazyCalls(lark, re.escape(self._begin), self._begin)

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        line = lark.gap("\n")

        def head(name: str, as_text: bool) -> str:
            told = f' string="{"true" if as_text else "false"}"' if self.tells_texts else ""
            return lark.text(f'{self._PARAMETER}{name}"{told}>')

        def call(tool: Tool) -> str:
            inside = self.parameters(lark, tool, head, self._END_PARAMETER, behind=line)
            name = lark.text(f'{self._INVOKE}{tool.name}">')
            return f"{name} {line} {inside} {lark.text(self._END_INVOKE)} {line}"

        one = lark.either([call(tool) for tool in tools])
        begin, end = map(lark.marker, (self._begin, self._begin.replace("<", "</")))
        return lark.start(f"{begin} {line} {one}{'+' if parallel else ''} {end}")


class MiniMaxCalls(Invocations):
    """The same tags with no more than names, between tags of MiniMax M2."""

    name = "minimax"
    tells_texts = False
    begins = ("<minimax:tool_call>",)
    tokens = ("</minimax:tool_call>",)
    _INVOKE = '<invoke name="'
    _END_INVOKE = "</invoke>"
    _PARAMETER = '<parameter name="'
    _END_PARAMETER = "</parameter>"
