"""Steps of the sampler chain: what they are, and what they get to know.

LogitsProcessor    changes logits, anywhere in the chain
SparseProcessor    a LogitsProcessor that changes the logits of a few tokens
Filter             drops tokens, or reshapes their distribution

Subclasses are own steps: their instances stand among the names of `SamplingParams.samplers`. Each
request works on copies of them (`copy.deepcopy`), so that state is not shared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import SamplingError
from ggmlpy.sampling.candidates import Candidates


class Vocabulary(Protocol):
    """What steps ask of a `Tokenizer`."""

    @property
    def eog_ids(self) -> Collection[int]: ...
    @property
    def eos_id(self) -> int | None: ...
    @property
    def eot_id(self) -> int | None: ...
    def token_bytes(self, id: int, special: bool = False) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What a step can use, for one request.

    n_vocab    tokens of the vocabulary
    uniform    draws a number in [0, 1) from the request's seeded stream: the same seed, the same
               text
    tokenizer  the model's `Tokenizer`; None in a `Sampler` that was made without one
    """

    n_vocab: int
    uniform: Callable[[], float]
    tokenizer: Vocabulary | None = None

    def require_tokenizer(self, name: str) -> Vocabulary:
        """The tokenizer. Raises SamplingError without one."""
        if self.tokenizer is None:
            raise SamplingError(
                f"{name} reads the texts of tokens: the Sampler must be made with a tokenizer"
            )
        return self.tokenizer


class Step(ABC):  # noqa: B024 - its kinds have methods
    """One step of the chain. `Filter` and `LogitsProcessor` are its two kinds."""

    def begin(self, setting: Setting) -> None:  # noqa: B027 - most need nothing
        """Called once, before the first token of a request."""

    def accept(self, token: int) -> None:  # noqa: B027 - most have no state
        """Take note of the sequence's next token, of the prompt or generated."""


class LogitsProcessor(Step):
    """A step over all logits. It may keep state about the tokens of the sequence."""

    @abstractmethod
    def apply(self, logits: NDArray[np.float32]) -> None:
        """Change `logits` [n_vocab] in place: they are the sampler's own copy.

        -inf are tokens that cannot be drawn. Behind a filter in the chain, what it dropped is -inf
        and stays dropped.
        """

    @property
    def is_idle(self) -> bool:
        """Whether `apply` would change nothing now, so that no copy is needed."""
        return False


class SparseProcessor(LogitsProcessor):
    """A step that changes the logits of some tokens, each by its own logit alone."""

    def apply(self, logits: NDArray[np.float32]) -> None:
        ids = self.touched()
        logits[ids] = self.apply_to(logits[ids])

    @abstractmethod
    def touched(self) -> NDArray[np.int64]:
        """The tokens whose logits change now, distinct."""

    @abstractmethod
    def apply_to(self, seen: NDArray[np.float32]) -> NDArray[np.float32]:
        """What becomes of their logits, in their order."""


class Filter(Step):
    """A step from candidates to candidates."""

    @abstractmethod
    def apply(self, candidates: Candidates) -> Candidates:
        """The remaining candidates, at least one. `candidates` itself is not changed.

        `candidates.keep(mask)` drops tokens, `candidates.with_logits(…)` changes logits.
        """


class Processed(Filter):
    """A logits processor that stands behind a filter."""

    def __init__(self, step: LogitsProcessor) -> None:
        self.step = step
        self._n_vocab = 0

    def begin(self, setting: Setting) -> None:
        self._n_vocab = setting.n_vocab
        self.step.begin(setting)

    def accept(self, token: int) -> None:
        self.step.accept(token)

    def apply(self, candidates: Candidates) -> Candidates:
        if self.step.is_idle:
            return candidates
        ids = candidates.token_ids
        if isinstance(self.step, SparseProcessor):
            return candidates.with_logits(self._sparse(self.step, ids, candidates.logits))
        logits = np.full(self._n_vocab, -np.inf, np.float32)
        logits[ids] = candidates.logits
        self.step.apply(logits)
        return candidates.with_logits(logits[ids])

    def _sparse(
        self, step: SparseProcessor, ids: NDArray[np.int64], logits: NDArray[Any]
    ) -> NDArray[Any]:
        touched = step.touched()
        positions = np.full(self._n_vocab, -1)
        positions[ids] = np.arange(len(ids))
        at = positions[touched]
        is_left = at >= 0
        changed = logits.copy()
        changed[at[is_left]] = step.apply_to(np.where(is_left, logits[at], 0.0))[is_left]
        return changed


def own_name(step: Step) -> str:
    """A step's name for messages."""
    return type(step.step if isinstance(step, Processed) else step).__name__
