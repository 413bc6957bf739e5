"""Text from files in messages: on one line, and nothing in it that would steer a terminal."""

from __future__ import annotations

import json

_QUOTED_CHARS = 100  # of a text in a message: a damaged file can hold names of any length


def printable(text: str) -> str:
    r"""The text on one line: `\n`, `\x1b`, `\udcff` for what a terminal must not be sent."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(text: str | bytes) -> str:
    """A text from a file in double quotes, on one line and of bounded length."""
    if isinstance(text, bytes):
        text = text[:_QUOTED_CHARS].decode(errors="backslashreplace")
    if len(text) > _QUOTED_CHARS:
        text = text[:_QUOTED_CHARS] + "…"
    return json.dumps(text, ensure_ascii=not text.isprintable())
