"""The tokens that are still in play, and the search for the largest logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

# The maxima of groups of logits bound the k-th largest logit from below, and closely if there are
# some times k groups. One pass over groups and one comparison then replace a partition, at less
# than a tenth of its time for 128 K logits; below some thousand a partition is as quick.
_MIN_GROUPED = 8192
_GROUPS_PER_K = 4
_GROUP_SIZES = range(4, 65)

# A draw over more tokens than this goes first to a block, then into it: a cumulative sum over the
# whole vocabulary would take ten times as long as the exponentials.
DRAW_BLOCK = 1024


@dataclass(slots=True)
class Candidates:
    """Tokens with their logits.

    ids        token ids [n]; None while all tokens are in play, and an index is the id
    logits     [n]; f32 as the model gave them while all are in play, f64 after the first cut
    max        the largest logit, finite
    is_sorted  descending by logit, ties by ascending id
    """

    ids: Ids | None
    logits: NDArray[np.floating[Any]]
    max: float
    is_sorted: bool = False
    _weights: NDArray[np.floating[Any]] | None = None

    def __len__(self) -> int:
        return len(self.logits)

    def weights(self) -> NDArray[np.floating[Any]]:
        """Unnormalised probabilities [n]: exp(logit - max), so 1 for the most probable token.

        Kept, also for those of them that `top` keeps: not to be changed.
        """
        if self._weights is None:
            below = self.below_max()
            self._weights = np.exp(below, out=below)
        return self._weights

    def below_max(self, t: float = 1.0) -> NDArray[np.floating[Any]]:
        """(logits - max) / t, [n]; what is beyond the range of f32 is -inf."""
        if self.logits.dtype == np.float64:  # nothing that was f32 overflows here
            below = self.logits - self.max
            return below if t == 1.0 else below / t
        with np.errstate(over="ignore"):
            return (self.logits - self.max) / t

    def top(self, k: int) -> Candidates:
        """The k largest, sorted. Tokens with a logit of -inf are left out: they cannot be drawn."""
        if not self.is_sorted:
            return self.take(largest(self.logits, k), is_sorted=True)
        if k >= len(self.logits):
            return self
        ids = None if self.ids is None else self.ids[:k]
        weights = None if self._weights is None else self._weights[:k]
        return Candidates(ids, self.logits[:k], self.max, True, weights)

    def take(self, positions: Ids, is_sorted: bool) -> Candidates:
        """Those at `positions`, in that order. The largest must be among them if not sorted."""
        ids = positions if self.ids is None else self.ids[positions]
        logits = self.logits[positions].astype(np.float64, copy=False)
        return Candidates(ids, logits, float(logits[0]) if is_sorted else self.max, is_sorted)


def largest(values: NDArray[np.floating[Any]], k: int) -> Ids:
    """Positions of the k largest values, descending; of equal values the lowest position first.

    Values of -inf are never among them, so there may be fewer than k. `values` has no NaN.
    The outcome does not depend on how numpy's partition orders equal values.
    """
    bound = _kth_at_least(values, k) if k < len(values) else -np.inf
    # Methods of arrays here and in filters.py: np's functions of the same names cost another
    # microsecond each, and a small model takes 40 for all of its layers.
    positions = (values >= bound if bound > -np.inf else values > bound).nonzero()[0]
    order = (-values[positions]).argsort(kind="stable")
    return positions[order[:k]]


def _kth_at_least(values: NDArray[np.floating[Any]], k: int) -> float:
    """A number that is not above the k-th largest value, and close to it."""
    size = min(len(values) // (k * _GROUPS_PER_K), _GROUP_SIZES[-1])
    if len(values) >= _MIN_GROUPED and size in _GROUP_SIZES:
        # Group g is the column g, g + n_groups, …: the maximum runs along contiguous rows. Each of
        # the k largest maxima is a value, so k values are not below the smallest of them.
        n_groups = len(values) // size
        values = values[: size * n_groups].reshape(size, n_groups).max(axis=0)
    kth = len(values) - k
    return float(np.partition(values, kth)[kth])


def draw(weights: NDArray[np.floating[Any]], u: float) -> int:
    """The first position where the cumulative sum exceeds u times the total; u in [0, 1).

    A position of weight 0 is never drawn. Sums are f64.
    """
    if len(weights) <= DRAW_BLOCK:
        reached = weights.cumsum(dtype=np.float64)
        return int(reached.searchsorted(u * reached[-1], side="right"))
    starts = np.arange(0, len(weights), DRAW_BLOCK)
    reached = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = u * reached[-1]
    block = int(reached.searchsorted(target, side="right"))
    before = reached[block - 1] if block > 0 else 0.0
    inside = weights[starts[block] : starts[block] + DRAW_BLOCK]
    within = int(np.cumsum(inside, dtype=np.float64).searchsorted(target - before, side="right"))
    if within == len(inside):  # the two sums of one block may differ in their last bit
        within = int(np.flatnonzero(inside)[-1])
    return int(starts[block]) + within
