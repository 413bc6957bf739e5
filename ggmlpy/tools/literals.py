"""Literals of Python and of Gemma: strings, numbers, lists, objects.

Python's own parser would warn of escapes that it does not know, and has more than JSON can say.
"""

from __future__ import annotations

import math
import re
from typing import Any

_WORD = re.compile(r"""[^\s,:=()\[\]{}"']+""")
_NUMBER = re.compile(r"-?(\d+)(\.\d*)?([eE][+-]?\d+)?")
_CONSTANTS = {"true": True, "false": False, "null": None}
_CONSTANTS |= {"True": True, "False": False, "None": None}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}
_MAX_DEPTH = 100
_MAX_DIGITS = 300


class LiteralReader:
    """Reads literals one after another. Raises ValueError at what is none."""

    def __init__(self, text: str, quotes: tuple[str, ...]) -> None:
        """Strings stand between two of one of `quotes`; one of a single character has backslashes
        as escapes."""
        self.text = text
        self.at = 0
        self._quotes = quotes
        self._depth = 0

    @property
    def is_at_end(self) -> bool:
        """Whether nothing follows but white space."""
        self._skip_space()
        return self.at == len(self.text)

    def sees(self, text: str) -> bool:
        self._skip_space()
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        """Read this text if it is next."""
        seen = self.sees(text)
        self.at += len(text) * seen
        return seen

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise ValueError(f"{text} is missing")

    def word(self) -> str:
        """A name, or anything else without spaces, brackets and quotes."""
        self._skip_space()
        match = _WORD.match(self.text, self.at)
        if match is None:
            raise ValueError("a name is missing")
        self.at = match.end()
        return match[0]

    def pairs(self, separator: str, end: str) -> dict[str, Any]:
        """Names and values, up to `end`, which is read."""
        found = {}
        while not self.take(end):
            key = self._string() if self._quote() else self.word()
            self.expect(separator)
            found[key] = self.value()
            if not self.take(",") and not self.sees(end):
                raise ValueError(f"{end} is missing")
        return found

    def value(self) -> Any:
        if self._quote():
            return self._string()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        try:
            if self.take("{"):
                return self.pairs(":", "}")
            for opening in "[(":
                if self.take(opening):
                    return self._list(_CLOSING[opening])
        finally:
            self._depth -= 1
        return _scalar(self.word())

    def _list(self, end: str) -> list[Any]:
        found = []
        while not self.take(end):
            found.append(self.value())
            if not self.take(",") and not self.sees(end):
                raise ValueError(f"{end} is missing")
        return found

    def _quote(self) -> str:
        return next((quote for quote in self._quotes if self.sees(quote)), "")

    def _string(self) -> str:
        quote = self._quote()
        self.at += len(quote)
        parts: list[str] = []
        while not self.text.startswith(quote, self.at):
            if self.at >= len(self.text):
                raise ValueError("a string does not end")
            char = self.text[self.at]
            self.at += 1
            parts.append(self._escaped() if char == "\\" and len(quote) == 1 else char)
        self.at += len(quote)
        text = "".join(parts)  # \\u escapes of one character may be two halves
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _escaped(self) -> str:
        char = self.text[self.at : self.at + 1]
        n_digits = {"u": 4, "U": 8, "x": 2}.get(char, 0)
        digits = self.text[self.at + 1 : self.at + 1 + n_digits]
        self.at += 1 + n_digits
        if n_digits:
            if not re.fullmatch(f"[0-9a-fA-F]{{{n_digits}}}", digits):
                raise ValueError("an escape is wrong")
            return chr(int(digits, 16))
        return _ESCAPES.get(char, char)

    def _skip_space(self) -> None:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1


def _scalar(word: str) -> Any:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    match = _NUMBER.fullmatch(word)
    if match is None or len(match[1]) > _MAX_DIGITS:
        raise ValueError(f"{word} is no value")
    if not match[2] and not match[3]:
        return int(word)
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{word} is too large")
    return value
