"""From the bytes of tokens to text, all at once or token by token."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

_DECODER = codecs.getincrementaldecoder("utf-8")
_HALF_SURROGATES = {bytes([0xED, byte]) for byte in range(0xA0, 0xC0)}
"""Bytes that the codec keeps back, though a surrogate can never become a character."""


class StreamDecoder:
    """Turns tokens into text as they come; made by `Tokenizer.stream`.

    A token may end in the middle of a character. What is not yet a whole character is kept back
    until it is, and what can never become one is U+FFFD at once. All that `push` and `finish` give,
    joined, is what `Tokenizer.decode` gives for the same tokens.
    """

    def __init__(
        self, piece: Callable[[int], bytes], *, strip_space: bool, clean_spaces: bool
    ) -> None:
        self._piece = piece
        self._strip_space = strip_space
        self._clean_spaces = clean_spaces
        self._decoder = _DECODER("replace")
        self._kept = ""  # complete characters that may yet change with those to come

    def push(self, id: int) -> str:
        """The text that the token `id` completes, often none."""
        return self.feed(self._piece(id), final=False)

    def finish(self) -> str:
        """The text that was kept back: nothing more will come."""
        return self.feed(b"", final=True)

    def feed(self, spelt: bytes, final: bool) -> str:
        """The text that these bytes complete; with `final`, all that is left too."""
        text = self._decoder.decode(spelt, final)
        if self._decoder.getstate()[0][:2] in _HALF_SURROGATES:
            text += self._decoder.decode(b"", True)
        if self._clean_spaces:
            text = self._kept + text
            cut = len(text) if final else settled(text)
            self._kept = text[cut:]
            text = clean_spaces(text[:cut])
        if self._strip_space and text:
            self._strip_space = False
            text = text.removeprefix(" ")
        return text


def clean_spaces(text: str) -> str:
    """Remove the spaces that a tokenizer without spaces has put round signs and contractions."""
    text = re.sub(r" (?=[?!.,])", "", text)
    text = text.replace(" ' ", "'")
    return re.sub(r" (?='(?:s|m|re|ve))", "", text)


def settled(text: str) -> int:
    """How much of `text` `clean_spaces` treats the same whatever follows it.

    Each of its patterns begins with a space, and only " ' " goes on beyond the next: up to a space
    that does not end such a pattern, no more text can matter.
    """
    cut = text.rfind(" ")
    while cut > 0 and text[max(cut - 2, 0) : cut] == " '":
        cut = text.rfind(" ", 0, cut)
    return max(cut, 0)
