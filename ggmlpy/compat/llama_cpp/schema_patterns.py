"""Regular expressions of JSON schemas to GBNF, as what stands in a JSON string."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable
from typing import NoReturn

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import GrammarError

Ranges = list[tuple[int, int]]  # of code points, both ends included

_MOST = 0x10FFFF
_BREAKS: Ranges = [(10, 10), (13, 13)]
_CLASSES: dict[str, Ranges] = {
    "d": [(48, 57)],
    "w": [(48, 57), (65, 90), (95, 95), (97, 122)],
    "s": [(9, 13), (32, 32), (0xA0, 0xA0), (0x2028, 0x2029), (0xFEFF, 0xFEFF)],
}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}
_HEX = {"x": 2, "u": 4}
# What JSON writes as an escape, beside other control characters.
_ESCAPED = (*(ord(c) for c in '"\\'), 8, 9, 10, 12, 13)


def pattern_to_gbnf(pattern: str, *, dotall: bool, raw: bool) -> str:
    """The options of a rule for texts that a pattern matches as a whole: within the quotes of a
    JSON string, or with `raw` as they are. `dotall`: a dot is a line break too.

    Raises GrammarError for a pattern without ^ and $ at its ends, and for look-around,
    back-references, anchors inside and what is no regular expression.
    """
    if not re.fullmatch(r"\^(.*[^\\])?(\\\\)*\$", pattern, re.DOTALL):
        raise GrammarError(f"pattern {quoted(pattern)}: it must begin with ^ and end with $")
    return _Reader(pattern, dotall=dotall, raw=raw).options()


def text_in_gbnf(text: str) -> str:
    """A text in GBNF."""
    return f'"{"".join(_escape(ord(c)) for c in text)}"'


def _escape(code: int) -> str:
    """A character within quotes or brackets."""
    if chr(code) in '"\\':
        return f"\\{chr(code)}"
    if code < 32 or code == 127 or chr(code) in "[]-^":
        return f"\\x{code:02X}"
    return chr(code) if chr(code).isprintable() else f"\\U{code:08X}"


class _Reader:
    def __init__(self, pattern: str, *, dotall: bool, raw: bool) -> None:
        self._text = pattern[1:-1]
        self._at = 0
        self._dotall, self._raw = dotall, raw

    def options(self) -> str:
        """The whole pattern."""
        found = self._options()
        if self._at < len(self._text):
            self._fail("has a ) without (")
        return found

    def _fail(self, what: str) -> NoReturn:
        raise GrammarError(f"pattern {quoted(self._text)} {what}, at character {self._at}")

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._next()
        if not character:
            self._fail("ends too early")
        self._at += 1
        return character

    def _options(self) -> str:
        found = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            found.append(self._sequence())
        return " | ".join(found)

    def _sequence(self) -> str:
        items: list[str] = []
        was_text = False
        while self._next() not in ("", "|", ")"):
            item, quantifier = self._item(), self._quantifier()
            is_text = item[0] == '"' and not quantifier
            if is_text and was_text:
                items[-1] = items[-1][:-1] + item[1:]
            else:
                items.append(item + quantifier)
            was_text = is_text
        return " ".join(items) if items else '""'

    def _item(self) -> str:
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return self._chars(self._bracket())
        if character == ".":
            return self._chars(_without([(0, _MOST)], [] if self._dotall else _BREAKS))
        if character in "^$":
            self._fail(f"has {character} inside")
        if character in "*+?{":
            self._fail(f"has {character} with nothing before it to repeat")
        if character == "\\":
            return self._chars(self._escaped())
        return self._chars([(ord(character), ord(character))])

    def _group(self) -> str:
        if self._next() == "?":
            rest = self._text[self._at :]
            if not rest.startswith("?:"):
                self._fail("has look-around or another extension of groups")
            self._at += 2
        found = self._options()
        if self._next() != ")":
            self._fail("has a ( without )")
        self._at += 1
        return f"({found})"

    def _quantifier(self) -> str:
        character = self._next()
        if not character or character not in "*+?{":
            return ""
        self._at += 1
        found = character
        if character == "{":
            end = self._text.find("}", self._at)
            counts = self._text[self._at : max(end, self._at)].split(",")
            if end < 0 or len(counts) > 2 or not counts[0].isdecimal():
                self._fail("has { without counts")
            if counts[-1] and (not counts[-1].isdecimal() or int(counts[-1]) < int(counts[0])):
                self._fail("has { without counts")
            found = "{" + ",".join(counts) + "}"
            self._at = end + 1
        if self._next() == "?":  # as few as possible: the same texts
            self._at += 1
        return found

    def _escaped(self) -> Ranges:
        """The characters of what follows a backslash."""
        character = self._take()
        if character in _CLASSES:
            return _CLASSES[character]
        if character.lower() in _CLASSES:
            return _without([(0, _MOST)], _CLASSES[character.lower()])
        code = ord(character)
        if character in _CONTROLS:
            code = _CONTROLS[character]
        elif character in _HEX:
            digits = self._text[self._at : self._at + _HEX[character]]
            if len(digits) < _HEX[character] or set(digits) - set(string.hexdigits):
                self._fail(f"has \\{character} without its digits")
            code = int(digits, 16)
            self._at += _HEX[character]
        elif character.isalnum():
            self._fail(f"has \\{character}, which is not supported")
        return [(code, code)]

    def _bracket(self) -> Ranges:
        """The characters of a class, behind its [."""
        negated = self._next() == "^"
        self._at += negated
        found: Ranges = []
        while (character := self._take()) != "]":
            part = self._escaped() if character == "\\" else [(ord(character), ord(character))]
            first = part[0][0]
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                end = self._take()
                last = self._escaped() if end == "\\" else [(ord(end), ord(end))]
                if len(part) > 1 or len(last) > 1 or last[0][1] < first:
                    self._fail("has a range that is none")
                part = [(first, last[0][1])]
            found += part
        return _without([(0, _MOST)], found) if negated else found

    def _chars(self, ranges: Ranges) -> str:
        """One of these characters."""
        if self._raw:
            return _class(ranges)
        escapes = [code for code in _ESCAPED if any(a <= code <= b for a, b in ranges)]
        plain = _without(ranges, [(0, 31), (34, 34), (92, 92)])
        options = [_class(plain)] if plain else []
        options += [text_in_gbnf(json.dumps(chr(code))[1:-1]) for code in escapes]
        if not options:
            self._fail("has characters that a JSON string cannot have")
        return options[0] if len(options) == 1 else f"({' | '.join(options)})"


def _class(ranges: Ranges) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return text_in_gbnf(chr(ranges[0][0]))
    parts = ((_escape(a), _escape(b)) for a, b in ranges)
    return f"[{''.join(a if a == b else f'{a}-{b}' for a, b in parts)}]"


def _without(ranges: Ranges, others: Iterable[tuple[int, int]]) -> Ranges:
    """What of ranges is not in others."""
    for low, high in others:
        cut: Ranges = []
        for a, b in ranges:
            cut += [(a, min(b, low - 1))] if a < low else []
            cut += [(max(a, high + 1), b)] if b > high else []
        ranges = cut
    return ranges
