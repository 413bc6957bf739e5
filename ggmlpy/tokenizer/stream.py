"""From the bytes of tokens to text, all at once or token by token."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

_DECODER = codecs.getincrementaldecoder("utf-8")


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
        return self._feed(self._piece(id), final=False)

    def finish(self) -> str:
        """The text that was kept back: nothing more will come."""
        return self._feed(b"", final=True)

    def _feed(self, spelt: bytes, final: bool) -> str:
        if self._strip_space and spelt:
            self._strip_space = False
            spelt = spelt.removeprefix(b" ")
        text = self._decoder.decode(spelt, final)
        if not self._clean_spaces:
            return text
        text = self._kept + text
        cut = len(text) if final else settled(text)
        self._kept = text[cut:]
        return clean_spaces(text[:cut])


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
