"""SPM vocabularies: SentencePiece's BPE, which merges the adjacent pair of highest score first.

`tokenizers` cannot run these exactly: its BPE ranks pairs, not the pieces that they make, so it
breaks ties between scores in another order, and it needs a token for each half of a pair. Merging
is therefore done here. Three properties make it fast:

- Any two neighbours may merge, and a heap decides the order: n log n.
- No merge crosses a position that no token crosses. Text is split before each ▁ that follows a
  character which no token has before a ▁. In natural text that is at words; tokens stay the same.
- Words repeat, so the tokens of recent words are cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer.blocks import blocks
from ggmlpy.text.tokenizer.escapes import ESCAPED_BYTE
from ggmlpy.text.tokenizer.merging import MAX_CACHED, MAX_CACHED_CHARS, merge
from ggmlpy.text.tokenizer.special import TokenType
from ggmlpy.text.tokenizer.vocabulary import Vocabulary

_SPACE = "\u2581"

_MERGEABLE = frozenset(map(int, (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNDEFINED)))


class SentencePieces:
    """Encodes text by an SPM vocabulary.

    Only text merges: as in SentencePiece, and unlike in llama.cpp, the text "</s>" never gives the
    control token. A character without a token is spelt in byte tokens, or is one unknown token if
    the vocabulary lacks them. Bytes that are not UTF-8 are spelt in byte tokens, too.
    """

    raw_bytes = True

    def __init__(self, vocab: Vocabulary) -> None:
        self._where = vocab.keys.where
        self._ids = {text: id for text, id in vocab.ids.items() if vocab.types[id] in _MERGEABLE}
        scores = vocab.scores
        self._costs = {text: -scores[id] for text, id in self._ids.items()}
        self._byte_ids = [vocab.ids.get(f"<0x{byte:02X}>") for byte in range(256)]
        self._unk_id = vocab.declared_ids.get("unk")
        self._word_start = word_pattern(self._ids)
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        text = text.replace(" ", _SPACE)
        if text.isascii() or not ESCAPED_BYTE.search(text):
            return self._encode_text(text)
        ids: list[int] = []
        for part in _split_invalid(text.encode(errors="surrogateescape")):
            ids += self._encode_text(part) if isinstance(part, str) else self._spell_bytes(part)
        return ids

    def _encode_text(self, text: str) -> list[int]:
        ids: list[int] = []
        for block in blocks(text, self._word_start):
            for word in self._word_start.split(block):
                cached = self._cache.get(word)
                ids += self._encode_word(word) if cached is None else cached
        return ids

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        for piece in merge(word, self._cost):
            id = self._ids.get(piece)
            ids += self._spell(piece) if id is None else [id]
        if len(word) <= MAX_CACHED_CHARS:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[word] = ids
        return ids

    def _cost(self, left: str, right: str) -> float | None:
        return self._costs.get(left + right)

    def _spell(self, char: str) -> list[int]:
        return self._spell_bytes(char.replace(_SPACE, " ").encode())

    def _spell_bytes(self, char: bytes) -> list[int]:
        """The byte tokens of one character, or the unknown token if one of them is missing."""
        ids = [self._byte_ids[byte] for byte in char]
        known = [id for id in ids if id is not None]
        if len(known) == len(ids):
            return known
        if self._unk_id is not None:
            return [self._unk_id]
        shown = repr(char.decode(errors="replace"))
        raise TokenizerError(
            f"{self._where}the vocabulary has no token for {shown}, no byte tokens to spell it "
            "and none for unknown text"
        )


def _split_invalid(data: bytes) -> Iterator[str | bytes]:
    """Texts, and single characters that are not UTF-8.

    As in llama.cpp the first byte of a character tells how many bytes it has, whatever follows.
    """
    begin = at = 0
    while at < len(data):
        n = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4)[data[at] >> 4]
        char = data[at : at + n]
        if data[at] >= 0x80 and not _is_utf8(char):
            if begin < at:
                yield data[begin:at].decode()
            yield char
            begin = at + n
        at += n
    if begin < len(data):
        yield data[begin:].decode()


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def word_pattern(pieces: Iterable[str]) -> re.Pattern[str]:
    """Matches, without width, where text can be split without changing its tokens."""
    crossed = {
        piece[i - 1]
        for piece in pieces
        if piece.rfind(_SPACE) > 0
        for i in range(1, len(piece))
        if piece[i] == _SPACE
    }
    uncrossed = f"(?<![{re.escape(''.join(sorted(crossed)))}])" if crossed else ""
    return re.compile(rf"(?!\A){uncrossed}(?={_SPACE})")
