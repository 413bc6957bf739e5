"""What is asked of a model and what comes back, token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from ggmlpy.sampling import SamplingParams

FinishReason = Literal["stop", "length"]
LogitsProcessor = Callable[[Sequence[int], NDArray[np.float32]], NDArray[np.float32]]

Prompt = str | Sequence[int]


class SamplingOptions(TypedDict, total=False):
    """How tokens are chosen, as keyword arguments; `SamplingParams` tells what each does."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    min_keep: int
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_last_n: int
    logit_bias: Mapping[int, float] | None
    logits_processor: LogitsProcessor | None
    seed: int | None


class CompletionOptions(SamplingOptions, total=False):
    """Keyword arguments of a completion, for the type checker."""

    max_tokens: int | None
    stop: str | Sequence[str] | None
    logprobs: int | None
    echo: bool
    model: str | None


class ChatOptions(SamplingOptions, total=False):
    """Keyword arguments of an answer in a conversation, for the type checker."""

    max_tokens: int | None
    stop: str | Sequence[str] | None
    logprobs: bool
    top_logprobs: int | None
    model: str | None


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt with everything that decides what comes after it."""

    prompt: Sequence[int]
    max_tokens: int
    sampling: SamplingParams
    stop: Sequence[str] = ()
    n_top_logprobs: int | None = None  # None: no log-probabilities at all
    logits_processor: LogitsProcessor | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token, its log-probability, and the likeliest tokens in its place."""

    token: int
    logprob: float
    top: dict[int, float]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step adds: text that is safe to show, and how generation ended if it did."""

    text: str
    token: int | None = None  # None: the end, without a token of its own
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None


def token_logprob(logits: NDArray[np.float32], token: int, n_top: int) -> TokenLogprob:
    """The log-probability of `token` under the model, before any sampling rule, with the n best."""
    wide = logits.astype(np.float64)
    logprobs = wide - wide.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    best = np.argsort(-logprobs, kind="stable")[:n_top]
    return TokenLogprob(token, float(logprobs[token]), {int(i): float(logprobs[i]) for i in best})
