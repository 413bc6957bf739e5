"""Requests, and the pieces of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ggmlpy.engine.options import LogitsCallback, StoppingCallback
from ggmlpy.sampling import SamplingParams

FinishReason = Literal["stop", "length"]
Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, everything that determines its continuation, and how urgent it is."""

    prompt: Sequence[int]
    max_tokens: int
    sampling: SamplingParams
    stop: Sequence[str] = ()
    n_top_logprobs: int | None = None  # None: no log-probabilities
    logits_processor: LogitsCallback | None = None
    priority: int = 0  # lower values go first
    stopping_criteria: StoppingCallback | None = None
    penalizes_prompt: bool = True  # penalties look at its tokens too


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its log-probability, and those of the most likely tokens."""

    token: int
    logprob: float
    top: dict[int, float]


@dataclass(frozen=True, slots=True)
class Piece:
    """The output of one step: text that is final, and why generation ended, if it did."""

    text: str
    token: int | None = None  # None: the end of the answer, which adds no token
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None


def token_logprob(logits: NDArray[np.float32], token: int, n_top: int) -> TokenLogprob:
    """The log-probability of `token` before any sampling step, with the `n_top` most likely."""
    wide = logits.astype(np.float64)
    logprobs = wide - wide.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    best = np.argsort(-logprobs, kind="stable")[:n_top]
    return TokenLogprob(token, float(logprobs[token]), {int(i): float(logprobs[i]) for i in best})
