"""Samples the next token of a request, and makes the piece of text that it adds."""

from __future__ import annotations

from collections.abc import Collection
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ggmlpy.engine.generation import FinishReason, Piece, TokenLogprob, token_logprob
from ggmlpy.engine.request_state import RequestState
from ggmlpy.engine.timings import Timings
from ggmlpy.errors import SamplingError


def next_piece(
    sequence: RequestState,
    logits: NDArray[np.float32],
    eog_ids: Collection[int],
    timings: Timings,
) -> Piece:
    """Sample the token after those that were run, of which `logits` ([n_vocab]) are.

    Adds the token to the request's, and what it took to `timings`. Raises SamplingError, and what a
    logits_processor raises.
    """
    token, logprobs = _sample(sequence, logits, timings)
    decoder, checker = sequence.decoder, sequence.checker
    if token in eog_ids:
        rest = checker.push(decoder.finish()) + checker.finish()
        return Piece(rest, finish_reason="stop")
    sequence.tokens.append(token)
    sequence.n_decoded += 1
    text = checker.push(decoder.push(token))
    if checker.stopped is not None:
        return Piece(text, token, logprobs, "stop")
    if sequence.n_decoded < sequence.n_predict:
        return Piece(text, token, logprobs)
    text += checker.push(decoder.finish()) + checker.finish()
    reason: FinishReason = "stop" if checker.stopped is not None else "length"
    return Piece(text, token, logprobs, reason)


def _sample(
    sequence: RequestState, logits: NDArray[np.float32], timings: Timings
) -> tuple[int, list[TokenLogprob]]:
    started = perf_counter()
    request = sequence.request
    if request.logits_processor is not None:
        logits = request.logits_processor(sequence.tokens, logits.copy())
        if not isinstance(logits, np.ndarray):
            raise SamplingError(
                f"the logits_processor returned {type(logits).__name__}: it must return logits"
            )
    token = sequence.sampler.sample(logits)
    sequence.sampler.accept(token)
    logprobs = []
    if request.n_top_logprobs is not None:
        logprobs.append(token_logprob(logits, token, request.n_top_logprobs))
    timings.n_generated += 1
    timings.sample_s += perf_counter() - started
    return token, logprobs
