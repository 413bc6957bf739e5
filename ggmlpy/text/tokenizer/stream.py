"""The bytes of tokens to text, at once or token by token."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

_DECODER = codecs.getincrementaldecoder("utf-8")
_HALF_SURROGATES = {bytes([0xED, byte]) for byte in range(0xA0, 0xC0)}
"""Bytes that the codec holds back, although a surrogate can never become a character."""
_SPACES = re.compile(r" (?=[?!.,]|(?: ' |')(?:s|m|re|ve))|( ' )(?![?!.,])")
"""Spaces that a tokenizer without spaces puts around signs, contractions and (1) quotes."""
_MAX_SPACES = 6  # characters that a match and its lookahead extend over


class StreamDecoder:
    """Decodes tokens one by one; made by `Tokenizer.stream`.

    A token may end in the middle of a character. An incomplete character is held back until it is
    complete, and an invalid one is U+FFFD at once. The results of `push` and `finish`, joined, are
    what `Tokenizer.decode` returns for the same tokens.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        *,
        strip_token: bool = False,
        strip_text: bool = False,
        clean_spaces: bool = False,
    ) -> None:
        """`strip_token` removes a space at the beginning of the first token, `strip_text` at the
        beginning of the text, `clean_spaces` those before signs and contractions.
        """
        self._piece = piece
        self._strip_token = strip_token
        self._strip_text = strip_text
        self._clean_spaces = clean_spaces
        self._decoder = _DECODER("replace")
        self._kept = ""  # complete characters that later ones may change

    def push(self, id: int) -> str:
        """The text that the token `id` completes, which may be empty."""
        return self.feed(self.spelt(id), final=False)

    def finish(self) -> str:
        """End the text, and return what was held back."""
        return self.feed(b"", final=True)

    def spelt(self, id: int) -> bytes:
        """The bytes of the next token, less a space at the beginning of the text."""
        spelt = self._piece(id)
        if self._strip_token:
            self._strip_token = False
            return spelt.removeprefix(b" ")
        return spelt

    def feed(self, spelt: bytes, final: bool) -> str:
        """The text that these bytes complete; with `final`, also what was held back."""
        text = self._decoder.decode(spelt, final)
        if self._decoder.getstate()[0][:2] in _HALF_SURROGATES:
            text += self._decoder.decode(b"", True)
        if self._clean_spaces:
            text = self._without_spaces(self._kept + text, final)
        if self._strip_text and text:
            self._strip_text = False
            text = text.removeprefix(" ")
        return text

    def _without_spaces(self, text: str, final: bool) -> str:
        """Remove `_SPACES`, and hold back the end from a space at which a match may begin."""
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
