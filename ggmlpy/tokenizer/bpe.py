"""BPE vocabularies: words cut by regular expressions, then merged pair by pair, in `tokenizers`.

Two spellings exist. In GPT-2's, every byte is a printable character (a space is "Ġ") and any text
can be written. In the other (Gemma 4), tokens are plain text with "▁" for a space, and what has no
token is spelt in the byte tokens <0x00> … <0xFF>.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import repeat, starmap
from operator import add
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from ggmlpy.errors import TokenizerError
from ggmlpy.tokenizer.pre_tokenizers import PreTokenizer
from ggmlpy.tokenizer.vocabulary import Vocabulary


def _byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: itself where it prints, else the next one from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTE_CHARS = _byte_alphabet()
_CHAR_BYTES = {ord(char): byte for byte, char in enumerate(BYTE_CHARS)}
_SPACE = "\u2581"


class BytePairs:
    """Encodes text by a BPE vocabulary.

    Raises TokenizerError, naming the key, if merges are missing or name tokens that do not exist.
    """

    def __init__(self, vocab: Vocabulary, pre: PreTokenizer) -> None:
        self._vocab = vocab
        self._pre = pre
        self._missing = self._bytes_without_token()
        unk = vocab.declared_ids.get("unk")
        self._unk = vocab.texts[unk] if self._missing and unk is not None else None
        self._tokenizer = self._build()

    def encode(self, text: str) -> list[int]:
        if self._missing and self._unk is None:
            self._check_writable(text)
        if not self._pre.whole_newlines:
            return self._merge(text)
        ids: list[int] = []
        for part in re.split(r"(\n+)", text):
            whole = self._vocab.ids.get(part) if part.startswith("\n") else None
            ids += self._merge(part) if whole is None else [whole]
        return ids

    def _merge(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _build(self) -> Tokenizer:
        merges = _read_merges(self._vocab)
        try:
            model = models.BPE(
                vocab=self._vocab.ids,
                merges=merges,
                ignore_merges=self._pre.ignore_merges,
                byte_fallback=not self._pre.byte_level,
                **({} if self._unk is None else {"unk_token": self._unk}),
            )
        except Exception as error:  # the library has no type for half of a pair that is no token
            raise _unknown_merge(self._vocab, merges) from error
        tokenizer = Tokenizer(model)
        steps = [word_splitter(self._pre)]
        if self._pre.byte_level:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        else:
            tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        return tokenizer

    def _bytes_without_token(self) -> frozenset[int]:
        spelt = BYTE_CHARS if self._pre.byte_level else [f"<0x{b:02X}>" for b in range(256)]
        return frozenset(b for b in range(256) if spelt[b] not in self._vocab.ids)

    def _check_writable(self, text: str) -> None:
        """`tokenizers` would leave out what has no token; a prompt must not lose text silently."""
        spelt = text if self._pre.byte_level else text.replace(" ", _SPACE)
        for char in set(spelt):
            missing = self._missing.intersection(char.encode())
            if missing and (self._pre.byte_level or char not in self._vocab.ids):
                raise TokenizerError(
                    f"{self._vocab.keys.where}the vocabulary has no token for {char!r} "
                    f"(byte 0x{min(missing):02X}) and none for unknown text"
                )


def word_splitter(pre: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """Cuts text into the words within which pairs merge."""
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.splits]
    return pre_tokenizers.Sequence(splits)


class _Pairs(Sequence[tuple[str, str]]):
    """Pairs from two lists, made while they are read: a list of 280,147 tuples costs more time."""

    def __init__(self, left: list[str], right: list[str]) -> None:
        self._left, self._right = left, right

    def __len__(self) -> int:
        return len(self._left)

    def __getitem__(self, index: Any) -> Any:
        return (self._left[index], self._right[index])

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self._left, self._right, strict=True)


def _read_merges(vocab: Vocabulary) -> _Pairs:
    """The merges, checked for what makes `tokenizers` panic: a pair that makes no token.

    In whole-array steps: Llama 3 has 280,147 merges, most of the time that building it takes.
    """
    array = vocab.keys.array("merges")
    if array is None:
        raise vocab.keys.error("merges", "is missing")
    merges = vocab.keys.strings("merges", array)
    if not set(map(str.count, merges, repeat(" "))) <= {1}:
        i = next(i for i, merge in enumerate(merges) if merge.count(" ") != 1)
        raise vocab.keys.error("merges", f"holds {merges[i]!r} at {i}, must be two tokens")
    halves = " ".join(merges).split(" ") if merges else []
    pairs = _Pairs(halves[::2], halves[1::2])
    if not all(map(vocab.ids.__contains__, starmap(add, pairs))):
        raise _unknown_merge(vocab, pairs)
    return pairs


def _unknown_merge(vocab: Vocabulary, pairs: _Pairs) -> TokenizerError:
    i, pair, token = next(
        (i, " ".join(pair), token)
        for i, pair in enumerate(pairs)
        for token in (*pair, "".join(pair))
        if token not in vocab.ids
    )
    return vocab.keys.error("merges", f"holds {pair!r} at {i}: {token!r} is no token")


def spell_byte_level(text: str) -> bytes:
    """The bytes of a token in GPT-2's alphabet; text outside the alphabet is itself."""
    try:
        return bytes(map(_CHAR_BYTES.__getitem__, map(ord, text)))
    except KeyError:
        return text.encode(errors="surrogateescape")


def spell_plain(text: str) -> bytes:
    """The bytes of a token that has ▁ for a space."""
    return text.replace(_SPACE, " ").encode(errors="surrogateescape")
