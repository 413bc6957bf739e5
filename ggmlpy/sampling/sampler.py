"""The sampler chain: logits processors, filters, then a draw with a seed."""

from __future__ import annotations

import math
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import SamplingError
from ggmlpy.sampling.candidates import Candidates, Ids, draw
from ggmlpy.sampling.compiled import CompiledChain
from ggmlpy.sampling.filters import TopK, filters
from ggmlpy.sampling.logits_processors import SparseProcessor, logits_processors
from ggmlpy.sampling.params import SamplingParams

_NO_IDS: Ids = np.zeros(0, np.int64)


class Sampler:
    """The sampler chain of one sequence.

    The order is llama.cpp's: logit_bias, penalties | top_k, typical_p, top_p, min_p, temperature |
    draw. Steps that `params` switches off are not in the chain and cost nothing.

    A draw maps one number of PCG64(seed), whose stream numpy guarantees, through the cumulative
    sum of the probabilities. After the first cut all of this is f64, so that the same seed and the
    same logits give the same tokens on every platform. Without a cut the exponentials are f32 and
    may differ in the last bit between platforms.

    `logits_processors` and `filters` are plain lists, into which subclasses of LogitsProcessor and
    Filter can be inserted; greedy sampling has no filters. Common chains, which begin with a top_k,
    run in compiled code and give the same tokens.
    """

    __slots__ = (
        "_bits", "_compiled", "filters", "logits_processors", "n_vocab", "params", "seed",
    )  # fmt: skip

    def __init__(self, params: SamplingParams, n_vocab: int) -> None:
        if n_vocab < 1:
            raise SamplingError(f"n_vocab is {n_vocab}: must be at least 1")
        self.params = params
        self.n_vocab = n_vocab
        self.seed = secrets.randbits(32) if params.seed is None else int(params.seed)
        self.logits_processors = logits_processors(params, n_vocab)
        self.filters = filters(params)
        self._compiled = CompiledChain.of(self.filters)
        self._bits = np.random.PCG64(self.seed)

    def accept(self, token: int) -> None:
        """Add the next token of the sequence to those that the penalties consider.

        Call it for prompt tokens and for generated ones: `sample` does not.
        """
        if not 0 <= token < self.n_vocab:
            raise SamplingError(f"token is {token}: must be in 0 .. {self.n_vocab - 1}")
        for step in self.logits_processors:
            step.accept(token)

    def sample(self, logits: NDArray[np.float32]) -> int:
        """Sample a token. `logits` [n_vocab] is not changed.

        Raises SamplingError where the logits have a NaN, a +inf, or nothing but -inf; BackendError
        and KernelError where nothing can be compiled here.
        """
        return self._sample(self._processed(logits))

    def wanted(self) -> tuple[int, Ids] | None:
        """What decides the next token: so many of the largest logits, and those of these tokens.
        None: all logits do.

        A step of the chain that changes single logits, such as the penalties, can bring at most as
        many others among the `top_k` largest as it changes.
        """
        if not self.params.is_greedy and not (self.filters and isinstance(self.filters[0], TopK)):
            return None
        touched: list[Ids] = []
        for step in self.logits_processors:
            if not step.is_idle:
                if not isinstance(step, SparseProcessor):
                    return None
                touched.append(step.touched())
        ids = np.unique(np.concatenate(touched)) if touched else _NO_IDS
        first = self.filters[0] if self.filters else None
        k = first.k if isinstance(first, TopK) else 1
        return k + len(ids), ids

    def sample_among(self, ids: Ids, logits: NDArray[np.float32]) -> int:
        """Sample a token, the same as of all logits, from those that `wanted` asks for.

        `ids` ascend, `logits` [n] are theirs, the largest of them finite.
        """
        is_changed = False
        for step in self.logits_processors:
            if not step.is_idle:
                assert isinstance(step, SparseProcessor)
                logits = logits if is_changed else logits.astype(np.float32)
                is_changed = True
                at = np.searchsorted(ids, step.touched())
                logits[at] = step.apply_to(logits[at])
        return int(ids[self._sample(logits)])

    def _sample(self, logits: NDArray[np.float32]) -> int:
        """The position of a token in logits that the processors have changed."""
        if self.params.is_greedy:
            return _argmax(logits)
        if self._compiled is not None and self._compiled.is_of(self.filters):
            token = self._compiled.sample(logits, self._uniform())
            if token is not None:
                return token
            self._bits.advance(-1)  # nothing was drawn: `_filtered` raises
        candidates = self._filtered(logits)
        position = draw(candidates.weights(), self._uniform())
        return position if candidates.ids is None else int(candidates.ids[position])

    def probabilities(self, logits: NDArray[np.float32]) -> tuple[Ids, NDArray[np.float64]]:
        """The distribution that `sample` draws from: token ids [n] and probabilities [n].

        In the order of the cumulative sum: by descending logit if a step sorts, else by id.
        """
        logits = self._processed(logits)
        if self.params.is_greedy:
            return np.array([_argmax(logits)], np.int64), np.ones(1)
        candidates = self._filtered(logits)
        weights = candidates.weights().astype(np.float64)
        ids = np.arange(self.n_vocab) if candidates.ids is None else candidates.ids
        return ids, weights / weights.sum()

    def _processed(self, logits: NDArray[Any]) -> NDArray[np.float32]:
        """The logits after the logits processors: a copy if these change anything."""
        if logits.shape != (self.n_vocab,):
            raise SamplingError(f"logits have shape {logits.shape}: must be ({self.n_vocab},)")
        is_changed = False
        for step in self.logits_processors:
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
    """The index of the largest logit; of equal ones the lowest."""
    token = int(logits.argmax())
    _check_max(float(logits[token]), logits)
    return token


def _check_max(largest: float, logits: NDArray[np.float32]) -> float:
    """`largest`, if finite: numpy's max and argmax return a NaN if there is one."""
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
