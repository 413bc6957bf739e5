"""PLaMo-2's vocabularies: tokens of least cost, found from the end of the text, with byte tokens.

Costs are integers, so that sums are exact in any order.
"""

from __future__ import annotations

import math
from array import array

from ggmlpy.text.tokenizer.escapes import byte_token
from ggmlpy.text.tokenizer.pieces import Beginnings
from ggmlpy.text.tokenizer.special import TokenType
from ggmlpy.text.tokenizer.vocabulary import Vocabulary

_COSTS_PER_SCORE = 1e4
_BYTES_COST = 10_000_000  # of a character that is spelt in byte tokens
_MAX_COST = 20_000_000  # tokens of this cost are never used
_MATCHED = frozenset(map(int, (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNDEFINED)))
_BYTE_ORDER_MARK = "\ufeff"


class LeastCost:
    """Encodes text by a PLaMo-2 vocabulary.

    A byte order mark at the beginning is left out. Text never gives a control, unknown or unused
    token.
    """

    raw_bytes = False

    def __init__(self, vocab: Vocabulary) -> None:
        byte_ids: dict[bytes, int] = {}
        self._pieces: dict[str, tuple[int, int]] = {}
        for id, (text, type, score) in enumerate(
            zip(vocab.texts, vocab.types, vocab.scores, strict=True)
        ):
            if type == TokenType.BYTE:
                byte = byte_token(text)
                if byte is not None:
                    byte_ids[byte] = id
            elif type in _MATCHED and text and math.isfinite(score):
                cost = -_rounded(score * _COSTS_PER_SCORE)
                if cost < _MAX_COST:
                    self._pieces[text] = id, cost
        missing = [byte for byte in range(256) if bytes([byte]) not in byte_ids]
        if missing:
            raise vocab.keys.error("tokens", f"has no byte token <0x{missing[0]:02X}>")
        self._byte_ids = [byte_ids[bytes([byte])] for byte in range(256)]
        self._beginnings = Beginnings(self._pieces)

    def encode(self, text: str) -> list[int]:
        text = text.removeprefix(_BYTE_ORDER_MARK)
        n = len(text)
        costs = array("q", bytes(8 * (n + 1)))  # from a position to the end
        lengths = array("i", bytes(4 * n))  # of the first token there; 0 for bytes
        for begin in range(n - 1, -1, -1):
            best, chosen = costs[begin + 1] + _BYTES_COST, 0
            for length in self._beginnings.lengths(text, begin):
                end = begin + length
                piece = self._pieces.get(text[begin:end]) if end <= n else None
                if piece is None:
                    continue
                cost = costs[end] + piece[1]
                # Of equal costs the longest token counts, and bytes last.
                if cost < best or (cost == best and chosen == 0):
                    best, chosen = cost, length
            costs[begin], lengths[begin] = best, chosen
        return self._tokens(text, lengths)

    def _tokens(self, text: str, lengths: array[int]) -> list[int]:
        ids: list[int] = []
        begin = 0
        while begin < len(text):
            end = begin + lengths[begin]
            if begin < end:
                ids.append(self._pieces[text[begin:end]][0])
                begin = end
            else:
                ids += [self._byte_ids[byte] for byte in text[begin].encode()]
                begin += 1
        return ids


def _rounded(value: float) -> int:
    """The nearest integer, of two the one farther from zero (Python's `round` takes the even)."""
    whole = math.floor(abs(value))
    return int(math.copysign(whole + (abs(value) - whole >= 0.5), value))
