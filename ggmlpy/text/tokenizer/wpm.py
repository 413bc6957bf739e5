"""WPM vocabularies: BERT's WordPiece, with llama.cpp's normalisation.

BERT marks the pieces that continue a word ("##ing"); GGUF marks those that begin one ("▁sing") and
stores the others without a mark. A word is "▁" and its characters, from whose beginning the longest
piece is taken again and again.

Normalisation follows llama.cpp, so that embeddings agree with its: where accents are stripped, a
character becomes the first one of its decomposition (a Hangul syllable its first consonant) and
marks of every category are dropped, where BERT drops non-spacing marks only and keeps all of a
syllable. A word may have any length; BERT's are unknown beyond 100 characters.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer.blocks import WORD_END, blocks
from ggmlpy.text.tokenizer.merging import MAX_CACHED, MAX_CACHED_CHARS
from ggmlpy.text.tokenizer.vocabulary import Vocabulary

_SPACE = "\u2581"
_REPLACEMENT = "\ufffd"
_CJK = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),  # from 0x2B820 in BERT; 0x2B920 in `tokenizers` and llama.cpp
    (0x2F800, 0x2FA1F),
)
"""Ideographs, each of which is a word."""


class WordPieces:
    """Encodes text by a WPM vocabulary; a word that is no sequence of pieces is unknown."""

    raw_bytes = False

    def __init__(self, vocab: Vocabulary) -> None:
        unk = vocab.declared_ids.get("unk")
        if unk is None:
            raise TokenizerError(
                f"{vocab.keys.where}tokenizer.ggml.unknown_token_id is missing: "
                "words that are not in the vocabulary need it"
            )
        self._unk = unk
        self._lowercase = vocab.keys.flag("normalizer.lowercase", True)
        self._strip = vocab.keys.flag("normalizer.strip_accents", self._lowercase)
        self._ids = vocab.ids
        self._max_chars = max(map(len, vocab.ids), default=0)
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for block in blocks(text, WORD_END):
            # A space on both sides of a character that is a word makes str.split do the rest.
            shown = [_normalised(char, self._lowercase, self._strip) for char in block]
            for word in "".join(shown).split(" "):
                if word:
                    cached = self._cache.get(word)
                    ids += self._encode_word(word) if cached is None else cached
        return ids

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        text, at = _SPACE + word, 0
        while at < len(text):
            for end in range(min(len(text), at + self._max_chars), at, -1):
                id = self._ids.get(text[at:end])
                if id is not None:
                    ids.append(id)
                    at = end
                    break
            else:
                ids = [self._unk]
                break
        if len(word) <= MAX_CACHED_CHARS:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[word] = ids
        return ids


@lru_cache(maxsize=MAX_CACHED)
def _normalised(char: str, lowercase: bool, strip_accents: bool) -> str:
    """What a character of a text becomes: a part of a word, " ", nothing, or a word of its own."""
    if strip_accents:
        char = unicodedata.normalize("NFD", char)[0]
    category = unicodedata.category(char)
    if (char.isspace() and category != "Cc") or char in "\t\n\v\f\r\x85":
        return " "
    if char == _REPLACEMENT or category in ("Cc", "Cf", "Co", "Cs"):
        return ""
    if strip_accents and category[0] == "M":
        return ""
    shown = lowered(char) if lowercase else char
    is_word = category[0] == "P" or (category[0] == "S" and char.isascii()) or _is_cjk(char)
    return f" {shown} " if is_word else shown


def lowered(char: str) -> str:
    """The character in lower case, which is one character in Unicode's simple mapping."""
    return char.lower()[0]


def _is_cjk(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in _CJK)
