"""Text from files in messages: on one line, without control characters."""

from __future__ import annotations

import json
from collections.abc import Sequence

_QUOTED_CHARS = 100  # in a message: names in a damaged file can have any length
_N_NAMED = 5  # of a list in a message


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


def quoted_list(names: Sequence[str]) -> str:
    """The first of many names: `"a", "b" and 3 more`."""
    more = f" and {len(names) - _N_NAMED} more" if len(names) > _N_NAMED else ""
    return f"{', '.join(map(quoted, names[:_N_NAMED]))}{more}"
