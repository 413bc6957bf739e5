"""From prompt tokens to a stream of text: decode, sample, detokenise, stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ggmlpy.context import Context
from ggmlpy.sampling import Sampler
from ggmlpy.stopping import StopChecker
from ggmlpy.timings import Timings
from ggmlpy.tokenizer import Tokenizer

FinishReason = Literal["stop", "length"]
LogitsProcessor = Callable[[Sequence[int], NDArray[np.float32]], NDArray[np.float32]]


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


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt with everything that decides what comes after it."""

    prompt: Sequence[int]
    max_tokens: int
    stop: Sequence[str] = ()
    n_top_logprobs: int | None = None  # None: no log-probabilities at all
    logits_processor: LogitsProcessor | None = None


class Generator:
    """Runs one request after another on a context, reusing what the cache holds of the prompt."""

    def __init__(self, context: Context, tokenizer: Tokenizer) -> None:
        self._context = context
        self._tokenizer = tokenizer
        self._cached: list[int] = []  # the tokens in the cache, in order

    def reset(self) -> None:
        """Forget everything in the cache."""
        self._cached.clear()
        self._context.memory.seq_rm(0)

    def run(self, request: Request, sampler: Sampler, timings: Timings) -> Iterator[Piece]:
        """Text as it comes. The last piece has a finish_reason.

        Raises CacheFull before anything runs if the prompt does not fit.
        """
        logits = self._read_prompt(request.prompt, timings)
        for token in request.prompt:
            sampler.accept(token)
        decoder = self._tokenizer.stream(start=False)
        checker = StopChecker(list(request.stop))
        made: list[int] = []
        while len(made) < request.max_tokens:
            token, logprobs = self._sample(request, sampler, logits, made, timings)
            if token in self._tokenizer.eog_ids:
                rest = checker.push(decoder.finish()) + checker.finish()
                yield Piece(rest, finish_reason="stop")
                return
            made.append(token)
            text = checker.push(decoder.push(token))
            if checker.stopped is not None:
                yield Piece(text, token, logprobs, "stop")
                return
            if len(made) < request.max_tokens:
                yield Piece(text, token, logprobs)
                logits = self._decode(token, timings)
            else:
                text += checker.push(decoder.finish())
                reason: FinishReason = "stop" if checker.stopped is not None else "length"
                yield Piece(text + checker.finish(), token, logprobs, reason)
                return
        yield Piece("", finish_reason="length")

    def _read_prompt(self, prompt: Sequence[int], timings: Timings) -> NDArray[np.float32]:
        """Logits after the prompt. Tokens that the cache holds from its start are not run again."""
        n_same = 0
        for old, new in zip(self._cached, prompt[:-1], strict=False):  # the last one makes logits
            if old != new:
                break
            n_same += 1
        started = perf_counter()
        n_same = self._context.memory.reusable(0, n_same)
        self._context.memory.seq_rm(0, n_same)
        del self._cached[n_same:]
        logits: NDArray[np.float32] = self._context.decode(prompt[n_same:])[-1]
        self._cached += prompt[n_same:]
        timings.prompt_s += perf_counter() - started
        timings.n_prompt += len(prompt) - n_same
        timings.n_reused += n_same
        return logits

    def _sample(
        self,
        request: Request,
        sampler: Sampler,
        logits: NDArray[np.float32],
        made: list[int],
        timings: Timings,
    ) -> tuple[int, list[TokenLogprob]]:
        started = perf_counter()
        if request.logits_processor is not None:
            logits = request.logits_processor([*request.prompt, *made], logits.copy())
        token = sampler.sample(logits)
        sampler.accept(token)
        timings.n_generated += 1
        logprobs = []
        if request.n_top_logprobs is not None:
            logprobs.append(token_logprob(logits, token, request.n_top_logprobs))
        timings.sample_s += perf_counter() - started
        return token, logprobs

    def _decode(self, token: int, timings: Timings) -> NDArray[np.float32]:
        started = perf_counter()
        logits: NDArray[np.float32] = self._context.decode((token,))[-1]
        self._cached.append(token)
        timings.decode_s += perf_counter() - started
        timings.n_decoded += 1
        return logits


def token_logprob(logits: NDArray[np.float32], token: int, n_top: int) -> TokenLogprob:
    """The log-probability of `token` under the model, before any sampling rule, with the n best."""
    wide = logits.astype(np.float64)
    logprobs = wide - wide.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    best = np.argsort(-logprobs, kind="stable")[:n_top]
    return TokenLogprob(token, float(logprobs[token]), {int(i): float(logprobs[i]) for i in best})
