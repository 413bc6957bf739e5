"""The chain: edits, filters, then one draw with a seed."""

from __future__ import annotations

import math
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import SamplingError
from ggmlpy.sampling.candidates import Candidates, Ids, draw
from ggmlpy.sampling.compiled import CompiledChain
from ggmlpy.sampling.edits import edits
from ggmlpy.sampling.filters import filters
from ggmlpy.sampling.params import SamplingParams


class Sampler:
    """Chooses tokens for one sequence.

    The order is llama.cpp's: logit_bias, penalties | top_k, typical_p, top_p, min_p, temperature |
    draw. Steps that `params` switches off are not in the chain and cost nothing.

    A draw maps one number of PCG64(seed), whose stream numpy guarantees, through the cumulative
    sum of the probabilities. After a cut all of this is f64, so that the same seed and the same
    logits give the same tokens on every platform. With the whole vocabulary in play to the end
    the exponentials are f32 and may differ in their last bit between platforms.

    `edits` and `filters` are plain lists: a step of one's own can be inserted, a subclass of Edit
    (edits.py) or Filter (filters.py); greedy sampling has no filters. Those of most chains, a top_k
    first, run in compiled code, to the same tokens.
    """

    __slots__ = ("_bits", "_chain", "edits", "filters", "n_vocab", "params", "seed")

    def __init__(self, params: SamplingParams, n_vocab: int) -> None:
        if n_vocab < 1:
            raise SamplingError(f"n_vocab is {n_vocab}: must be at least 1")
        self.params = params
        self.n_vocab = n_vocab
        self.seed = secrets.randbits(32) if params.seed is None else int(params.seed)
        self.edits = edits(params, n_vocab)
        self.filters = filters(params)
        self._chain = CompiledChain.of(self.filters)
        self._bits = np.random.PCG64(self.seed)

    def accept(self, token: int) -> None:
        """Tell the penalties about the next token of the sequence.

        Prompt tokens count as well as generated ones; `sample` does not call this by itself.
        """
        if not 0 <= token < self.n_vocab:
            raise SamplingError(f"token is {token}: must be in 0 .. {self.n_vocab - 1}")
        for step in self.edits:
            step.accept(token)

    def sample(self, logits: NDArray[np.float32]) -> int:
        """Choose a token. `logits` [n_vocab] is not changed.

        Raises SamplingError where the logits have a NaN, a +inf, or nothing but -inf; BackendError
        and KernelError where nothing can be compiled here.
        """
        logits = self._edited(logits)
        if self.params.is_greedy:
            return _argmax(logits)
        if self._chain is not None and self._chain.is_of(self.filters):
            token = self._chain.choose(logits, self._uniform())
            if token is not None:
                return token
            self._bits.advance(-1)  # nothing was drawn, and an error is on its way
        candidates = self._filtered(logits)
        position = draw(candidates.weights(), self._uniform())
        return position if candidates.ids is None else int(candidates.ids[position])

    def probabilities(self, logits: NDArray[np.float32]) -> tuple[Ids, NDArray[np.float64]]:
        """What `sample` draws from: token ids [n] and their probabilities [n], which sum to 1.

        In the order of the cumulative sum: by descending logit once a step has sorted, else by id.
        """
        logits = self._edited(logits)
        if self.params.is_greedy:
            return np.array([_argmax(logits)], np.int64), np.ones(1)
        candidates = self._filtered(logits)
        weights = candidates.weights().astype(np.float64)
        ids = np.arange(self.n_vocab) if candidates.ids is None else candidates.ids
        return ids, weights / weights.sum()

    def _edited(self, logits: NDArray[Any]) -> NDArray[np.float32]:
        """The logits after the edits: a copy if there is anything to change."""
        if logits.shape != (self.n_vocab,):
            raise SamplingError(f"logits have shape {logits.shape}: must be ({self.n_vocab},)")
        is_changed = False
        for step in self.edits:
            if not step.is_idle:
                logits = logits if is_changed else logits.astype(np.float32)
                is_changed = True
                step.apply(logits)
        return logits if is_changed else logits.astype(np.float32, copy=False)

    def _filtered(self, logits: NDArray[np.float32]) -> Candidates:
        candidates = Candidates(None, logits, _check_max(float(logits.max()), logits))
        for step in self.filters:
            candidates = step.apply(candidates)
        return candidates

    def _uniform(self) -> float:
        """A number in [0, 1) with 53 random bits."""
        return (int(self._bits.random_raw()) >> 11) * 2.0**-53


def _argmax(logits: NDArray[np.float32]) -> int:
    """The index of the largest logit, the lowest of equal ones."""
    token = int(logits.argmax())
    _check_max(float(logits[token]), logits)
    return token


def _check_max(largest: float, logits: NDArray[np.float32]) -> float:
    """The maximum if it is finite; numpy's max and argmax let a NaN through to here."""
    if math.isfinite(largest):
        return largest
    if largest == -math.inf:
        raise SamplingError("all logits are -inf: no token can be drawn")
    bad = np.isnan(logits) if math.isnan(largest) else np.isposinf(logits)
    kind = "NaN" if math.isnan(largest) else "+inf"
    raise SamplingError(
        f"{np.count_nonzero(bad)} of {len(logits)} logits are {kind}, the first for token "
        f"{int(bad.argmax())}: logits must be finite or -inf"
    )
