"""The sampler chain: logits processors, filters, then a draw with a seed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import SamplingError
from ggmlpy.sampling.candidates import Candidates, Ids, draw, largest_of
from ggmlpy.sampling.chain import chain
from ggmlpy.sampling.compiled import CompiledChain, Mask, masked
from ggmlpy.sampling.filters import TopK
from ggmlpy.sampling.infill import Infill
from ggmlpy.sampling.params import SamplingParams
from ggmlpy.sampling.steps import Setting, SparseProcessor, Vocabulary, own_name
from ggmlpy.sampling.stream import Stream

_NO_IDS: Ids = np.zeros(0, np.int64)


class Sampler:
    """The sampler chain of one sequence.

    The order is logit_bias, the steps of `params.samplers`, a draw. Steps that `params` switches
    off are not in the chain and cost nothing.

    A draw maps one number of PCG64(seed), whose stream numpy guarantees, through the cumulative
    sum of the probabilities; XTC takes another number before it. After the first cut all of this is
    f64, so that the same seed and the same logits give the same tokens on every platform. Without a
    cut the exponentials are f32 and may differ in the last bit between platforms.

    `logits_processors` are the steps before the first filter, `filters` the others: plain lists,
    into which subclasses of LogitsProcessor and Filter can be inserted. Common chains, which begin
    with a top_k, run in compiled code and give the same tokens.
    """

    __slots__ = (
        "_compiled", "_is_greedy", "_largest", "_stream", "filters", "logits_processors", "n_vocab",
        "params", "seed",
    )  # fmt: skip

    def __init__(
        self, params: SamplingParams, n_vocab: int, tokenizer: Vocabulary | None = None
    ) -> None:
        """`tokenizer` is needed by the steps that read texts: dry and infill."""
        if n_vocab < 1:
            raise SamplingError(f"n_vocab is {n_vocab}: must be at least 1")
        self.params = params
        self.n_vocab = n_vocab
        self.seed = secrets.randbits(32) if params.seed is None else int(params.seed)
        self._stream = Stream(self.seed)
        setting = Setting(n_vocab, self._stream.uniform, tokenizer)
        self.logits_processors, self.filters = chain(params, setting)
        self._is_greedy = params.is_greedy
        self._compiled = None if self._is_greedy else CompiledChain.of(self.filters)
        self._largest: CompiledChain | None = None  # of tokens that a mask allows

    def accept(self, token: int) -> None:
        """Add the next token of the sequence to those that the steps consider.

        Call it for prompt tokens and for generated ones: `sample` does not.
        """
        if not 0 <= token < self.n_vocab:
            raise SamplingError(f"token is {token}: must be in 0 .. {self.n_vocab - 1}")
        for processor in self.logits_processors:
            processor.accept(token)
        for filter in self.filters:
            filter.accept(token)

    def sample(self, logits: NDArray[np.float32], mask: Mask | None = None) -> int:
        """Sample a token. `logits` [n_vocab] is not changed.

        With `mask` one of the tokens whose bits are set: it applies before all steps, as if the
        logits of all other tokens were -inf.

        Raises SamplingError where the logits have a NaN, a +inf, or nothing but -inf; BackendError
        and KernelError where nothing can be compiled here.
        """
        if mask is not None:
            return self._sample_allowed(logits, mask)
        return self._sample(self._processed(logits))

    def _sample_allowed(self, logits: NDArray[np.float32], mask: Mask) -> int:
        self._check_shape(logits)
        if 64 * len(mask) < self.n_vocab:
            raise SamplingError(f"a mask of {len(mask)} words is too short for {self.n_vocab} bits")
        active = [step for step in self.logits_processors if not step.is_idle]
        compiled = self._chain_of_allowed()
        if compiled is not None and all(isinstance(step, SparseProcessor) for step in active):
            # Each changes a logit by itself alone, so that the mask can apply after them.
            u = 0.0 if self._is_greedy else self._uniform()
            token = compiled.sample(self._processed(logits), u, mask)
            if token is not None:
                return token
            if not self._is_greedy:
                self._stream.undo()
            if not mask.any():
                raise SamplingError("no token of the vocabulary is allowed here")
        with self._allowed(logits, mask) as allowed:
            return self._sample(allowed)

    @contextmanager
    def _allowed(self, logits: NDArray[Any], mask: Mask) -> Iterator[NDArray[np.float32]]:
        """Processed logits, of which those that the mask does not have are -inf."""
        logits = self._processed(masked(logits, mask))
        if any(not step.is_idle for step in self.logits_processors):
            logits = masked(logits, mask)  # own steps may have raised what is not allowed
        limited = [step for step in self.filters if isinstance(step, Infill)]
        for step in limited:
            step.limit(mask)
        try:
            yield logits
        finally:
            for step in limited:
                step.limit(None)

    def _chain_of_allowed(self) -> CompiledChain | None:
        """The compiled chain, of which a greedy sampler has one only for masks."""
        if not self._is_greedy:
            compiled = self._compiled
            return compiled if compiled is not None and compiled.is_of(self.filters) else None
        if self.filters:
            return None
        if self._largest is None:
            self._largest = CompiledChain([TopK(1)])
        return self._largest

    def wanted(self) -> tuple[int, Ids] | None:
        """What decides the next token: so many of the largest logits, and those of these tokens.
        None: all logits do.

        A step of the chain that changes single logits, such as the penalties, can bring at most as
        many others among the `top_k` largest as it changes.
        """
        first = self.filters[0] if self.filters else None
        if not (isinstance(first, TopK) or (self._is_greedy and first is None)):
            return None
        touched: list[Ids] = []
        for step in self.logits_processors:
            if not step.is_idle:
                if not isinstance(step, SparseProcessor):
                    return None
                touched.append(step.touched())
        ids = np.unique(np.concatenate(touched)) if touched else _NO_IDS
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
        return self._sample(logits, ids)

    def _sample(self, logits: NDArray[np.float32], ids: Ids | None = None) -> int:
        """A token, of logits that the processors have changed; `ids` are theirs, unless of all."""
        if self._is_greedy and not self.filters:
            position = _argmax(logits)
            return position if ids is None else int(ids[position])
        if self._compiled is not None and self._compiled.is_of(self.filters):
            token = self._compiled.sample(logits, self._uniform())
            if token is not None:
                return token if ids is None else int(ids[token])
            self._stream.undo()  # nothing was drawn: `_filtered` raises
        candidates = self._filtered(logits, ids)
        if self._is_greedy:
            position = int(candidates.logits.argmax())
        else:
            position = draw(candidates.weights(), self._uniform())
        return position if candidates.ids is None else int(candidates.ids[position])

    def probabilities(
        self, logits: NDArray[np.float32], mask: Mask | None = None
    ) -> tuple[Ids, NDArray[np.float64]]:
        """The distribution that `sample` draws from: token ids [n] and probabilities [n].

        In the order of the cumulative sum: by descending logit if a step sorts, else by id. XTC has
        the outcome that it will have in `sample`.
        """
        if mask is None:
            return self._probabilities(self._processed(logits))
        self._check_shape(logits)
        with self._allowed(logits, mask) as allowed:
            return self._probabilities(allowed)

    def _probabilities(self, logits: NDArray[np.float32]) -> tuple[Ids, NDArray[np.float64]]:
        if self._is_greedy and not self.filters:
            return np.array([_argmax(logits)], np.int64), np.ones(1)
        state = self._stream.state
        candidates = self._filtered(logits)
        self._stream.state = state
        ids = candidates.token_ids
        if self._is_greedy:
            return ids[[candidates.logits.argmax()]], np.ones(1)
        weights = candidates.weights().astype(np.float64)
        return ids, weights / weights.sum()

    def _processed(self, logits: NDArray[Any]) -> NDArray[np.float32]:
        """The logits after the logits processors: a copy if these change anything."""
        self._check_shape(logits)
        is_changed = False
        for step in self.logits_processors:
            if not step.is_idle:
                logits = logits if is_changed else logits.astype(np.float32)
                is_changed = True
                step.apply(logits)
        return logits if is_changed else logits.astype(np.float32, copy=False)

    def _check_shape(self, logits: NDArray[Any]) -> None:
        if logits.shape != (self.n_vocab,):
            raise SamplingError(f"logits have shape {logits.shape}: must be ({self.n_vocab},)")

    def _filtered(self, logits: NDArray[np.float32], ids: Ids | None = None) -> Candidates:
        candidates = Candidates(ids, logits, largest_of(logits))
        for step in self.filters:
            candidates = step.apply(candidates)
            if not isinstance(candidates, Candidates) or not len(candidates):
                raise SamplingError(
                    f"{own_name(step)}.apply returned {candidates!r}: it must return Candidates, at"
                    " least one"
                )
        return candidates

    def _uniform(self) -> float:
        return self._stream.uniform()


def _argmax(logits: NDArray[np.float32]) -> int:
    """The index of the largest logit; of equal ones the lowest."""
    token = int(logits.argmax())
    if not np.isfinite(logits[token]):
        largest_of(logits)  # raises
    return token
