"""Text from files in messages: on one line, without control characters."""

from __future__ import annotations

import json

_QUOTED_CHARS = 100  # in a message: names in a damaged file can have any length


def printable(text: str) -> str:
    r"""The text on one line, with control characters escaped as `\n`, `\x1b`, `\udcff`."""
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
