"""Makes the pieces that follow from the logits of a step: scores prompt tokens, samples tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ggmlpy.engine.generation import (
    FinishReason,
    Piece,
    TokenLogprob,
    sampled_logprob,
    token_logprob,
)
from ggmlpy.engine.request_state import RequestState
from ggmlpy.engine.timings import Timings
from ggmlpy.errors import SamplingError
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.outputs import Outputs
from ggmlpy.runtime.top_logits import NO_IDS, Ids, TopLogits


class Row:
    """The logits of one token: where they were computed on a device perhaps only some of them came
    from there."""

    __slots__ = ("_outputs", "_row", "n_vocab", "top")

    def __init__(self, outputs: Outputs, row: int, n_vocab: int, top: TopLogits | None) -> None:
        self._outputs = outputs
        self._row = row
        self.n_vocab = n_vocab
        self.top = top  # what decides the next token; None: all

    def all(self) -> NDArray[np.float32]:
        """[n_vocab], valid until the next step."""
        return self._outputs.row(self._row)[: self.n_vocab]


def wanted_by(sequence: RequestState) -> tuple[int, Ids] | None:
    """See `Sampler.wanted`; None also where the request itself looks at all logits."""
    request = sequence.request
    if request.logits_processor is not None or request.n_top_logprobs is not None:
        return None
    if request.stopping_criteria is not None or sequence.matcher is not None:
        return None
    if request.score_from is not None and not sequence.n_decoded:
        return None
    if sequence.draft and sequence.sampler.logits_processors:
        return None  # those of later tokens depend on the tokens that are chosen before them
    return sequence.sampler.wanted()


def rows_of(outputs: Outputs, sequences: Sequence[RequestState], context: Context) -> list[Row]:
    """The logits of the output tokens of a step, in the order of the batch.

    `sequences` has that of each, so one with several outputs is there as often. Of logits on a
    device only what decides the next tokens is looked up there, and copied.
    """
    n_vocab = sequences[0].sampler.n_vocab if sequences else 0
    top: list[TopLogits | None] = [None] * len(sequences)
    if not outputs.on_host:
        wanted = [wanted_by(sequence) for sequence in sequences]
        asked = [each for each in wanted if each is not None]
        if asked:
            k = max(n for n, _ in asked)
            ids = [NO_IDS if each is None else each[1] for each in wanted]
            found = outputs.top(context.plans.search, n_vocab, k, ids)
            top = [None if w is None else t for w, t in zip(wanted, found, strict=True)]
    return [Row(outputs, i, n_vocab, each) for i, each in enumerate(top)]


def next_pieces(
    sequence: RequestState,
    rows: Sequence[Row],
    eog_ids: Collection[int],
    timings: Timings,
) -> Iterator[Piece]:
    """What follows from the logits of the last `len(rows)` tokens that were run, at least one.

    Those of prompt tokens score what comes after them, and the last one of all decides the next
    token. Where a draft was run behind the tokens, those of its tokens decide what comes after
    them, as long as the draft has what is chosen. Raises SamplingError, and what a callback of the
    request raises.
    """
    if sequence.draft:
        yield from _drafted_pieces(sequence, rows, eog_ids, timings)
        return
    logprobs = _scored(sequence, rows) if sequence.request.score_from is not None else []
    if sequence.n_pending:  # the prompt goes on
        yield Piece("", prompt_logprobs=logprobs)
    elif not sequence.n_predict:
        yield Piece("", finish_reason="length", prompt_logprobs=logprobs)
    else:
        n_before = len(sequence.tokens)
        pieces = _chosen_pieces(sequence, rows[-1], eog_ids, timings)
        sequence.n_new = len(sequence.tokens) - n_before
        if logprobs:
            pieces[0] = replace(pieces[0], prompt_logprobs=logprobs)
        yield from pieces


def _drafted_pieces(
    sequence: RequestState, rows: Sequence[Row], eog_ids: Collection[int], timings: Timings
) -> Iterator[Piece]:
    """The pieces of all tokens that follow from the logits of a token and of the draft behind it.

    `sequence.n_new` is how many tokens they have.
    """
    n_before, draft = len(sequence.tokens), sequence.draft
    sequence.n_new = 0
    while sequence.n_new < len(rows) and sequence.tokens[n_before:] == draft[: sequence.n_new]:
        pieces = _chosen_pieces(sequence, rows[sequence.n_new], eog_ids, timings)
        sequence.n_new = len(sequence.tokens) - n_before
        yield from pieces
        if pieces[-1].finish_reason is not None:
            return


def _chosen_pieces(
    sequence: RequestState, row: Row, eog_ids: Collection[int], timings: Timings
) -> list[Piece]:
    """The piece of the next token, and those of the tokens that a grammar forces behind it."""
    pieces = [_next_piece(sequence, row, eog_ids, timings)]
    if sequence.forced and not _looks_at_logits(sequence):
        pieces += _forced_pieces(sequence, pieces[0], eog_ids, timings)
        sequence.first_output = len(sequence.tokens) - 1
    return pieces


def _looks_at_logits(sequence: RequestState) -> bool:
    """Whether the request needs the logits of every token, also where a grammar has the choice."""
    request = sequence.request
    callbacks = request.logits_processor, request.stopping_criteria
    return request.n_top_logprobs is not None or callbacks != (None, None)


def _forced_pieces(
    sequence: RequestState, last: Piece, eog_ids: Collection[int], timings: Timings
) -> list[Piece]:
    """The pieces of all tokens that a grammar forces, behind the piece `last`.

    They run together in the next step, as a part of a prompt would.
    """
    pieces: list[Piece] = []
    while sequence.forced and last.finish_reason is None:
        token = _accepted(sequence, sequence.forced[0], eog_ids, timings)
        last = _added(sequence, token, [], eog_ids)
        pieces.append(last)
    return pieces


def _scored(sequence: RequestState, rows: Sequence[Row]) -> list[TokenLogprob]:
    """The log-probabilities of the prompt tokens that come after those of which `rows` are."""
    request, found = sequence.request, []
    first = sequence.n_past - len(rows) + 1
    for i, row in zip(range(first, len(request.prompt)), rows, strict=False):
        logits = row.all()
        if request.on_prompt_logits is not None:
            request.on_prompt_logits(i, logits)
        found.append(token_logprob(logits, request.prompt[i], request.n_top_logprobs or 0))
    return found


def _next_piece(
    sequence: RequestState, logits: Row, eog_ids: Collection[int], timings: Timings
) -> Piece:
    """Sample the token after the last one, of which `logits` are, unless a grammar forces it.

    Adds the token to the request's, and what it took to `timings`.
    """
    if sequence.is_complete:  # at the beginning: the grammar has the empty text only
        return _end(sequence)
    criteria = sequence.request.stopping_criteria
    if criteria is not None and criteria(sequence.tokens, logits.all()):
        return _end(sequence)
    token, logprobs = _sample(sequence, logits, eog_ids, timings)
    return _added(sequence, token, logprobs, eog_ids)


def _added(
    sequence: RequestState, token: int, logprobs: list[TokenLogprob], eog_ids: Collection[int]
) -> Piece:
    """Add a token to the request's."""
    decoder, checker = sequence.decoder, sequence.checker
    if token in eog_ids:
        return _end(sequence, logprobs[0] if logprobs else None)
    sequence.tokens.append(token)
    sequence.n_decoded += 1
    text = checker.push(decoder.push(token))
    if checker.stopped is not None:
        return Piece(text, token, logprobs, "stop")
    is_complete = sequence.is_complete
    if sequence.n_decoded < sequence.n_predict and not is_complete:
        return Piece(text, token, logprobs)
    text += checker.push(decoder.finish()) + checker.finish()
    reason: FinishReason = "stop" if is_complete or checker.stopped is not None else "length"
    return Piece(text, token, logprobs, reason)


def _end(sequence: RequestState, logprob: TokenLogprob | None = None) -> Piece:
    """The end of an answer, with what was held back of its text."""
    checker = sequence.checker
    rest = checker.push(sequence.decoder.finish()) + checker.finish()
    return Piece(rest, finish_reason="stop", end_logprob=logprob)


def _sample(
    sequence: RequestState, row: Row, eog_ids: Collection[int], timings: Timings
) -> tuple[int, list[TokenLogprob]]:
    request, sampler, matcher = sequence.request, sequence.sampler, sequence.matcher
    if sequence.forced and not _looks_at_logits(sequence):
        return _accepted(sequence, sequence.forced[0], eog_ids, timings), []
    started = perf_counter()
    logprobs: list[TokenLogprob] = []
    if row.top is not None and matcher is None:  # a draft may lead to where a grammar holds
        token = sampler.sample_among(row.top.ids, row.top.logits)
        token = _among_allowed(sequence, token, row.all)
    else:
        logits = row.all()
        if request.logits_processor is not None:
            logits = request.logits_processor(sequence.tokens, logits.copy())
            if not isinstance(logits, np.ndarray):
                raise SamplingError(
                    f"the logits_processor returned {type(logits).__name__}: it must return logits"
                )
        token, logprobs = _chosen(sequence, logits)
    _accepted(sequence, token, eog_ids, timings)
    timings.sample_s += perf_counter() - started
    return token, logprobs


def _chosen(sequence: RequestState, logits: NDArray[np.float32]) -> tuple[int, list[TokenLogprob]]:
    """The next token, with its log-probability if that is asked for."""
    request, sampler, matcher = sequence.request, sequence.sampler, sequence.matcher
    n_top = request.n_top_logprobs
    drawn = np.array(sequence.forced[:1], np.int64), np.ones(1)
    if sequence.forced:
        token = sequence.forced[0]
    else:
        mask = None if matcher is None else matcher.allowed()
        if n_top is not None and request.scores_sampled:
            drawn = sampler.probabilities(logits, mask)
        token = _among_allowed(sequence, sampler.sample(logits, mask), lambda: logits)
    if n_top is None:
        return token, []
    if request.scores_sampled:
        return token, [sampled_logprob(*drawn, token, n_top)]
    return token, [token_logprob(logits, token, n_top)]


def _among_allowed(
    sequence: RequestState, token: int, logits: Callable[[], NDArray[np.float32]]
) -> int:
    """The token, unless it begins a lazy grammar with text that this does not have: then one that
    is sampled among all others, and so on."""
    lazy, sampler = sequence.lazy, sequence.sampler
    if lazy is None or sequence.matcher is not None:
        return token
    refused: list[int] = []
    while not lazy.allows(token):
        refused.append(token)
        bits = np.zeros(-(-sampler.n_vocab // 64) * 64, np.bool_)
        bits[: sampler.n_vocab] = True
        bits[refused] = False
        mask = np.packbits(bits, bitorder="little").view(np.uint64)
        token = sampler.sample(logits(), mask)
    return token


def _accepted(
    sequence: RequestState, token: int, eog_ids: Collection[int], timings: Timings
) -> int:
    """The next token, after the sampler and the grammar have taken note of it."""
    sequence.sampler.accept(token)
    timings.n_generated += 1
    if sequence.forced:
        sequence.forced.pop(0)
        timings.n_forced += 1
    elif token not in eog_ids:
        _go_on(sequence, token)
    lazy, matcher = sequence.request.lazy_grammar, sequence.matcher
    if lazy is None or lazy.holds or matcher is None or sequence.forced:
        return token
    if matcher.is_accepting:  # the text of the grammar is complete: the answer is free again
        assert sequence.lazy is not None
        sequence.matcher = None
        sequence.lazy.restart(token)
    return token


def _go_on(sequence: RequestState, token: int) -> None:
    """Let the grammar go on behind a token, or begin there."""
    if sequence.matcher is not None:
        sequence.matcher.accept(token)
    elif sequence.lazy is not None:
        sequence.matcher = sequence.lazy.accept(token)
    if sequence.matcher is not None:
        sequence.forced = sequence.matcher.force()
