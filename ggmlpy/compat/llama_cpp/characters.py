"""Answers that end between characters: a limit of tokens does not cut one."""

from __future__ import annotations

import codecs
from collections.abc import Generator, Iterator
from dataclasses import replace

from ggmlpy.engine.generation import Piece
from ggmlpy.text.tokenizer import Tokenizer

MOST_MORE = 3
"""Tokens behind a limit: a character has four bytes at most, and a token one at least."""

_UTF8 = codecs.getincrementaldecoder("utf-8")


def whole_characters(
    pieces: Iterator[Piece], tokenizer: Tokenizer, n_predict: int
) -> Iterator[Piece]:
    """The pieces of an answer whose limit is `MOST_MORE` above `n_predict` tokens, ended behind
    `n_predict` of them or, if these end within a character, behind it.

    A character that is not completed is left out. `pieces` are closed where the answer ends.
    """
    decoder, utf8 = tokenizer.stream(start=False), _UTF8("replace")
    n, text, n_shown = 0, "", 0
    try:
        for piece in pieces:
            if piece.token is not None:
                n += 1
                spelt = decoder.spelt(piece.token)
                text += decoder.feed(spelt, final=False)
                utf8.decode(spelt)
            is_cut = bool(utf8.getstate()[0])
            if piece.finish_reason is not None:
                yield replace(piece, text=piece.text.removesuffix("\ufffd")) if is_cut else piece
                return
            if n >= n_predict and not is_cut:
                rest = (text + decoder.finish())[n_shown:]  # also what may begin a stop string
                yield replace(piece, text=rest, finish_reason="length")
                return
            n_shown += len(piece.text)
            yield piece
    finally:
        if isinstance(pieces, Generator):
            pieces.close()
