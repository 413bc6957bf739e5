"""Reading a text that comes in pieces.

Parsers are generators: where they need more of the text they yield, and go on once it is there. So
they read as if the text were whole, and what they find does not depend on how it was cut.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
Emit = Callable[[str], None]

SPACE = " \t\r\n"
_OPEN, _CLOSE = "{[", "}]"


class Reader:
    """What has come of a text and was not read yet."""

    def __init__(self) -> None:
        self.rest = ""
        self.is_ended = False  # whether nothing more comes
        self._read: list[str] = []  # since `mark`

    def mark(self) -> None:
        """From here on, remember what is read."""
        self._read = []

    def since_mark(self) -> str:
        """What was read since `mark`."""
        return "".join(self._read)

    def take(self, n: int) -> str:
        """Read the next `n` characters, which are there."""
        head, self.rest = self.rest[:n], self.rest[n:]
        self._read.append(head)
        return head

    def peek(self) -> Reading[str]:
        """The next character, "" at the end of the text. It is not read."""
        while not self.rest and not self.is_ended:
            yield
        return self.rest[:1]

    def accept(self, text: str) -> Reading[bool]:
        """Read `text` if it comes next."""
        while not self.rest.startswith(text):
            if self.is_ended or not text.startswith(self.rest):
                return False
            yield
        self.take(len(text))
        return True

    def space(self) -> Reading[str]:
        """Read white space."""
        found = ""
        while (yield from self.peek()) and self.rest[0] in SPACE:
            n = len(self.rest) - len(self.rest.lstrip(SPACE))
            found += self.take(n)
        return found

    def until(self, markers: Sequence[str], emit: Emit) -> Reading[str]:
        """Hand the text before the first of some markers to `emit` as it comes, and read that.

        Returns the marker, "" if the text ends without one.
        """
        while True:
            at, marker, is_whole = self._first(markers)
            if at:
                emit(self.take(at))
            if is_whole:
                self.take(len(marker))
                return marker
            if self.is_ended:
                return ""
            yield

    def _first(self, markers: Sequence[str]) -> tuple[int, str, bool]:
        """Where the first marker begins, which one, and whether all of it is there. If none does,
        the end of the text. The longest of those at one place, once it can be known."""
        found = []
        for marker in markers:
            at = self.rest.find(marker)
            if at >= 0:
                found.append((at, -len(marker), marker, True))
            if not self.is_ended:
                found += [(at, -len(marker), marker, False) for at in self._beginnings(marker)]
        at, _, marker, is_whole = min(found, default=(len(self.rest), 0, "", False))
        return at, marker, is_whole

    def _beginnings(self, marker: str) -> list[int]:
        """Where the end of the text may be the beginning of a marker, at the first place."""
        n = len(self.rest)
        for at in range(max(0, n - len(marker) + 1), n):
            if marker.startswith(self.rest[at:]):
                return [at]
        return []

    def text_until(self, *markers: str) -> Reading[tuple[str, str]]:
        """The text before the first of some markers, and the marker, see `until`."""
        parts: list[str] = []
        marker = yield from self.until(markers, parts.append)
        return "".join(parts), marker

    def json(self, emit: Emit) -> Reading[bool]:
        """Hand a JSON value to `emit` as it comes. Returns whether it is there to its end.

        The brackets and strings are followed; whether all else is JSON is not checked.
        """
        first = yield from self.peek()
        if first not in (*_OPEN, '"'):
            return (yield from self._scalar(emit))
        depth, in_string, escapes = 0, False, False
        while True:
            for i, c in enumerate(self.rest):
                if escapes:
                    escapes = False
                elif in_string:
                    escapes, in_string = c == "\\", c != '"'
                else:
                    in_string = c == '"'
                    depth += (c in _OPEN) - (c in _CLOSE)
                if depth == 0 and not in_string:
                    emit(self.take(i + 1))
                    return True
            if self.rest:
                emit(self.take(len(self.rest)))
            if self.is_ended:
                return False
            yield

    def _scalar(self, emit: Emit) -> Reading[bool]:
        """A number, true, false or null."""
        found = ""
        while (yield from self.peek()) and (self.rest[0].isalnum() or self.rest[0] in "+-."):
            found += self.take(1)
        if not found:
            return False
        emit(found)
        return True

    def json_text(self) -> Reading[str | None]:
        """A JSON value as it is written; None where there is none."""
        parts: list[str] = []
        is_whole = yield from self.json(parts.append)
        return "".join(parts) if is_whole else None

    def json_string(self) -> Reading[str | None]:
        """A JSON string, decoded; None where there is none."""
        if (yield from self.peek()) != '"':
            return None
        text = yield from self.json_text()
        try:
            return None if text is None else str(json.loads(text, strict=False))
        except ValueError:
            return None

    def json_characters(self, emit: Emit) -> Reading[None]:
        """Hand the characters of a JSON string, whose first quote was read, to `emit` as they
        come."""
        while True:
            found = re.search(r'["\\\\]', self.rest)
            n = len(self.rest) if found is None else found.start()
            if n:
                emit(self.take(n))
            if found is None:
                if self.is_ended:
                    return
                yield
                continue
            if self.rest[0] == '"':
                self.take(1)
                return
            emit((yield from self._escaped()))

    def _escaped(self) -> Reading[str]:
        """Read an escape sequence; both halves of a surrogate pair."""
        yield from self._wait(2)
        n = 2
        if self.rest[1:2] == "u":
            yield from self._wait(6)
            n = 6
            if self.rest[2:4].lower() in ("d8", "d9", "da", "db"):
                yield from self._wait(12)
                n = 12 if self.rest[6:8] == "\\u" else 6
        text = self.take(n)
        try:
            char = str(json.loads(f'"{text}"'))
        except ValueError:
            return text
        return char.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _wait(self, n: int) -> Reading[None]:
        """Wait until `n` characters are there, or the text has ended."""
        while len(self.rest) < n and not self.is_ended:
            yield


def parsed_json(text: str) -> Any:
    """The value of JSON. Raises ValueError also for what Python takes beside it, and for deep
    nesting."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of JSON")
    return value
