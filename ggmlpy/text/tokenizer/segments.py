"""BPE vocabularies whose text is split or rewritten before the rules of the pre-tokenizer."""

from __future__ import annotations

import re

from ggmlpy.text.tokenizer.bpe import BytePairs
from ggmlpy.text.tokenizer.vocabulary import Vocabulary
from ggmlpy.text.tokenizer.wpm import lowered

KMER_MARK = "\ue000"
"""Ends the texts of k-mers, which are tokens of their own beside words of the same letters."""
_KMER_CHARS = 6


class WhitespaceWords:
    """`tokenizer.ggml.model` "whitespace" (jina-embeddings-v2-base-zh): spaces have no tokens."""

    raw_bytes = False

    def __init__(self, vocab: Vocabulary, pairs: BytePairs) -> None:
        self._pairs = pairs
        self._lowercase = vocab.keys.flag("normalizer.lowercase", False)

    def encode(self, text: str) -> list[int]:
        if self._lowercase:
            text = "".join(map(lowered, text))
        # Unlike \s, str.split also splits at U+001C … U+001F.
        words = re.split(
            r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+", text
        )
        return [id for word in words for id in self._pairs.encode(word)]


class HybridDna:
    """`tokenizer.ggml.model` "hybriddna": text between <dna> and </dna> is cut into 6-mers.

    The last one is filled with A; one that is no token is <oov>. Vocabularies without these three
    tokens are ordinary BPE.
    """

    raw_bytes = False

    def __init__(self, vocab: Vocabulary, pairs: BytePairs) -> None:
        self._pairs = pairs
        self._ids = vocab.ids
        self._marks = [vocab.ids.get(text) for text in ("<dna>", "</dna>", "<oov>")]

    def encode(self, text: str) -> list[int]:
        begin_id, end_id, unknown_id = self._marks
        if begin_id is None or end_id is None or unknown_id is None:
            return self._pairs.encode(text)
        ids: list[int] = []
        while text:
            before, begin, text = text.partition("<dna>")
            ids += self._pairs.encode(before)
            if not begin:
                break
            sequence, end, text = text.partition("</dna>")
            ids += [begin_id, *self._kmers(sequence, unknown_id), *([end_id] if end else [])]
        return ids

    def _kmers(self, sequence: str, unknown_id: int) -> list[int]:
        # llama.cpp cuts bytes: other characters than letters make unknown k-mers of six bytes.
        letters = sequence.encode("utf-8", "surrogateescape").decode("latin-1")
        letters = re.sub("[a-z]+", lambda match: match[0].upper(), letters)
        kmers = (letters[i : i + _KMER_CHARS] for i in range(0, len(letters), _KMER_CHARS))
        return [
            self._ids.get(kmer.ljust(_KMER_CHARS, "A") + KMER_MARK, unknown_id) for kmer in kmers
        ]
