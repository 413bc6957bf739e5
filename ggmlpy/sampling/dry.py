"""DRY: a penalty on tokens that would go on with a repetition (p-e-w, text-generation-webui #5677).

The last tokens of the sequence also stand further back, followed by a token t. If n of them are
alike there, the longest such n counts, then

    l[t] = l[t] - multiplier * base^(n - allowed_length)        n >= allowed_length

Repetitions end at sequence breakers: texts such as a line break, beyond which tokens are not
compared, and which themselves are not penalised. They are searched in the text, so a breaker may be
part of a token, or spread over several ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ggmlpy.sampling.params import SamplingParams
from ggmlpy.sampling.steps import Setting, SparseProcessor, Vocabulary

_LOG_MAX_F32 = 88.7228391  # as in llama.cpp, exponents are limited so that the power is a f32
_MIN_BASE = 1.000001  # of that limit
_MAX_PENALTY = 1e38  # so that no logit overflows


class Dry(SparseProcessor):
    """Reduce the logits of tokens that would extend a repetition."""

    def __init__(self, params: SamplingParams) -> None:
        last_n = params.dry_penalty_last_n
        self._multiplier = params.dry_multiplier
        self._base = params.dry_base
        self._allowed = params.dry_allowed_length
        self._breakers = Breakers(params.dry_sequence_breakers)
        self._window: deque[int] = deque(maxlen=None if last_n < 0 else last_n)
        self._n_unread = 0  # of the last tokens: the breakers have not seen them
        self._penalties: dict[int, float] | None = {}  # None: to be computed

    def begin(self, setting: Setting) -> None:
        if self._breakers.texts:
            self._breakers.vocabulary = setting.require_tokenizer("dry_sequence_breakers")

    def accept(self, token: int) -> None:
        self._window.append(token)
        self._n_unread += 1
        self._penalties = None

    @property
    def is_idle(self) -> bool:
        return not self._current()

    def touched(self) -> NDArray[np.int64]:
        penalties = self._current()
        return np.fromiter(penalties, np.int64, len(penalties))

    def apply_to(self, seen: NDArray[np.float32]) -> NDArray[np.float32]:
        penalties = self._current()
        return seen - np.fromiter(penalties.values(), np.float32, len(penalties))

    def _current(self) -> dict[int, float]:
        if self._penalties is None:
            self._read()
            self._penalties = self._computed()
        return self._penalties

    def _read(self) -> None:
        """Let the breakers see the tokens since the last time, as far as they count."""
        n = min(self._n_unread, len(self._window))
        if n < self._n_unread:
            self._breakers.skip()
        for i in range(len(self._window) - n, len(self._window)):
            self._breakers.read(self._window[i])
        self._n_unread = 0

    def _computed(self) -> dict[int, float]:
        limit = min(self._breakers.n_since, len(self._window))
        if limit < self._allowed:
            return {}
        most = self._most_exponent()
        tokens = np.fromiter(self._window, np.int64, len(self._window))
        lengths = repeats(tokens, limit if most is None else min(limit, self._allowed + most))
        counts = (lengths >= self._allowed).nonzero()[0]
        longest: dict[int, int] = {}
        for token, length in zip(
            tokens[counts + 1].tolist(), lengths[counts].tolist(), strict=True
        ):
            longest[token] = max(length, longest.get(token, 0))
        return {
            token: self._penalty(length)
            for token, length in longest.items()
            if not self._breakers.in_token(token)
        }

    def _penalty(self, length: int) -> float:
        penalty = self._multiplier * self._base ** (length - self._allowed)
        return min(max(penalty, -_MAX_PENALTY), _MAX_PENALTY)

    def _most_exponent(self) -> int | None:
        return int(_LOG_MAX_F32 / math.log(self._base)) if self._base > _MIN_BASE else None


def repeats(tokens: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """[n - 1]: how many tokens up to position i are the same as the last ones; at most `most`."""
    n = len(tokens)
    lengths = np.zeros(max(n - 1, 0), np.int64)
    ends = np.arange(len(lengths))
    for length in range(1, min(most, len(lengths)) + 1):
        ends = ends[ends >= length - 1]
        ends = ends[tokens[ends - (length - 1)] == tokens[n - length]]
        if len(ends) == 0:
            break
        lengths[ends] = length
    return lengths


class Breakers:
    """How many tokens follow the last sequence breaker."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = [text.encode() for text in texts]
        self.vocabulary: Vocabulary | None = None
        self.n_since = 0
        self._n_kept = max(map(len, self.texts), default=1) - 1  # bytes in which one may begin
        self._tail = b""
        self._known: dict[int, tuple[bytes, bool]] = {}

    def read(self, token: int) -> None:
        """The sequence's next token."""
        self.n_since += 1
        if not self.texts:
            return
        text, has_breaker = self._of(token)
        joined = self._tail + text
        # Only breakers that end in this token: those that end before have been found.
        if has_breaker or any(
            joined.find(each, max(len(self._tail) - len(each) + 1, 0)) >= 0 for each in self.texts
        ):
            self.n_since = 0
        self._tail = joined[-self._n_kept :] if self._n_kept else b""

    def skip(self) -> None:
        """Some tokens are not read."""
        self._tail = b""

    def in_token(self, token: int) -> bool:
        """Whether a token's text has a whole breaker."""
        return bool(self.texts) and self._of(token)[1]

    def _of(self, token: int) -> tuple[bytes, bool]:
        if token not in self._known:
            assert self.vocabulary is not None
            text = self.vocabulary.token_bytes(token, special=True)
            self._known[token] = text, any(each in text for each in self.texts)
        return self._known[token]
