"""Filters: steps of the sampler chain that drop tokens or reshape their distribution.

A filter takes candidates and returns candidates, at least one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.sampling.candidates import Candidates
from ggmlpy.sampling.steps import Filter, Setting

# top_p over an unsorted vocabulary first sorts this many of the largest, then more as needed.
_FIRST_HEAD = 256
_HEAD_GROWTH = 8

MIN_TEMPERATURE = 1e-37  # smaller ones are 0 in f32


@dataclass(frozen=True, slots=True)
class TopK(Filter):
    """Keep the k largest logits; of equal ones the lowest ids."""

    k: int

    def apply(self, candidates: Candidates) -> Candidates:
        return candidates.top(self.k)


@dataclass(frozen=True, slots=True)
class Typical(Filter):
    """Keep the tokens whose surprise -log(prob) is nearest to the entropy (Meister et al., 2022).

    Taken in order of that distance until their probabilities exceed p.
    """

    p: float
    min_keep: int

    def apply(self, candidates: Candidates) -> Candidates:
        candidates = candidates.top(len(candidates))
        weights = candidates.weights()
        total = weights.sum()
        surprise = math.log(total) - (candidates.logits - candidates.max)
        probabilities = weights / total
        entropy = probabilities @ surprise
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        reached = np.cumsum(probabilities[order])
        n = int(reached.searchsorted(self.p, side="right")) + 1  # the first above p is kept
        return candidates.take(np.sort(order[: max(n, self.min_keep)]), is_sorted=True)


@dataclass(frozen=True, slots=True)
class TopP(Filter):
    """Keep the most probable tokens until their probabilities reach p (Holtzman et al., 2020).

    The token that crosses p is kept.
    """

    p: float
    min_keep: int

    def apply(self, candidates: Candidates) -> Candidates:
        if candidates.is_sorted:
            reached = candidates.weights().cumsum()
            return self._cut(candidates, reached, self.p * reached[-1])
        target = self.p * candidates.weights().sum(dtype=np.float64)
        n_head = max(_FIRST_HEAD, self.min_keep)
        while True:
            head = candidates.top(n_head)
            reached = head.weights().cumsum()
            if reached[-1] >= target or n_head >= len(candidates):
                return self._cut(head, reached, target)
            n_head *= _HEAD_GROWTH

    def _cut(
        self, candidates: Candidates, reached: NDArray[np.floating[Any]], target: float
    ) -> Candidates:
        n = int(reached.searchsorted(target)) + 1
        return candidates.top(max(n, self.min_keep))


@dataclass(frozen=True, slots=True)
class MinP(Filter):
    """Keep the tokens that are at least p times as probable as the most probable one."""

    p: float
    min_keep: int

    def apply(self, candidates: Candidates) -> Candidates:
        keep = candidates.logits >= candidates.max + math.log(self.p)
        if candidates.is_sorted:
            return candidates.top(max(int(keep.sum()), self.min_keep))
        positions = keep.nonzero()[0]
        if len(positions) < self.min_keep:
            return candidates.top(self.min_keep)
        return candidates.take(positions, is_sorted=False)


@dataclass(frozen=True, slots=True)
class Temperature(Filter):
    """Divide the logits by t > 0, relative to the largest, so that a tiny t does not overflow.

    Without `is_relative` the largest one keeps its value, divided, for steps that look at it.
    """

    t: float
    is_relative: bool = True

    def apply(self, candidates: Candidates) -> Candidates:
        if not self.is_relative:
            logits = candidates.logits.astype(np.float64) / self.t
            return Candidates(candidates.ids, logits, candidates.max / self.t, candidates.is_sorted)
        below = candidates.below_max(self.t)
        return Candidates(candidates.ids, below, 0.0, candidates.is_sorted)


@dataclass(frozen=True, slots=True)
class DynamicTemperature(Filter):
    """A temperature by how sure the model is, t - span .. t + span.

    t' = low + (high - low) * (entropy / log(n))^exponent     of the n tokens that can be drawn
    """

    t: float
    span: float
    exponent: float
    is_relative: bool = True

    def apply(self, candidates: Candidates) -> Candidates:
        n = int(np.count_nonzero(candidates.logits > -np.inf))
        if n < 2:
            return candidates
        weights = candidates.weights().astype(np.float64)
        total = weights.sum()
        is_possible = weights > 0  # or as good as impossible, which adds nothing either
        below = candidates.below_max()[is_possible]
        entropy = math.log(total) - float(weights[is_possible] @ below) / total
        share = min(max(entropy / math.log(n), 0.0), 1.0)
        low, high = max(self.t - self.span, 0.0), max(self.t, 0.0) + self.span
        t = low + (high - low) * share**self.exponent
        return Temperature(max(t, MIN_TEMPERATURE), self.is_relative).apply(candidates)


@dataclass(frozen=True, slots=True)
class TopNSigma(Filter):
    """Keep logits within n standard deviations of the largest (Tang et al., 2024).

    The deviation is that of all logits that are not -inf.
    """

    n: float

    def apply(self, candidates: Candidates) -> Candidates:
        logits = candidates.logits
        finite = logits[logits > -np.inf].astype(np.float64)
        keep = logits >= candidates.max - self.n * float(finite.std())
        return candidates.keep(keep & (logits > -np.inf))


class Xtc(Filter):
    """Exclude top choices: of the tokens of at least `threshold` only the least probable remains.

    With probability `p`, and if at least `min_keep` tokens remain (p-e-w, text-generation-webui
    #6335).
    """

    def __init__(self, p: float, threshold: float, min_keep: int) -> None:
        self.p, self.threshold, self.min_keep = p, threshold, min_keep
        self._uniform: Callable[[], float] = _not_begun

    def begin(self, setting: Setting) -> None:
        self._uniform = setting.uniform

    def apply(self, candidates: Candidates) -> Candidates:
        if self._uniform() >= self.p:
            return candidates
        weights = candidates.weights()
        floor = self.threshold * weights.sum(dtype=np.float64)
        is_top = (weights >= floor) & (candidates.logits > -np.inf)
        top = is_top.nonzero()[0]
        if len(top) < 2 or len(candidates) - len(top) + 1 < self.min_keep:
            return candidates
        least = top[::-1][candidates.logits[top[::-1]].argmin()]  # of equal ones the last
        is_top[least] = False
        return candidates.keep(~is_top)


def _not_begun() -> float:
    raise AssertionError("Filter.begin was not called")
