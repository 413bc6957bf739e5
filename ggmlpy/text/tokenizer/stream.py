"""From the bytes of tokens to text, all at once or token by token."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

_DECODER = codecs.getincrementaldecoder("utf-8")
_HALF_SURROGATES = {bytes([0xED, byte]) for byte in range(0xA0, 0xC0)}
"""Bytes that the codec keeps back, though a surrogate can never become a character."""
_SPACES = re.compile(r" (?=[?!.,]|(?: ' |')(?:s|m|re|ve))|( ' )(?![?!.,])")
"""Spaces that a tokenizer without spaces has put round signs, contractions and (1) quotes."""
_MAX_SPACES = 6  # characters that a match and its lookahead extend over


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
            text = self._without_spaces(self._kept + text, final)
        if self._strip_space and text:
            self._strip_space = False
            text = text.removeprefix(" ")
        return text

    def _without_spaces(self, text: str, final: bool) -> str:
        """Remove `_SPACES`; keeps the end back from a space where a match may yet begin."""
        undecided = -1 if final else text.find(" ", max(len(text) - _MAX_SPACES + 1, 0))
        cut = len(text) if undecided < 0 else undecided
        parts, at = [], 0
        for match in _SPACES.finditer(text):
            if match.start() >= cut:
                break
            parts += [text[at : match.start()], "'" if match[1] else ""]
            at = match.end()
        cut = max(cut, at)
        self._kept = text[cut:]
        return "".join([*parts, text[at:cut]])
