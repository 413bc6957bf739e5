"""Logits processors: steps of the sampler chain that change logits."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import SamplingError
from ggmlpy.sampling.params import SamplingParams
from ggmlpy.sampling.steps import SparseProcessor

_FEW = 8  # up to so many logits are changed faster one by one than by numpy's fancy indexing


class LogitBias(SparseProcessor):
    """Add a constant to the logits of some tokens."""

    def __init__(self, logit_bias: Mapping[int, float], n_vocab: int) -> None:
        for token in logit_bias:
            if token >= n_vocab:
                raise SamplingError(
                    f"logit_bias[{token}]: the vocabulary has {n_vocab} tokens, "
                    f"ids must be in 0 .. {n_vocab - 1}"
                )
        self._ids = np.array(list(logit_bias), np.int64)
        self._bias = np.array(list(logit_bias.values()), np.float32)
        self._few = list(zip(logit_bias, self._bias, strict=True))[: _FEW + 1]

    def apply(self, logits: NDArray[np.float32]) -> None:
        if len(self._few) <= _FEW:
            for token, bias in self._few:
                logits[token] += bias
        else:
            super().apply(logits)

    def touched(self) -> NDArray[np.int64]:
        return self._ids  # the keys of a mapping

    def apply_to(self, seen: NDArray[np.float32]) -> NDArray[np.float32]:
        return seen + self._bias


class Penalties(SparseProcessor):
    """Reduce the logits of tokens among the last n.

    l = l * repeat  if l <= 0 else  l / repeat
    l = l - count * frequency - presence            count >= 1 among the last n tokens
    """

    def __init__(self, params: SamplingParams) -> None:
        last_n = params.penalty_last_n
        self._repeat = params.repeat_penalty
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._window: deque[int] = deque(maxlen=None if last_n < 0 else last_n)
        self._counts: dict[int, int] = {}

    @property
    def is_idle(self) -> bool:
        return not self._counts

    def accept(self, token: int) -> None:
        if len(self._window) == self._window.maxlen:
            oldest = self._window[0]
            self._counts[oldest] -= 1
            if self._counts[oldest] == 0:
                del self._counts[oldest]
        self._window.append(token)
        self._counts[token] = self._counts.get(token, 0) + 1

    def touched(self) -> NDArray[np.int64]:
        return np.fromiter(self._counts, np.int64, len(self._counts))

    def apply_to(self, seen: NDArray[np.float32]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):  # to -inf it bans, +inf is an error of the draw
            if self._repeat != 1.0:
                seen = np.where(seen <= 0, seen * self._repeat, seen / self._repeat)
            if self._frequency != 0.0:
                counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
                seen = seen - counts * self._frequency
            return seen - np.float32(self._presence)
