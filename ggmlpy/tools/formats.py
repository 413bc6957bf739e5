"""The formats in which models reason and call tools: what they have in common.

A format reads an answer (`read`), tells which markers it has, some of which are control tokens that
answers would otherwise lack, and gives the grammar of answers that must call a tool. Formats with
arguments in JSON are in `json_formats.py`, others in `tagged_formats.py` and `written_formats.py`.
Facts are those of the models' templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ggmlpy.tools.answer import new_id
from ggmlpy.tools.definitions import Tool
from ggmlpy.tools.lark import Lark
from ggmlpy.tools.parsing import AnswerParser
from ggmlpy.tools.reader import Reading, parsed_json

NAME, ARGUMENTS, ID = "name", "arguments", "id"
BAR = "\uff5c"  # a wide bar, of which DeepSeek's markers are made
_KNOWN = {"name", "tool_name", "arguments", "parameters"}
_KNOWN |= {"id", "tool_call_id", "type", "function"}


@dataclass(frozen=True, slots=True)
class LazyCalls:
    """The grammar of the calls that begin with a trigger, see `LazyGrammar`."""

    lark: str  # see `with_tokens`
    trigger: str
    begin: str = ""  # of the grammar's texts, for which the trigger stands
    before: str = ""  # of a trigger, what prompts end with


class Format:
    """Text, with reasoning between two markers, and calls that begin with a marker."""

    name = "text"
    begins: tuple[str, ...] = ()  # markers that begin calls
    tokens: tuple[str, ...] = ()  # further markers, where they are control tokens
    calls_tools = False
    name_key = NAME  # of a call's name, where calls are objects
    keeps_ids = True  # whether calls have the ids that the model gives them

    def __init__(self, think: tuple[str, str] | None = None) -> None:
        """`think` are the markers around reasoning."""
        self.think = think

    @property
    def reasoning(self) -> tuple[str, str] | None:
        """The texts around reasoning; None: the format has none."""
        return self.think

    def new_id(self) -> str:
        """An id for a call, where the model has given none before its arguments."""
        return new_id()

    def description(self, functions: Sequence[Mapping[str, Any]]) -> str | None:
        """What tells a model of functions and how it calls them, where its template only writes
        calls; None: the format leaves all of it to templates."""
        return None

    def written(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Names and arguments of calls as an answer, for templates that write none."""
        return json.dumps({"tool_calls": call_objects(calls)}, ensure_ascii=False)

    def markers(self, *, with_calls: bool) -> list[str]:
        """Texts that a parser looks for, and that control tokens may be."""
        return [*(self.think or ()), *((*self.begins, *self.tokens) if with_calls else ())]

    def read(self, p: AnswerParser) -> Reading[None]:
        """Read an answer, and give what it has to the parser."""
        r = p.reader
        yield from self.read_reasoning(p)
        begins = self.begins if p.names else ()
        while marker := (yield from r.until(begins, p.content)):
            yield from self.read_calls(p, marker)

    def read_reasoning(self, p: AnswerParser) -> Reading[None]:
        """Read the reasoning, if the answer begins with that."""
        if self.think is None or p.shows_reasoning:
            return
        begin, end = self.think
        if p.thinks:
            yield from p.reasoning(end)
            return
        space = yield from p.reader.space()
        if (yield from p.reader.accept(begin)):
            yield from p.reasoning(end)
        else:
            p.content(space)

    def read_calls(self, p: AnswerParser, marker: str) -> Reading[None]:
        """Read the calls behind a marker."""
        p.content(marker)
        yield from ()

    def grammar(self, tools: Sequence[Tool], *, parallel: bool, thinks: bool) -> str:
        """The grammar of an answer that calls at least one of some tools, see `with_tokens`."""
        return self.lark(Lark(self.think, thinks), tools, parallel=parallel)

    def lark(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        """The same, written by `lark`."""
        raise NotImplementedError

    def lazy(self, tools: Sequence[Tool], *, parallel: bool) -> LazyCalls | None:
        """The grammar of calls in an answer that is free otherwise; None: the format has none."""
        if not self.begins:
            return None
        begin = self.begins[0]
        lark = self.lark(Lark(is_lazy=True), tools, parallel=parallel)
        return LazyCalls(lark, re.escape(begin), begin)

    # --- calls as JSON objects ---

    def read_object(
        self, p: AnswerParser, before: str, arguments: Sequence[str] = (ARGUMENTS, "parameters")
    ) -> Reading[bool]:
        """Read a call {"name": …, "arguments": …}; what is none, with the text `before` it, becomes
        content. Returns whether it is one."""
        r, n_before = p.reader, p.n_calls
        r.mark()
        is_call = yield from self._object(p, arguments)
        if p.n_calls == n_before:
            p.content(before + r.since_mark())
        return is_call

    def _object(self, p: AnswerParser, arguments: Sequence[str]) -> Reading[bool]:
        r = p.reader
        if not (yield from r.accept("{")):
            return False
        name: str | None = None
        id: str | None = None
        held: str | None = None  # arguments that came before the name
        is_open = False  # whether the call has begun
        while True:
            yield from r.space()
            key = yield from r.json_string()
            yield from r.space()
            if (key not in _KNOWN and not is_open) or not (yield from r.accept(":")):
                return False
            yield from r.space()
            if key in arguments and is_open and (yield from r.peek()) == "{":
                if not (yield from r.json(p.arguments)):
                    return False
                held = ""
            elif key in arguments:
                held = yield from r.json_text()
                if held is None:
                    return False
                held = _as_object(held)
                if is_open:
                    p.arguments(held)
            elif key == self.name_key:
                name = yield from r.json_string()
                if name not in p.names:
                    return False
            else:
                value = yield from r.json_text()
                if value is None:
                    return False
                id = _text_of(value) if key in (ID, "tool_call_id") and self.keeps_ids else id
            if name is not None and not is_open:
                is_open = True
                p.begin(name, id)
                p.arguments(held or "")
            yield from r.space()
            if (yield from r.accept("}")):
                break
            if not (yield from r.accept(",")):
                return False
        if not is_open:
            return False
        if held is None:
            p.arguments("{}")
        p.end_call()
        return True

    def read_array(self, p: AnswerParser, before: str) -> Reading[None]:
        """Read calls in a JSON array, whose bracket was read."""
        r = p.reader
        before += yield from r.space()
        while (yield from self.read_object(p, before)):
            before = ""
            yield from r.space()
            if not (yield from r.accept(",")):
                yield from r.accept("]")
                return
            yield from r.space()

    def read_named(self, p: AnswerParser, name: str, before: str, id: str = "") -> Reading[bool]:
        """Read the arguments of a call whose name was read; of no tool's name it is content."""
        if name not in p.names:
            p.content(before)
            return False
        p.begin(name, id or None)
        yield from p.reader.space()
        is_whole = yield from p.reader.json(p.arguments)
        if is_whole:
            p.end_call()
        return is_whole


def _as_object(arguments: str) -> str:
    """The JSON of arguments that may be missing, or encoded twice."""
    return "{}" if arguments == "null" else _text_of(arguments) or arguments


def call_objects(calls: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Names and arguments of calls as objects."""
    return [{NAME: name, ARGUMENTS: arguments} for name, arguments in calls]


def listed(functions: Sequence[Mapping[str, Any]]) -> str:
    """Functions as lines of JSON."""
    return "\n".join(json.dumps(each, ensure_ascii=False, default=dict) for each in functions)


def _text_of(value: str) -> str | None:
    """The text that a JSON string is; None if it is something else."""
    try:
        found = parsed_json(value)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
