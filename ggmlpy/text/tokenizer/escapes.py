"""Bytes that are not UTF-8 within a string: Python's "surrogateescape" characters."""

from __future__ import annotations

import re

ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def unescaped(text: str) -> str:
    """The text with U+FFFD for every byte that is not UTF-8."""
    return text if text.isascii() else ESCAPED_BYTE.sub("\ufffd", text)
