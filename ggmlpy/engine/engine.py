"""Continuous batching: many requests on one context, each step one batch of whatever is due.

    waiting  --admit-->  running  --the cache is full-->  set aside  --there is room-->  running

A step takes one token of every sequence that writes, and fills the rest of the ubatch with prompts.
A finished sequence's tokens stay in its slot: a prompt that begins like them, or like those of a
sequence still running, does not run that part again. With a stream for each sequence a request gets
the tokens that it would get alone, whatever other requests run beside it. In a shared stream
(`kv_unified`) its logits may be rounded otherwise: docs/promises.md says where.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.arguments import WrongKind, as_int, refusal
from ggmlpy.engine.generation import FinishReason, Piece, Request, TokenLogprob, token_logprob
from ggmlpy.engine.slots import Slot, Slots
from ggmlpy.engine.timings import Timings
from ggmlpy.errors import BadBatch, CacheFull, GgmlpyError, SamplingError
from ggmlpy.memory.batch import Batch, check_tokens
from ggmlpy.memory.state import SequenceState
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import check_least
from ggmlpy.sampling import Sampler
from ggmlpy.text.stopping import StopChecker
from ggmlpy.text.tokenizer import StreamDecoder, Tokenizer

# Tokens by which each running sequence of a shared stream may still grow when one more starts.
_GROWTH = 16


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of one request's answer, or the error that ended it."""

    id: int
    piece: Piece | Exception


Reader = Callable[[Piece | Exception], None]


@dataclass(eq=False, slots=True)
class _Sequence:
    """A request under way."""

    id: int
    request: Request
    sampler: Sampler
    decoder: StreamDecoder
    checker: StopChecker
    tokens: list[int]  # the prompt and what was written after it
    n_most: int  # tokens to write: what was asked for, as far as a sequence has room
    reader: Reader | None  # who gets the pieces; None: who calls `step`
    last_step: int = 0  # in which any of its tokens were run
    n_run: int = 0  # of these, how many the memory holds
    n_made: int = 0
    saved: SequenceState | None = None  # while set aside

    @property
    def n_due(self) -> int:
        """Tokens to run before the next one can be sampled."""
        return len(self.tokens) - self.n_run

    @property
    def is_writing(self) -> bool:
        return self.n_made > 0


_Slot = Slot[_Sequence]


def _turn(slot: _Slot) -> tuple[int, bool, int]:
    sequence = slot.taken_by
    return sequence.last_step, not sequence.is_writing, sequence.id


class Engine:
    """Requests go in by `add`, pieces of answers come out of `step`, until `has_work` is false.

    A `Llama` has one (`llm.engine`); `llm.request(prompt, …)` makes requests for it. Whatever else
    runs on it meanwhile, no piece is lost: what `advance` leaves waits for the next `step`.
    """

    def __init__(self, context: Context, tokenizer: Tokenizer) -> None:
        self.context = context
        self.timings = Timings()
        self.n_set_aside = 0  # how often a sequence had to make room
        self.most_cells_used = 0  # after any step
        self._tokenizer = tokenizer
        n_rows = context.model.hparams.n_vocab  # of which the last may be padding, without a token
        self.n_vocab = tokenizer.n_vocab if tokenizer.vocab.has_tokens else n_rows
        self._ids = count()
        self._n_steps = 0
        self._in_step = False
        self._cancelled: list[int] = []  # to be dropped when the step is over
        self._outputs: list[Output] = []  # made, and not yet returned
        self._waiting: deque[_Sequence] = deque()
        self._aside: deque[_Sequence] = deque()
        self.slots: Slots[_Sequence] = Slots(context.memory)

    # --- requests ---

    def check(self, request: Request) -> None:
        """Raise what `add` would raise."""
        self._sequence(request)

    def add(self, request: Request, reader: Reader | None = None) -> int:
        """Queue a request; returns the id that its outputs carry.

        With `reader` the pieces go to it, and not out of `step`. Raises BadBatch for a prompt that
        is empty, has a token outside the vocabulary, or is longer than a sequence may be;
        SamplingError for bad stop strings or biases of unknown tokens.
        """
        sequence = self._sequence(request, reader)
        for token in request.prompt:
            sequence.sampler.accept(token)
        self._waiting.append(sequence)
        return sequence.id

    def _sequence(self, request: Request, reader: Reader | None = None) -> _Sequence:
        """The request made ready to be queued."""
        if not isinstance(request, Request):
            raise BadBatch(
                f"a request is made by Llama.request(prompt, …), {type(request).__name__} is none"
            )
        try:
            check_least("max_tokens", as_int(request.max_tokens), 1)
        except WrongKind as wrong:
            raise refusal("Request", "max_tokens", wrong) from None
        check_tokens(request.prompt, self.n_vocab)
        limit = self.context.sizes.n_ctx_seq
        if len(request.prompt) > limit:
            raise BadBatch(
                f"the prompt is {len(request.prompt)} tokens long, a sequence may have"
                f" n_ctx_seq = {limit}"
            )
        return _Sequence(
            id=next(self._ids),
            request=request,
            sampler=Sampler(request.sampling, self.n_vocab),
            decoder=self._tokenizer.stream(start=False),
            checker=StopChecker(list(request.stop)),
            tokens=list(request.prompt),
            # The last token need not be run, so one more can be written than there is room for.
            n_most=min(request.max_tokens, limit - len(request.prompt) + 1),
            reader=reader,
        )

    def cancel(self, id: int) -> None:
        """Drop a request, wherever it is. One that is finished or unknown is left alone.

        During a step (a logits_processor that closes a stream, a generator that is collected) it
        waits for the step's end.
        """
        if self._in_step:
            self._cancelled.append(id)
            return
        for queue in (self._waiting, self._aside):
            for sequence in [s for s in queue if s.id == id]:
                queue.remove(sequence)
        for slot in self.slots.running():
            if slot.taken_by.id == id:
                self._free(slot)

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to run or to return."""
        return self.is_running or bool(self._outputs)

    @property
    def is_running(self) -> bool:
        """Whether any request is not finished."""
        return bool(self._waiting or self._aside or self.slots.running())

    def reset(self) -> None:
        """Drop every request and all that the memory holds."""
        self._waiting.clear()
        self._aside.clear()
        self._outputs.clear()
        self.slots.clear()

    # --- a step ---

    def step(self) -> list[Output]:
        """Run one batch of what is due; the pieces that were added to answers without a reader.

        Raises as `advance` does.
        """
        self.advance()
        outputs, self._outputs = self._outputs, []
        return outputs

    def advance(self) -> None:
        """Run one batch of what is due, if anything is.

        What goes wrong with one request (its logits_processor raises, its logits have no maximum)
        ends that one alone, as its output. Anything raised here leaves the engine as it was, but
        for an interrupt between the batch and its outputs, which drops all requests.
        """
        self.check_idle_step()
        self._n_steps += 1
        self._in_step = True
        try:
            self._step()
        finally:
            self._in_step = False
            for id in self._cancelled:
                self.cancel(id)
            self._cancelled.clear()

    def check_idle_step(self) -> None:
        """Raise GgmlpyError during a step: what a callback of a request may not do."""
        if self._in_step:
            raise GgmlpyError(
                "a step is under way: a logits_processor cannot use the model that calls it"
            )

    def _step(self) -> None:
        try:
            self._resume()
            self._admit()
        except Exception:
            raise
        except BaseException:  # an interrupt: a request may be nowhere, or in two places
            self.reset()
            raise
        while True:
            taken, batch = self._collect()
            if not batch:
                assert not self.is_running, "there is work, and none of it can be run"
                return
            started = perf_counter()
            try:
                logits = self.context.decode_batch(batch)
                break
            except CacheFull:
                if not self._make_room():
                    raise
        self._count(taken, perf_counter() - started)
        self.most_cells_used = max(self.most_cells_used, self.context.memory.n_used())
        try:
            self._write_pieces(taken, logits)
        except BaseException:  # an interrupt: tokens were run whose logits are lost
            self.reset()
            raise

    def _collect(self) -> tuple[list[tuple[_Slot, int]], Batch]:
        """What runs in this step: slots with how many of their tokens, and these as a batch."""
        room = self.context.sizes.n_ubatch
        taken: list[tuple[_Slot, int]] = []
        batch = Batch()
        # Those that had no room in the last step come first, then those that write.
        slots = sorted(self.slots.running(), key=_turn)
        for slot in slots:
            sequence = slot.taken_by
            n = min(sequence.n_due, room)
            if n == 0:
                break
            room -= n
            sequence.last_step = self._n_steps
            taken.append((slot, n))
            tokens = sequence.tokens[sequence.n_run : sequence.n_run + n]
            last = n == sequence.n_due
            batch.extend(slot.seq, tokens, sequence.n_run, last_output=last)
        return taken, batch

    def _write_pieces(self, taken: list[tuple[_Slot, int]], logits: NDArray[np.float32]) -> None:
        row = 0
        for slot, n in taken:
            sequence = slot.taken_by
            slot.tokens += sequence.tokens[sequence.n_run : sequence.n_run + n]
            sequence.n_run += n
            if sequence.n_due == 0:
                piece = self._write_or_fail(sequence, logits[row, : self.n_vocab])
                row += 1
                if isinstance(piece, Exception) or piece.finish_reason is not None:
                    self._free(slot)
                if sequence.reader is not None:
                    sequence.reader(piece)
                else:
                    self._outputs.append(Output(sequence.id, piece))

    def _write_or_fail(self, sequence: _Sequence, logits: NDArray[np.float32]) -> Piece | Exception:
        try:
            return self._write(sequence, logits)
        except Exception as error:  # of this request: a callback of its own may raise anything
            return error

    def _write(self, sequence: _Sequence, logits: NDArray[np.float32]) -> Piece:
        """Sample the next token: the text that it adds."""
        token, logprobs = self._sample(sequence, logits)
        decoder, checker = sequence.decoder, sequence.checker
        if token in self._tokenizer.eog_ids:
            rest = checker.push(decoder.finish()) + checker.finish()
            return Piece(rest, finish_reason="stop")
        sequence.tokens.append(token)
        sequence.n_made += 1
        text = checker.push(decoder.push(token))
        if checker.stopped is not None:
            return Piece(text, token, logprobs, "stop")
        if sequence.n_made < sequence.n_most:
            return Piece(text, token, logprobs)
        text += checker.push(decoder.finish()) + checker.finish()
        reason: FinishReason = "stop" if checker.stopped is not None else "length"
        return Piece(text, token, logprobs, reason)

    def _sample(
        self, sequence: _Sequence, logits: NDArray[np.float32]
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
        self.timings.n_generated += 1
        self.timings.sample_s += perf_counter() - started
        return token, logprobs

    def _count(self, taken: list[tuple[_Slot, int]], spent_s: float) -> None:
        """Share the step's time among prompts and writing, by their tokens."""
        n_written = sum(n for slot, n in taken if slot.taken_by.is_writing)
        n_prompt = sum(n for _, n in taken) - n_written
        share_s = spent_s / (n_prompt + n_written)
        self.timings.n_prompt += n_prompt
        self.timings.prompt_s += share_s * n_prompt
        self.timings.n_decoded += n_written
        self.timings.decode_s += share_s * n_written

    # --- slots and room ---

    def _admit(self) -> None:
        """Give waiting requests the free slots, first come first served."""
        while self._waiting and not self._aside:
            sequence = self._waiting[0]
            if not self._has_room_for(len(sequence.tokens)):
                return
            slot = self.slots.choose(sequence.tokens)
            if slot is None:
                return
            self._waiting.popleft()
            slot.owner = sequence
            sequence.last_step = self._n_steps - 1
            sequence.n_run = self.slots.reuse(slot, sequence.tokens)
            self.timings.n_reused += sequence.n_run

    def _resume(self) -> None:
        """Bring back what was set aside, longest waiting first, when there is room to go on."""
        while self._aside:
            sequence = self._aside[0]
            slot = self.slots.choose([])
            if slot is None or not self._has_room_for(len(sequence.tokens)):
                return
            assert sequence.saved is not None
            self.slots.restore(slot, sequence.saved)
            self._aside.popleft()
            slot.owner = sequence
            sequence.last_step = self._n_steps - 1
            sequence.saved = None

    def _has_room_for(self, n_tokens: int) -> bool:
        """Whether a sequence of so many tokens can start without the others having to stop soon.

        In streams of its own a sequence always can. A shared stream must hold what runs, what is to
        come, and some growth of each; where nothing runs, what is to come alone.
        """
        running = self.slots.running()
        if self.context.memory.n_stream > 1 or not running:
            return True
        sizes = self.context.sizes
        in_use = sum(len(slot.taken_by.tokens) for slot in running)
        return in_use + n_tokens + len(running) * _GROWTH <= sizes.n_ctx

    def _make_room(self) -> bool:
        """After CacheFull: forget what no one uses, else set the largest sequence aside.

        Returns whether anything could be done.
        """
        if self.slots.drop_idle():
            return True
        running = self.slots.running()
        if len(running) < 2:
            return False
        largest = max(running, key=lambda slot: len(slot.tokens))
        sequence = largest.taken_by
        sequence.saved = self.slots.save(largest.seq)[largest.seq]
        self._aside.append(sequence)
        self.n_set_aside += 1
        self._free(largest)
        self.slots.forget(largest)
        return True

    def _free(self, slot: _Slot) -> None:
        slot.owner = None
        slot.freed_at = self._n_steps
