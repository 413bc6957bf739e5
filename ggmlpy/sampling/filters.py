"""Filters: steps of the sampler chain that drop tokens or reshape their distribution.

A filter takes candidates and returns candidates, at least one. A new one (XTC, dynamic temperature)
is a subclass of Filter in the list that `filters` returns, in llama.cpp's order.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.sampling.candidates import Candidates
from ggmlpy.sampling.params import SamplingParams

# top_p over an unsorted vocabulary first sorts this many of the largest, then more as needed.
_FIRST_HEAD = 256
_HEAD_GROWTH = 8

_MIN_TEMPERATURE = 1e-37  # smaller ones are 0 in f32


class Filter(ABC):
    """One step from candidates to candidates."""

    @abstractmethod
    def apply(self, candidates: Candidates) -> Candidates:
        """The remaining candidates. `candidates` itself is not changed."""


def filters(params: SamplingParams) -> list[Filter]:
    """The filters that `params` asks for; none for greedy sampling."""
    steps: list[Filter] = []
    if params.is_greedy:
        return steps
    min_keep = max(params.min_keep, 1)
    if params.top_k > 0:
        steps.append(TopK(params.top_k))
    if params.typical_p < 1.0:
        steps.append(Typical(params.typical_p, min_keep))
    if params.top_p < 1.0:
        steps.append(TopP(params.top_p, min_keep))
    if params.min_p > 0.0:
        steps.append(MinP(params.min_p, min_keep))
    if params.temperature != 1.0:
        steps.append(Temperature(max(params.temperature, _MIN_TEMPERATURE)))
    return steps


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
    """Divide the logits by t > 0, relative to the largest, so that a tiny t does not overflow."""

    t: float

    def apply(self, candidates: Candidates) -> Candidates:
        below = candidates.below_max(self.t)
        return Candidates(candidates.ids, below, 0.0, candidates.is_sorted)
