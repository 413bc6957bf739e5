"""Requests, and the pieces of their answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ggmlpy.engine.options import LogitsCallback, LoraScales, StoppingCallback
from ggmlpy.engine.timings import AnswerTimings
from ggmlpy.errors import SamplingError
from ggmlpy.grammar import Grammar, LazyGrammar
from ggmlpy.sampling import SamplingParams

FinishReason = Literal["stop", "length"]
Prompt = str | Sequence[int]
PromptLogitsCallback = Callable[[int, NDArray[np.float32]], None]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, everything that determines its continuation, and how urgent it is."""

    prompt: Sequence[int]
    max_tokens: int
    sampling: SamplingParams
    stop: Sequence[str] = ()
    n_top_logprobs: int | None = None  # None: no log-probabilities
    # Log-probabilities of new tokens are those that sampling draws from: of the tokens that its
    # steps and the grammar leave.
    scores_sampled: bool = False
    logits_processor: LogitsCallback | None = None
    priority: int = 0  # lower values go first
    stopping_criteria: StoppingCallback | None = None
    penalizes_prompt: bool = True  # penalties look at its tokens too
    # Log-probabilities of the prompt's tokens from this index on, which is at least 1; None: none.
    score_from: int | None = None
    # f(i, logits): called with the logits [n_vocab] of the token before each of those, at index i.
    # They are the model's, and valid during the call.
    on_prompt_logits: PromptLogitsCallback | None = None
    grammar: Grammar | None = None  # that the answer keeps to
    context_shift: bool = False  # a full context loses tokens instead of ending the answer
    n_keep: int = 0  # tokens of the prompt that are not lost then, besides BOS; -1: all
    n_discard: int = 0  # tokens that are lost then; 0: half of those that may be
    slot: int | None = None  # the sequence that it runs in; None: any that is free
    reuses: bool = True  # what is held of its prompt
    reports_progress: bool = False  # pieces tell how much of the prompt was run
    reports_timings: bool = False  # each piece has the timings until then
    n_indent: int = 0  # characters that begin each line behind the first, else it ends there
    lora: LoraScales | None = None  # its adapters; None: all, each with its own scale
    shown_tokens: frozenset[int] = frozenset()  # control tokens that stand in its text
    lazy_grammar: LazyGrammar | None = None  # one that it keeps to from its trigger on


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its log-probability, and those of the most likely tokens."""

    token: int
    logprob: float
    top: dict[int, float]
    is_greedy: bool = False  # whether it is the most likely token; of equal ones the first


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a prompt the memory holds, in tokens."""

    n_total: int
    n_reused: int
    n_held: int  # with those reused
    spent_s: float  # since it started


@dataclass(frozen=True, slots=True)
class Piece:
    """The output of one step: text that is final, and why generation ended, if it did.

    Log-probabilities of prompt tokens that the step has run come with it, see `Request.score_from`;
    before the prompt's end in pieces without text. Where log-probabilities are asked for,
    `end_logprob` is that of an EOG token that ended the answer. The last piece has the `timings` of
    the answer. Pieces with the `progress` of the prompt, see `Request.reports_progress`, have
    nothing else.
    """

    text: str
    token: int | None = None  # None: the end of the answer, or a part of the prompt, adds no token
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    end_logprob: TokenLogprob | None = None
    timings: AnswerTimings | None = None
    progress: Progress | None = None


def token_logprob(logits: NDArray[np.float32], token: int, n_top: int) -> TokenLogprob:
    """The log-probability of `token` before any sampling step, with the `n_top` most likely.

    Of `logits` [n_vocab] alone, in f64. Raises SamplingError if any of them is NaN or +inf.
    """
    best = int(logits.argmax())  # a NaN, if there is any
    top_logit = float(logits[best])
    if not math.isfinite(top_logit):
        raise SamplingError(
            f"the logit of token {best} is {top_logit}: logits must be finite or -inf, and not all"
            " of them -inf"
        )
    shifted = logits.astype(np.float64)
    shifted -= top_logit
    log_sum = float(np.log(np.exp(shifted).sum()))

    def logprob(i: int) -> float:
        return float(shifted[i]) - log_sum

    top = {i: logprob(i) for i in _most_likely(logits, n_top, best)}
    return TokenLogprob(token, logprob(token), top, token == best)


def sampled_logprob(
    ids: NDArray[np.int64], probabilities: NDArray[np.float64], token: int, n_top: int
) -> TokenLogprob:
    """The log-probability of `token` among the `ids` [n] that sampling drew from, with these
    probabilities [n], and of the `n_top` most likely ones that have any."""
    order = np.argsort(-probabilities, kind="stable")
    found = (ids == token).nonzero()[0]
    with np.errstate(divide="ignore"):
        logs = np.log(probabilities)
    top = {int(ids[i]): float(logs[i]) for i in order[:n_top] if probabilities[i] > 0}
    logprob = float(logs[found[0]]) if len(found) else -math.inf
    return TokenLogprob(token, logprob, top, token == int(ids[order[0]]))


def _most_likely(logits: NDArray[np.float32], n: int, best: int) -> list[int]:
    """The tokens of the n largest logits in descending order; of equal ones the first come first.

    `best` is the first of them."""
    if n <= 1:
        return [best][:n]
    if n < len(logits):
        least = np.partition(logits, len(logits) - n)[len(logits) - n]
        ids = np.flatnonzero(logits >= least)
    else:
        ids = np.arange(len(logits))
    order = np.argsort(-logits[ids], kind="stable")[:n]
    found: list[int] = ids[order].tolist()
    return found
