"""Stepping through a GGUF header. Every step is checked against the end of the file first."""

from __future__ import annotations

import json
import struct

from ggmlpy.errors import GGUFError
from ggmlpy.gguf_file.part import Part

_QUOTED_CHARS = 100  # of a name in a message: a damaged file can hold names of any length


class Cursor:
    """A position in a file; `at` says what is being read there, for messages."""

    __slots__ = ("at", "end", "part", "pos", "view")

    def __init__(self, part: Part, pos: int = 0, at: str = "header") -> None:
        self.part = part
        self.view = part.view
        self.pos = pos
        self.end = len(self.view)
        self.at = at

    def error(self, text: str) -> GGUFError:
        """The error to raise for what is read here."""
        return GGUFError(f"{self.part.name}: {self.at} {text}")

    def skip(self, n_bytes: int) -> int:
        """Step over `n_bytes`; gives the position where they begin."""
        begin = self.pos
        if n_bytes > self.end - begin:
            raise self.error(
                f"needs {n_bytes} bytes at position {begin}, "
                f"but the file ends after {self.end} bytes"
            )
        self.pos = begin + n_bytes
        return begin

    def number(self, code: str) -> int | float:
        """One number; `code` is its letter in the `struct` module."""
        layout = self.part.prefix + code
        begin = self.skip(struct.calcsize(layout))
        value: int | float = struct.unpack_from(layout, self.view, begin)[0]
        return value

    def u32(self) -> int:
        return int(self.number("I"))

    def u64(self) -> int:
        return int(self.number("Q"))

    def string(self) -> bytes:
        """A string: its length in bytes as u64, then the bytes."""
        n_bytes = self.u64()
        begin = self.skip(n_bytes)
        return bytes(self.view[begin : begin + n_bytes])

    def text(self, max_bytes: int) -> str:
        """A string that must be UTF-8 of at most `max_bytes`: a key, or a tensor's name."""
        begin = self.pos
        raw = self.string()
        if len(raw) > max_bytes:
            raise self.error(
                f"has a name of {len(raw)} bytes at position {begin}, the most is {max_bytes}"
            )
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(
                f"has a name that is not UTF-8 at position {begin}: {quoted(raw)}"
            ) from error

    def check_count(self, n: int, n_bytes: int, what: str) -> None:
        """Refuse a count of `n` things of at least `n_bytes` each that the file cannot hold."""
        left = self.end - self.pos
        if n * n_bytes > left:
            raise self.error(
                f"counts {n} {what} of at least {n_bytes} bytes each, "
                f"but only {left} bytes follow in the file"
            )


def quoted(text: str | bytes) -> str:
    """A name from a file in double quotes, on one line and of bounded length."""
    if isinstance(text, bytes):
        text = text[:_QUOTED_CHARS].decode(errors="backslashreplace")
    if len(text) > _QUOTED_CHARS:
        text = text[:_QUOTED_CHARS] + "…"
    return json.dumps(text, ensure_ascii=not text.isprintable())
