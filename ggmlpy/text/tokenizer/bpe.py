"""BPE vocabularies: text is split into words by regular expressions, and words are merged.

`tokenizers` splits the text. Merging is done here: building that library's model of the 280,147
merges of Llama 3 took 0.43 s and 110 MB on an EPYC (Zen 4) core, the tables here 0.20 s and 10 MB.

There are two spellings. In GPT-2's, every byte is a printable character (a space is "Ġ"), so that
any text can be spelt. In the other (Gemma 4), tokens are plain text, mostly with "▁" for a space,
and characters without a token are spelt in the byte tokens <0x00> … <0xFF>. As in llama.cpp, bytes
without a token are left out in both.
"""

from __future__ import annotations

import re
from itertools import repeat

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, pre_tokenizers

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer.blocks import blocks
from ggmlpy.text.tokenizer.merging import MAX_CACHED, MAX_CACHED_CHARS, merge
from ggmlpy.text.tokenizer.pre_tokenizers import PreTokenizer
from ggmlpy.text.tokenizer.vocabulary import Vocabulary


def _byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: itself if printable, else the next one from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTE_CHARS = _byte_alphabet()
_CHAR_BYTES = {ord(char): byte for byte, char in enumerate(BYTE_CHARS)}
_SPACE = "\u2581"
_MERGES_AT_A_TIME = 1 << 14  # 70 bytes each as Python strings
_Ids = NDArray[np.int32]


class BytePairs:
    """Encodes text by a BPE vocabulary.

    Raises TokenizerError, naming the key, if merges are missing or name tokens that do not exist.
    """

    raw_bytes = False

    def __init__(self, vocab: Vocabulary, pre: PreTokenizer) -> None:
        self._pre = pre
        self._ids = vocab.ids
        self._splitter = self._make_splitter()
        self._merges = _Merges(vocab)
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        if not self._pre.whole_newlines:
            return self._encode_words(text)
        ids: list[int] = []
        for part in re.split(r"(\n+)", text):
            whole = self._ids.get(part) if part.startswith("\n") else None
            ids += self._encode_words(part) if whole is None else [whole]
        return ids

    def _encode_words(self, text: str) -> list[int]:
        if not self._pre.byte_level and self._pre.escape_spaces:
            text = text.replace(" ", _SPACE)
        ids: list[int] = []
        for block in blocks(text, self._pre.seam):
            for word, _ in self._splitter.pre_tokenize_str(block):
                cached = self._cache.get(word)
                ids += self._encode_word(word) if cached is None else cached
        return ids

    def _encode_word(self, word: str) -> list[int]:
        whole = self._ids.get(word) if self._pre.ignore_merges else None
        if whole is not None:
            return [whole]
        ids: list[int] = []
        for piece in merge(word, self._merges.rank):
            id = self._ids.get(piece)
            ids += self._spell(piece) if id is None else [id]
        if len(word) <= MAX_CACHED_CHARS:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[word] = ids
        return ids

    def _spell(self, char: str) -> list[int]:
        """The byte tokens of a character without a token."""
        if self._pre.byte_level:
            return []  # the character is a byte
        ids = (self._ids.get(f"<0x{byte:02X}>") for byte in char.encode())
        return [id for id in ids if id is not None]

    def _make_splitter(self) -> pre_tokenizers.PreTokenizer:
        words = word_splitter(self._pre)
        if not self._pre.byte_level:
            return words
        spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([words, spelling])


def word_splitter(pre: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """Splits text into the words within which pairs merge."""
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.splits]
    return pre_tokenizers.Sequence(splits)


class _Merges:
    """The rank of each merge, by the token that it makes and the length of its left half.

    A dict of the pairs would take 32 MB for the 280,147 merges of Llama 3; these arrays take 3 MB.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        """Raises TokenizerError for a merge that is not a pair, or does not make a token.

        Its halves need no check: pieces are characters or the results of merges, so a half that is
        neither never occurs.
        """
        array = vocab.keys.array("merges")
        if array is None:
            raise vocab.keys.error("merges", "is missing")
        made, cuts = np.empty(len(array), np.int32), np.empty(len(array), np.int32)
        for begin, merges in vocab.keys.chunks("merges", array, _MERGES_AT_A_TIME):
            end = begin + len(merges)
            made[begin:end], cuts[begin:end] = _made_and_cuts(vocab, merges, begin)
        ranks = np.argsort(made, kind="stable").astype(np.int32)
        starts = np.zeros(vocab.n_vocab + 1, np.int32)
        np.cumsum(np.bincount(made, minlength=vocab.n_vocab), out=starts[1:])
        self._ids = vocab.ids
        self._starts = starts.data  # of each token's merges in the arrays below
        self._cuts = cuts[ranks].data
        self._ranks = ranks.data

    def rank(self, left: str, right: str) -> int | None:
        """The position of this merge in the file; None if the file does not have it."""
        token = self._ids.get(left + right)
        if token is not None:
            cut = len(left)
            for i in range(self._starts[token], self._starts[token + 1]):
                if self._cuts[i] == cut:
                    return self._ranks[i]
        return None


def _made_and_cuts(vocab: Vocabulary, merges: list[str], begin: int) -> tuple[_Ids, _Ids]:
    """The token that each pair "left right" makes, and the length of its left half.

    `begin` is the first pair's position in the file.
    """
    if not set(map(str.count, merges, repeat(" "))) <= {1}:
        i = next(i for i, merge in enumerate(merges) if merge.count(" ") != 1)
        wrong = f"{quoted(merges[i])} at {begin + i}"
        raise vocab.keys.error("merges", f"holds {wrong}, must be two tokens")
    texts = map(str.replace, merges, repeat(" "), repeat(""))
    try:
        made = np.fromiter(map(vocab.ids.__getitem__, texts), np.int32, len(merges))
    except KeyError:
        raise _unknown_merge(vocab, merges, begin) from None
    cuts = np.fromiter(map(str.index, merges, repeat(" ")), np.int32, len(merges))
    return made, cuts


def _unknown_merge(vocab: Vocabulary, merges: list[str], begin: int) -> TokenizerError:
    ids = vocab.ids
    i = next(i for i, merge in enumerate(merges) if merge.replace(" ", "") not in ids)
    parts = (*merges[i].split(" "), merges[i].replace(" ", ""))
    token = next(part for part in parts if part not in ids)
    wrong = f"{quoted(merges[i])} at {begin + i}: {quoted(token)} is no token"
    return vocab.keys.error("merges", f"holds {wrong}")


def spell_byte_level(text: str) -> bytes:
    """The bytes of a token in GPT-2's alphabet, or its UTF-8 if it is not in that alphabet."""
    try:
        return bytes(map(_CHAR_BYTES.__getitem__, map(ord, text)))
    except KeyError:
        return text.encode(errors="surrogateescape")


def spell_plain(text: str) -> bytes:
    """The bytes of a token that has ▁ for a space."""
    return text.replace(_SPACE, " ").encode(errors="surrogateescape")
