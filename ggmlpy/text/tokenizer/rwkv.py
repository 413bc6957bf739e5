"""RWKV's vocabularies: tokens are bytes, and the longest one that matches is taken."""

from __future__ import annotations

import re

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer.keys import Keys
from ggmlpy.text.tokenizer.pieces import Beginnings
from ggmlpy.text.tokenizer.special import TokenType
from ggmlpy.text.tokenizer.vocabulary import Vocabulary

_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|([^x]))", re.DOTALL)
_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}
_UNMATCHED = frozenset(map(int, (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)))


class LongestBytes:
    """Encodes text by an RWKV vocabulary.

    Text never gives a control, unknown or unused token: the original vocabulary has none of their
    texts.
    """

    raw_bytes = True

    def __init__(self, vocab: Vocabulary) -> None:
        self._where = vocab.keys.where
        self._unk_id = vocab.declared_ids.get("unk")
        self._ids = {
            spell_escaped(text, vocab.keys): id
            for id, (text, type) in enumerate(zip(vocab.texts, vocab.types, strict=True))
            if type not in _UNMATCHED and text
        }
        self._beginnings = Beginnings(self._ids)

    def encode(self, text: str) -> list[int]:
        data = text.encode(errors="surrogateescape")
        ids: list[int] = []
        at = 0
        while at < len(data):
            for length in self._beginnings.lengths(data, at):
                id = self._ids.get(data[at : at + length])
                if id is not None:
                    break
            else:
                id, length = self._unknown(data[at]), 1
            ids.append(id)
            at += length
        return ids

    def _unknown(self, byte: int) -> int:
        if self._unk_id is not None:
            return self._unk_id
        raise TokenizerError(
            f"{self._where}the vocabulary has no token for the byte 0x{byte:02X} and none for "
            "unknown text"
        )


def spell_escaped(text: str, keys: Keys) -> bytes:
    r"""The bytes of a token, which are stored as in a Python literal: "\xff", "\n", "\\"."""
    data = text.encode(errors="surrogateescape")
    if b"\\" not in data:
        return data
    if b"\\" in _ESCAPE.sub(b"", data):
        raise keys.error("tokens", f"holds {quoted(text)}, which ends within an escaped byte")
    return _ESCAPE.sub(_unescape, data)


def _unescape(match: re.Match[bytes]) -> bytes:
    digits, char = match.groups()
    return bytes.fromhex(digits.decode()) if digits else _LETTERS.get(char, char)
