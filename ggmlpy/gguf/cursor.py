"""Reading a GGUF header. Every step is first checked against the end of the file.

A file can be long without content: a sparse file of 64 GB takes no space and reads as zeros. So
there are limits on everything before the tensors' data, far above the needs of models.
"""

from __future__ import annotations

import struct

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import GGUFError
from ggmlpy.gguf.part import Part

MAX_HEADER_BYTES = 1 << 28
"""Keys, values and tensor descriptions together. A vocabulary of 262,144 tokens, its merges and its
tokenizer.json take 50 MB."""
MAX_STEPS = 1 << 23
"""Strings in all arrays together: each is located by a step from the previous one. The vocabulary
above has 777,000 tokens and merges."""


class Cursor:
    """A position in a file; `at` describes what is read there, for messages."""

    __slots__ = ("_n_steps", "at", "end", "part", "pos", "view")

    def __init__(self, part: Part, pos: int = 0, at: str = "header") -> None:
        self.part = part
        self.view = part.view
        self.pos = pos
        self.end = min(len(self.view), MAX_HEADER_BYTES)
        self._n_steps = 0
        self.at = at

    def error(self, text: str) -> GGUFError:
        """An error in what is read here."""
        return GGUFError(f"{self.part.name}: {self.at} {text}")

    def skip(self, n_bytes: int) -> int:
        """Skip `n_bytes`, and return the position where they begin."""
        begin = self.pos
        if n_bytes > self.end - begin:
            ends = "the file ends" if self.end == len(self.view) else "a header must end"
            raise self.error(
                f"needs {n_bytes} bytes at position {begin}, but {ends} after {self.end} bytes"
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
        """Raise GGUFError if the file cannot hold `n` things of at least `n_bytes` each."""
        left = self.end - self.pos
        if n * n_bytes > left:
            where = "follow in the file" if self.end == len(self.view) else "are left of a header"
            raise self.error(
                f"counts {n} {what} of at least {n_bytes} bytes each, but only {left} bytes {where}"
            )

    def check_steps(self, n: int, n_bytes: int, what: str, cost: int = 1) -> None:
        """As `check_count`, for things that are located one by one, in `cost` steps each."""
        self.check_count(n, n_bytes, what)
        self._n_steps += n * cost
        if self._n_steps > MAX_STEPS:
            most = f"the most in a file's arrays, all together, are {MAX_STEPS // cost}"
            raise self.error(f"counts {n} {what}: {most}")
