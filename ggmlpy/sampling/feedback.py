"""Steps that follow the tokens that were drawn: mirostat 1 and 2, adaptive-p. They come last."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.sampling.candidates import Candidates, Ids
from ggmlpy.sampling.steps import Filter, Setting

_N_ESTIMATED = 100  # tokens of which mirostat estimates Zipf's exponent: llama.cpp's m

# Of adaptive-p: the logits of its distribution over the distance to the target.
_PEAK = 5.0
_SHARPNESS = 10.0
_WIDTH = 0.3


class Feedback(Filter):
    """A filter that learns the probability of the token that was drawn."""

    def __init__(self) -> None:
        self._ids: Ids = np.zeros(0, np.int64)
        self._probabilities: NDArray[np.float64] | None = None  # None: nothing was drawn

    def remember(self, candidates: Candidates) -> NDArray[np.float64]:
        """The candidates' probabilities, which `accept` looks up."""
        weights = candidates.weights().astype(np.float64)
        self._ids = candidates.token_ids
        self._probabilities = weights / weights.sum()
        return self._probabilities

    def accept(self, token: int) -> None:
        if self._probabilities is None:
            return  # a token of the prompt
        found = (self._ids == token).nonzero()[0]
        p = float(self._probabilities[found[0]]) if len(found) else 0.0
        if p > 0:
            self.learn(p)
        self._probabilities = None

    @abstractmethod
    def learn(self, p: float) -> None:
        """The token that was drawn had probability `p`."""


class MirostatV2(Feedback):
    """Drop tokens whose surprise -log2(p) is above mu (Basu et al., 2021, algorithm 2).

    mu = mu - eta * (surprise - tau) after a draw, of the surprise among the remaining tokens; it
    begins at 2 tau.
    """

    def __init__(self, tau: float, eta: float) -> None:
        super().__init__()
        self.tau, self.eta, self.mu = tau, eta, 2 * tau

    def apply(self, candidates: Candidates) -> Candidates:
        candidates = self._cut(candidates)
        self.remember(candidates)
        return candidates

    def learn(self, p: float) -> None:
        self.mu -= self.eta * (-math.log2(p) - self.tau)

    def _cut(self, candidates: Candidates) -> Candidates:
        log_total = math.log(candidates.weights().sum(dtype=np.float64))
        surprise = (log_total - candidates.below_max()) / math.log(2)
        keep = surprise <= self.mu
        return candidates.keep(keep) if keep.any() else candidates.top(1)


class MirostatV1(MirostatV2):
    """Keep the k most probable tokens, k by an estimate of Zipf's exponent (algorithm 1)."""

    def __init__(self, tau: float, eta: float) -> None:
        super().__init__(tau, eta)
        self._n_vocab = 0

    def begin(self, setting: Setting) -> None:
        self._n_vocab = setting.n_vocab

    def _cut(self, candidates: Candidates) -> Candidates:
        head = candidates.top(_N_ESTIMATED)
        if len(head) < 2:
            return head
        ranks = np.arange(1, len(head), dtype=np.float64)
        t = np.log((ranks + 1) / ranks)
        b = -np.diff(head.logits.astype(np.float64))  # log(p[i] / p[i + 1])
        s = float(t @ b / (t @ t))
        k = zipf_k(s, self.mu, self._n_vocab)
        return candidates.top(max(int(min(k, len(candidates))), 1))


def zipf_k(s: float, mu: float, n_vocab: int) -> float:
    """k = ((e 2^mu) / (1 - n_vocab^-e))^(1 / s) for e = s - 1, of at least two tokens."""
    e, log_n = s - 1, math.log(n_vocab)
    x = -e * log_n
    # e / (1 - n^-e) is -e / expm1(x), and 1 / log(n) at e = 0.
    log_share = -math.log(log_n) if abs(x) < 1e-12 else _log_ratio(-e, x)
    log_k = mu * math.log(2) + log_share
    if s <= 0:  # all logits are equal
        return math.inf if log_k > 0 else 1.0
    return math.exp(log_k / s) if log_k / s < 700 else math.inf


def _log_ratio(e: float, x: float) -> float:
    """log(e / expm1(x)), of which both have the same sign."""
    if x > 30:
        return math.log(e) - x
    return math.log(e / math.expm1(x))


class AdaptiveP(Feedback):
    """Prefer tokens whose probability is near a target (llama.cpp #17927).

    target' = 2 target - mean      of a running mean of the drawn tokens' probabilities
    l = 5 - 10 d^2 / (1 + d)       d = |p - target'| / 0.3
    """

    def __init__(self, target: float, decay: float) -> None:
        super().__init__()
        self._target, self._decay = target, decay
        self._sum = target / (1 - decay)  # of probabilities, the latest ones counting most
        self._n = 1 / (1 - decay)

    def apply(self, candidates: Candidates) -> Candidates:
        p = self.remember(candidates)
        target = min(max(2 * self._target - self._sum / self._n, 0.0), 1.0)
        distance = np.abs(p - target) / _WIDTH
        logits: NDArray[Any] = _PEAK - _SHARPNESS * distance * distance / (1 + distance)
        return candidates.with_logits(np.where(candidates.logits > -np.inf, logits, -np.inf))

    def learn(self, p: float) -> None:
        self._sum = p + self._decay * self._sum
        self._n = 1 + self._decay * self._n
