"""Bytes within strings: Python's "surrogateescape" characters, and the texts of byte tokens."""

from __future__ import annotations

import re

ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def unescaped(text: str) -> str:
    """The text with U+FFFD for every byte that is not UTF-8."""
    return text if text.isascii() else ESCAPED_BYTE.sub("\ufffd", text)


def byte_token(text: str) -> bytes | None:
    """The byte of a byte token such as "<0x0A>"."""
    match = _BYTE_TOKEN.fullmatch(text)
    return bytes.fromhex(match[1]) if match else None
