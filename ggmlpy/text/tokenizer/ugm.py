"""UGM vocabularies: SentencePiece's unigram model, as T5, XLM-R and their descendants have it.

The tokens of a text are those whose scores have the greatest sum. The `tokenizers` library has this
model, but takes the score of unknown text from all tokens, also unused ones (T5's files have some
of -10,000), and replaces characters by grapheme. Both change tokens, so they are done here.

A sum is found per word, a text from ▁ to the next one, if no token goes across.
"""

from __future__ import annotations

import math

import numpy as np

from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer.blocks import blocks
from ggmlpy.text.tokenizer.charsmap import Charsmap
from ggmlpy.text.tokenizer.escapes import unescaped
from ggmlpy.text.tokenizer.merging import MAX_CACHED, MAX_CACHED_CHARS
from ggmlpy.text.tokenizer.pieces import Beginnings
from ggmlpy.text.tokenizer.special import TokenType
from ggmlpy.text.tokenizer.spm import word_pattern
from ggmlpy.text.tokenizer.vocabulary import Vocabulary

_SPACE = "\u2581"
_UNKNOWN_PENALTY = 10.0
_MATCHED = frozenset(map(int, (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)))


class Unigrams:
    """Encodes text by a UGM vocabulary.

    Characters without a token are unknown, at the lowest score less 10; a sequence of them is one
    token. Bytes that are not UTF-8 become U+FFFD after the normalisation, which may replace that.
    """

    raw_bytes = True

    def __init__(self, vocab: Vocabulary, add_space_prefix: bool) -> None:
        self._where = vocab.keys.where
        self._charsmap = Charsmap.from_keys(vocab.keys)
        self._merge_spaces = vocab.keys.flag("remove_extra_whitespaces", False)
        self._add_space_prefix = add_space_prefix
        self._unk_id = vocab.declared_ids.get("unk")
        self._pieces: dict[str, tuple[int, float]] = {}
        lowest = math.inf
        for id, (text, type, score) in enumerate(
            zip(vocab.texts, vocab.types, vocab.scores, strict=True)
        ):
            if type not in _MATCHED or not text:
                continue
            if math.isinf(score):
                raise vocab.keys.error("scores", f"is infinite at {id}")
            if type == TokenType.NORMAL:
                lowest = min(lowest, score)
            self._pieces[text] = id, 0.0 if type == TokenType.USER_DEFINED else score
        # In f32, as in llama.cpp; sums are f64.
        self._unk_score = float(np.float32(lowest) - np.float32(_UNKNOWN_PENALTY))
        if math.isinf(self._unk_score):  # nothing is normal
            self._unk_score = -_UNKNOWN_PENALTY
        self._beginnings = Beginnings(self._pieces)
        self._word_start = word_pattern(self._pieces)
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        text = self._normalised(text)
        ids: list[int] = []
        for block in blocks(text, self._word_start):
            for word in self._word_start.split(block):
                cached = self._cache.get(word)
                found = self._encode_word(word) if cached is None else cached
                joins = ids[-1:] == found[:1] == [self._unk_id]
                ids += found[1:] if joins else found
        return ids

    def _normalised(self, text: str) -> str:
        text = unescaped(self._charsmap.apply(text))
        if self._merge_spaces:  # words begin with ▁, whether or not one is added before the text
            return "".join(_SPACE + word for word in text.split(" ") if word)
        prefixed = self._add_space_prefix and text.strip(" ")
        return (_SPACE if prefixed else "") + text.replace(" ", _SPACE)

    def _encode_word(self, word: str) -> list[int]:
        ids = self._best(word)
        if len(word) <= MAX_CACHED_CHARS:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[word] = ids
        return ids

    def _best(self, word: str) -> list[int]:
        """The tokens of greatest sum; of equal sums the one whose last token is longer."""
        n = len(word)
        sums = [0.0] + [-math.inf] * n  # of the tokens up to a position
        begins = [0] * (n + 1)  # of the last one of them
        last: list[int | None] = [None] * (n + 1)
        for begin in range(n):
            spelt = False
            for length in self._beginnings.lengths(word, begin):
                end = begin + length
                piece = self._pieces.get(word[begin:end]) if end <= n else None
                if piece is None:
                    continue
                spelt = spelt or length == 1
                if (total := sums[begin] + piece[1]) > sums[end]:
                    sums[end], begins[end], last[end] = total, begin, piece[0]
            if not spelt and (total := sums[begin] + self._unk_score) > sums[begin + 1]:
                sums[begin + 1], begins[begin + 1], last[begin + 1] = total, begin, self._unk_id
        ids: list[int] = []
        end = n
        while end > 0:
            id, begin = last[end], begins[end]
            if id is None:
                raise TokenizerError(
                    f"{self._where}the vocabulary has no token for {word[begin:end]!r} and none "
                    "for unknown text"
                )
            if id != self._unk_id or ids[-1:] != [id]:
                ids.append(id)
            end = begin
        return ids[::-1]
