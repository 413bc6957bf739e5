"""The tokens that can still be drawn, and the search for the largest logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import SamplingError

Ids = NDArray[np.int64]

# The k-th largest of the maxima of groups of logits is a lower bound of the k-th largest logit, and
# a close one if there are several times k groups. One pass over the groups and one comparison then
# replace a partition, in less than a tenth of its time for 128 K logits. Below some thousand logits
# a partition is as fast.
_MIN_GROUPED = 8192
_GROUPS_PER_K = 4
_GROUP_SIZES = range(4, 65)

# A draw over more tokens than this first selects a block, then a token in it: a cumulative sum over
# the whole vocabulary would take ten times as long as the exponentials.
DRAW_BLOCK = 1024


@dataclass(slots=True)
class Candidates:
    """Tokens with their logits.

    ids        token ids [n]; None before the first cut, when a position is the id
    logits     [n]; the model's f32 before the first cut, f64 after it
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

        Cached, and shared with the result of `top`: do not change them.
        """
        if self._weights is None:
            below = self.below_max()
            self._weights = np.exp(below, out=below)
        return self._weights

    def below_max(self, t: float = 1.0) -> NDArray[np.floating[Any]]:
        """(logits - max) / t, [n]; -inf where that exceeds the range of f32."""
        if self.logits.dtype == np.float64:  # values that were f32 cannot overflow f64
            below = self.logits - self.max
            return below if t == 1.0 else below / t
        with np.errstate(over="ignore"):
            return (self.logits - self.max) / t

    def top(self, k: int) -> Candidates:
        """The k largest, sorted, without tokens whose logit is -inf: they cannot be drawn."""
        if not self.is_sorted:
            return self.take(largest(self.logits, k), is_sorted=True)
        if k >= len(self.logits):
            return self
        ids = None if self.ids is None else self.ids[:k]
        weights = None if self._weights is None else self._weights[:k]
        return Candidates(ids, self.logits[:k], self.max, True, weights)

    @property
    def token_ids(self) -> Ids:
        """Token ids [n], also before the first cut."""
        return np.arange(len(self.logits)) if self.ids is None else self.ids

    def keep(self, mask: NDArray[np.bool_]) -> Candidates:
        """Those where `mask` [n] is True. Raises SamplingError if none of them can be drawn."""
        mask = np.asarray(mask)
        if mask.dtype != np.bool_ or mask.shape != self.logits.shape:
            raise SamplingError(
                f"a filter keeps by a mask {mask.dtype} {list(mask.shape)}: it must be bool"
                f" [{len(self)}]"
            )
        kept = self.take(mask.nonzero()[0], is_sorted=False)
        kept.max, kept.is_sorted = largest_of(kept.logits), self.is_sorted
        return kept

    def with_logits(self, logits: NDArray[np.floating[Any]]) -> Candidates:
        """The same tokens with other `logits` [n]. Raises SamplingError if none can be drawn."""
        logits = np.asarray(logits)
        if logits.shape != self.logits.shape:
            raise SamplingError(
                f"a step of the sampler chain gives logits of shape {list(logits.shape)}: it must"
                f" be [{len(self)}]"
            )
        return Candidates(self.ids, logits, largest_of(logits))

    def take(self, positions: Ids, is_sorted: bool) -> Candidates:
        """Those at `positions`, in that order; unless `is_sorted` the largest must be there."""
        ids = positions if self.ids is None else self.ids[positions]
        logits = self.logits[positions].astype(np.float64, copy=False)
        return Candidates(ids, logits, float(logits[0]) if is_sorted else self.max, is_sorted)


def largest_of(logits: NDArray[np.floating[Any]]) -> float:
    """The largest logit. Raises SamplingError if it is not finite: NaN counts as largest."""
    if len(logits) == 0:
        raise SamplingError("a step of the sampler chain left no token")
    found = float(logits.max())
    if math.isfinite(found):
        return found
    if found == -math.inf:
        raise SamplingError("all logits are -inf: no token can be drawn")
    bad = np.isnan(logits) if math.isnan(found) else np.isposinf(logits)
    kind = "NaN" if math.isnan(found) else "+inf"
    raise SamplingError(
        f"{np.count_nonzero(bad)} of {len(logits)} logits are {kind}, the first for token "
        f"{int(bad.argmax())}: logits must be finite or -inf"
    )


def largest(values: NDArray[np.floating[Any]], k: int) -> Ids:
    """Positions of the k largest values, descending; of equal values the lowest position first.

    Values of -inf are left out, so there may be fewer than k. `values` must not contain NaN. The
    result does not depend on how numpy's partition orders equal values.
    """
    bound = _kth_at_least(values, k) if k < len(values) else -np.inf
    # Array methods here and in filters.py: np's functions of the same names cost a microsecond
    # more, and a small model takes 40 us for all of its layers.
    positions = (values >= bound if bound > -np.inf else values > bound).nonzero()[0]
    order = (-values[positions]).argsort(kind="stable")
    return positions[order[:k]]


def _kth_at_least(values: NDArray[np.floating[Any]], k: int) -> float:
    """A close lower bound of the k-th largest value."""
    size = min(len(values) // (k * _GROUPS_PER_K), _GROUP_SIZES[-1])
    if len(values) >= _MIN_GROUPED and size in _GROUP_SIZES:
        # Group g consists of the values g, g + n_groups, …, so that the maximum is taken along
        # contiguous rows. The k largest maxima are values, so k values are at least the smallest.
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
    if within == len(inside):  # the two sums of a block may differ in the last bit
        within = int(np.flatnonzero(inside)[-1])
    return int(starts[block]) + within
