"""infill: for text that is filled in between two parts, where ending in time matters (llama.cpp).

1. If 3 n times the probability of ending is above that of text, only EOG tokens remain.
2. A token whose text begins another one's is merged with it: the more probable of the two gets both
   probabilities, the other one is dropped.
3. Tokens below 0.2 are dropped, then, of the k that are left and the EOG tokens, those below
   1 / (k + 1). EOG tokens stay. Without any other token EOT remains, or EOS.
   Where a grammar's mask leaves these out, other EOG tokens remain, or else what step 2 left.

What remains is drawn by its own logits.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import SamplingError
from ggmlpy.sampling.candidates import Candidates
from ggmlpy.sampling.compiled import Mask
from ggmlpy.sampling.steps import Filter, Setting, Vocabulary

_LEAST = 0.2
_END_FACTOR = 3


class Infill(Filter):
    """Choose between text and its end. Use it behind top_k or top_p: it compares the texts."""

    def __init__(self) -> None:
        self._vocabulary: Vocabulary | None = None
        self._end = -1
        self._eog: NDArray[np.int64] = np.zeros(0, np.int64)
        self._texts: dict[int, bytes] = {}
        self._is_end_allowed = True

    def begin(self, setting: Setting) -> None:
        tokenizer = setting.require_tokenizer("infill")
        end = tokenizer.eos_id if tokenizer.eot_id is None else tokenizer.eot_id
        if end is None:
            raise SamplingError("infill: the vocabulary has neither an EOT nor an EOS token")
        self._vocabulary, self._end = tokenizer, end
        self._eog = np.array(sorted(tokenizer.eog_ids), np.int64)

    def limit(self, mask: Mask | None) -> None:
        """Whether the text may end here, by the tokens whose bits are set; None: it may."""
        self._is_end_allowed = mask is None or bool(mask[self._end // 64] >> (self._end % 64) & 1)

    def apply(self, candidates: Candidates) -> Candidates:
        candidates = candidates.top(len(candidates))
        ids = candidates.token_ids
        weights = candidates.weights().astype(np.float64)
        p = weights / weights.sum()
        ends = np.isin(ids, self._eog)
        p_end = float(p[ends].sum())
        if _END_FACTOR * p_end * len(p) > float(p[~ends].sum()):
            return candidates.keep(ends)
        p, is_left = self._merged(ids, p)
        keep = is_left & (ends | (p >= _LEAST))
        n_text = int((keep & ~ends).sum())
        if n_text > 0:
            keep &= ends | (p >= p[keep].sum() / (n_text + 1))
        if n_text == 0 or not keep.any():
            if not self._is_end_allowed:
                others = ends & (p > 0)
                return candidates.keep(others if others.any() else is_left)
            return Candidates(np.array([self._end], np.int64), np.zeros(1), 0.0, is_sorted=True)
        return candidates.keep(keep)

    def _merged(
        self, ids: NDArray[np.int64], p: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The probabilities after step 2, and which tokens it leaves."""
        p = p.copy()
        texts = [self._text(token) for token in ids.tolist()]
        order = sorted(range(len(texts)), key=texts.__getitem__)
        ordered = [texts[i] for i in order]
        at = np.array(order, np.int64)
        is_left = np.ones(len(p), np.bool_)
        for i, text in enumerate(texts):
            if not text or not is_left[i]:
                continue
            # Texts that begin with this one follow each other, itself among them.
            first, last = bisect_left(ordered, text), _after(ordered, text)
            if last - first > 1:
                _merge(i, np.sort(at[first:last]), p, is_left)
        return p, is_left

    def _text(self, token: int) -> bytes:
        if token not in self._texts:
            assert self._vocabulary is not None
            self._texts[token] = self._vocabulary.token_bytes(token)
        return self._texts[token]


def _after(ordered: list[bytes], prefix: bytes) -> int:
    """The position behind the texts that begin with `prefix`."""
    return bisect_left(ordered, True, key=lambda text: text[: len(prefix)] > prefix)


def _merge(
    i: int, others: NDArray[np.int64], p: NDArray[np.float64], is_left: NDArray[np.bool_]
) -> None:
    """Token i takes the probabilities of the others, one by one, until one is more probable, which
    takes its own."""
    others = others[is_left[others] & (others != i)]
    if len(others) == 0:
        return
    before = p[i] + np.concatenate([[0.0], np.cumsum(p[others])[:-1]])
    greater = (p[others] > before).nonzero()[0]
    n = int(greater[0]) if len(greater) else len(others)
    p[i] += p[others[:n]].sum()
    p[others[:n]] = 0.0
    is_left[others[:n]] = False
    if n < len(others):
        p[others[n]] += p[i]
        p[i] = 0.0
        is_left[i] = False
