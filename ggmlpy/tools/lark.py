"""Grammars of answers that must call a tool, and of calls that may come, in llguidance's Lark."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ggmlpy.tools.bare_texts import terminal_of
from ggmlpy.tools.definitions import NOTES, SHARED, Tool

# As models are trained to write it: with other white space allowed, some write nothing else.
_SPELLING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_GAP = r" |\n{1,2}[ \t]{0,20}"
_FREE_SPELLING = {"whitespace_pattern": _GAP}
_JSON_PART = re.compile(r"\"(?:[^\"\\]|\\.)*\"|[^\s]")
_LIST = {"type", "items", "minItems", "maxItems", *NOTES, *SHARED}  # of a list's schema
_MOST_IN_ANY_ORDER = 6  # parts, which make up to 64 rules
_OPENING, _CLOSING = "{[,:", "}],:"  # what white space may stand behind, and before


class Lark:
    """A grammar that is written part by part. Markers stand in it as `@"…"@`: the vocabulary says
    which of them are tokens (`with_tokens`)."""

    def __init__(
        self, think: tuple[str, str] | None = None, thinks: bool = False, *, is_lazy: bool = False
    ) -> None:
        """`think` are the markers of reasoning that an answer may begin with, or within which it
        begins. A lazy grammar has one block of calls, with white space as models vary it, and any
        text behind that: an answer is free there, from within the last token of the block on."""
        self.is_lazy = is_lazy
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

    @property
    def free(self) -> str:
        """White space that models are not trained to write, but may."""
        return "GAP?" if self.is_lazy else ""

    def gap(self, text: str) -> str:
        """White space as models are trained to write it."""
        return "GAP?" if self.is_lazy else self.text(text)

    def spelled(self, json: str) -> str:
        """A part of a JSON text as models are trained to write it."""
        if not self.is_lazy:
            return self.text(json)
        parts = []
        for part in _JSON_PART.findall(json):
            before = "GAP? " if part in _CLOSING else ""
            behind = " GAP?" if part in _OPENING else ""
            parts.append(f"{before}{self.text(part)}{behind}")
        return " ".join(parts)

    def json(self, tool: Tool) -> str:
        """The arguments of a tool as a JSON object."""
        return self.value(tool.schema) if self.is_lazy else self.schema(tool.schema)

    def schema(self, schema: Any) -> str:
        """JSON that a schema describes."""
        spelling = _FREE_SPELLING if self.is_lazy else _SPELLING
        given = schema if isinstance(schema, Mapping) else {"allOf": [schema]}
        return f"%json {json.dumps({**given, 'x-guidance': spelling}, default=dict)}"

    def value(self, schema: Any) -> str:
        """The value of one parameter in JSON, as a rule."""
        free = self.is_lazy
        return self.rule(self.nested(schema, self.schema) if free else self.schema(schema))

    def nested(
        self, schema: Any, leaf: Callable[[Any], str], key: Callable[[str], str] | None = None
    ) -> str:
        """A value by its schema: lists, and objects whose names `key` writes, else JSON, down to
        values that `leaf` writes."""
        type = schema.get("type") if isinstance(schema, Mapping) else None
        if type not in ("array", "object"):
            return leaf(schema)

        def value(schema: Any) -> str:
            return self.nested(schema, leaf, key)

        inner = Tool("", schema, {})
        has_properties = isinstance(schema.get("properties"), Mapping)
        if type == "object" and has_properties and inner.has_properties_only:
            inside = self.pairs(inner, ":", ",", value, key or self._key)
        elif type == "array" and "items" in schema and schema.keys() <= _LIST:
            low, high = schema.get("minItems", 0), schema.get("maxItems", sys.maxsize)
            if not isinstance(low, int) or not isinstance(high, int) or not 0 <= low <= high:
                return leaf(schema)
            item = self.rule(value(inner.with_shared(schema["items"])))
            inside = self.repeated(item, ",", low, high)
        else:
            return leaf(schema)
        begin, end = map(self.text, "[]" if type == "array" else "{}")
        return f"{begin} {self.free} {inside} {self.free} {end}"

    def _key(self, name: str) -> str:
        return self.text(json.dumps(name))

    def object(self, tool: Tool, arguments: str = "arguments", end: str | None = None) -> str:
        """A call as an object. Its arguments are JSON of their own, in which a reference of the
        schema finds what it names."""
        head = self.spelled(f'{{"name": {json.dumps(tool.name)}, "{arguments}": ')
        return f"{head} {self.json(tool)} {self.spelled('}') if end is None else end}"

    def either(self, parts: Sequence[str]) -> str:
        """One of some parts."""
        return self.rule(" | ".join(self.rule(part) for part in parts))

    def pairs(
        self,
        tool: Tool,
        equals: str,
        separator: str,
        value: Callable[[Any], str],
        key: Callable[[str], str] | None = None,
    ) -> str:
        """The parameters of a tool, of which some may be left out: see `any_of`.

        `value` writes values by their schemas, `key` the names, if not as they are.
        """
        key = key or self.text
        pairs = [
            f"{key(name)} {self.free} {self.text(equals)} {self.free} {value(schema)}"
            for name, schema in tool.properties.items()
        ]
        if self.is_lazy:
            separator = separator.strip()
        between = f"{self.free} {self.text(separator)} {self.free}"
        return self.any_of(list(tool.properties), pairs, tool.required, between)

    def repeated(self, item: str, separator: str, low: int, high: int) -> str:
        """From `low` to `high` items, any number for sys.maxsize."""
        if high == 0:
            return ""
        most = high - 1 if high < sys.maxsize else ""
        between = f"{self.free} {self.text(separator)} {self.free}"
        body = f"{item} ({between} {item}){{{max(low - 1, 0)},{most}}}"
        return self.rule(body if low else f"({body})?")

    def any_of(
        self, names: Sequence[str], parts: Sequence[str], required: Collection[str], between: str
    ) -> str:
        """Named parts, with something between two of them, without those that are not required or
        with them: in their order, and where models write as they like in any order.
        """
        parts = [self.rule(part) for part in parts]
        needed = frozenset(i for i, name in enumerate(names) if name in required)
        if self.is_lazy and len(parts) <= _MOST_IN_ANY_ORDER:
            return self._in_any_order(parts, frozenset(range(len(parts))), needed, between, {})
        if self.is_lazy and len(needed) <= _MOST_IN_ANY_ORDER:
            others = [part for i, part in enumerate(parts) if i not in needed]
            return self._among_others(parts, others, needed, between, {}, is_first=True)
        alone = ""  # what may come from a parameter on, where none stands before it
        behind = ""  # the same behind others
        for name, part in reversed(list(zip(names, parts, strict=True))):
            one = f"{between} {part}"
            if name in required:
                alone, behind = f"{part} {behind}", f"{one} {behind}"
            else:
                rest = f" | {alone}" if alone else ""
                alone, behind = f"({part} {behind}{rest})", f"({one})? {behind}"
                alone = alone if rest else f"{alone}?"
        return alone

    def _in_any_order(
        self,
        parts: Sequence[str],
        left: frozenset[int],
        needed: frozenset[int],
        between: str,
        made: dict[frozenset[int], str],
    ) -> str:
        """The parts that are `left`, each once at most; `made` has the rules by what is left."""
        if not left:
            return ""
        if left not in made:
            first = between if len(left) < len(parts) else ""
            ways = []
            for i in sorted(left):
                rest = self._in_any_order(parts, left - {i}, needed, between, made)
                ways.append(f"{first} {parts[i]} {rest}")
            body = " | ".join(ways)
            made[left] = self.rule(body if left & needed else f"({body})?")
        return made[left]

    def _among_others(
        self,
        parts: Sequence[str],
        others: Sequence[str],
        left: frozenset[int],
        between: str,
        made: dict[tuple[frozenset[int], bool], str],
        *,
        is_first: bool = False,
    ) -> str:
        """The parts that are `left` in any order, and `others` anywhere, as often as the model
        likes; `made` has the rules by what is left, and by whether nothing stands before."""
        if (left, is_first) not in made:
            n = len(self._rules)
            made[left, is_first] = self.rule("")
            ways = [(part, left) for part in others]
            ways += [(parts[i], left - {i}) for i in sorted(left)]
            body = " | ".join(
                f"{'' if is_first else between} {part}"
                f" {self._among_others(parts, others, rest, between, made)}"
                for part, rest in ways
            )
            self._rules[n] += body if left else f"({body})?"
        return made[left, is_first]

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
        if self.is_lazy:
            return self.start(call)
        rest = f"({between} {call})*" if between else f"{call}*"
        return self.start(f"{call} {rest}" if parallel else call)

    def start(self, body: str) -> str:
        """The whole grammar."""
        rules = list(self._rules)
        if self.is_lazy:
            body = f"{body} REST?"
            rules += [f"GAP: /{_GAP}/", "REST: /(?s:.+)/"]
        if self._think is not None:
            open, close = self._think
            begin = "" if self._thinks else f"{self.marker(open)} "
            rules.append(f"thinking: {begin}{self.until(close)} SPACE?")
            rules.append("SPACE: /[ \\n]+/")
            body = f"thinking{'' if self._thinks else '?'} {body}"
        return "\n".join([f"start: {body}", *rules, *self._texts])

    def until(self, marker: str, schema: Any = None) -> str:
        """Any text, or any that the schema of a string allows, and the marker behind it."""
        n, mark = len(self._texts), json.dumps(marker, ensure_ascii=False)
        terminal = None if schema is None else terminal_of(schema)
        text = ""
        if terminal is not None:
            text = f" TEXT{n}"
            self.add(text.strip(), f"{terminal} & ~(/(?s:.*)/ {mark} /(?s:.*)/)")
        self._texts.append(f"until{n}: @until {mark}{text}@")
        return f"until{n}"


def with_tokens(grammar: str, token_of: Callable[[str], int | None]) -> str:
    """The grammar for a vocabulary: markers that are one token are that token, others its texts.

    `token_of` gives the token of a text that is exactly one, if answers lack its text.
    """

    def text_until(found: re.Match[str]) -> str:
        token, text = token_of(json.loads(found[2])), found[3] or "/(?s:.*)/"
        if token is None:
            return f"{found[1]}[suffix={found[2]}]: {text}"
        return f"{found[1]}: {text} <[{token}]>"

    def marker(found: re.Match[str]) -> str:
        token = token_of(json.loads(found[1]))
        return found[1] if token is None else f"<[{token}]>"

    quoted = r"(\"(?:[^\"\\]|\\.)*\")"
    grammar = re.sub(rf"^(\w+): @until {quoted}( \w+)?@$", text_until, grammar, flags=re.M)
    return re.sub(f"@{quoted}@", marker, grammar)
