"""Continuous batching: many requests on one context, one batch of their tokens per step.

A step decodes one token of every sequence past its prompt, beside chunks of prompts
(`ggmlpy/engine/step_batch.py`). Requests wait until there is room, or again where the cache is full
(`ggmlpy/engine/admission.py`): the first one always goes on. A finished sequence's tokens stay in
its slot: a prompt with the same prefix, also as that of a running sequence, reuses them; what
displaces them, or preempts a running sequence, swaps them out to host memory
(`ggmlpy/engine/prompt_cache.py`). A sequence that starts again gets back what is held of its
tokens, and runs the rest. Of prompts that begin alike one runs what they share
(`ggmlpy/engine/shared_prefix.py`). A request gets the tokens that it would get alone, independent
of other requests and of drafts (`ggmlpy/engine/drafts.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, islice
from time import perf_counter

from ggmlpy.draft import Drafter
from ggmlpy.engine.adapters import Adapters
from ggmlpy.engine.admission import Admission
from ggmlpy.engine.context_shift import n_discarded
from ggmlpy.engine.drafts import Drafts
from ggmlpy.engine.generation import Piece, Request
from ggmlpy.engine.intake import Intake
from ggmlpy.engine.pieces import Row, next_pieces, rows_of
from ggmlpy.engine.prompt_cache import PromptCache, cache_limit
from ggmlpy.engine.request_state import Output, Reader, RequestState
from ggmlpy.engine.schedule import default_budget
from ggmlpy.engine.slots import Slot, Slots
from ggmlpy.engine.step_batch import Taken, drop_drafts, next_batch, timings_of
from ggmlpy.engine.timings import StepTimings, Timings
from ggmlpy.errors import CacheFull, GgmlpyError
from ggmlpy.grammar import Matchers
from ggmlpy.memory.batch import Batch
from ggmlpy.models.control_vector import ControlVector
from ggmlpy.models.lora import LoraAdapter
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import check_least
from ggmlpy.runtime.outputs import Outputs
from ggmlpy.text.tokenizer import Tokenizer

# Bytes of logits that prompt tokens add to a step at most: a chunk of 256 of them for a vocabulary
# of 128 K, which is long enough for products to be fast.
_MOST_LOGITS = 2**27

_Slot = Slot[RequestState]


class Engine:
    """Takes requests by `add` and returns pieces of answers from `step` while `has_work` is true.

    A `Llama` has one (`llm.engine`); `llm.request(prompt, …)` makes requests for it. Pieces that
    `advance` produces are kept for the next `step`.
    """

    def __init__(
        self,
        context: Context,
        tokenizer: Tokenizer,
        token_budget: int = 0,
        cache_ram: int | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """`token_budget` and `cache_ram` are as in `Llama`, `drafter` proposes tokens that steps
        check. Raises ArgumentError."""
        check_least("token_budget", token_budget, 0)
        self.context = context
        self.token_budget = token_budget or default_budget(context.sizes.n_seq_max)
        self.timings = Timings()
        self.last_step = StepTimings()
        self.n_sequences_run = 0  # of all steps together
        self.max_cells_used = 0  # after any step
        self.drafter = drafter
        self._drafts: Drafts | None = None
        if drafter is not None:
            self._drafts = Drafts(drafter, context.sizes.n_ubatch)
        self._tokenizer = tokenizer
        self.matchers = Matchers(tokenizer)
        n_rows = context.model.hparams.n_vocab  # the last ones may be padding without a token
        self.n_vocab = tokenizer.n_vocab if tokenizer.vocab.has_tokens else n_rows
        self._most_outputs = _MOST_LOGITS // (4 * n_rows)  # beside one of each sequence
        self._ids = count()
        self._n_steps = 0
        self._in_step = False
        self._cancelled: list[int] = []  # to drop after the current step
        self._outputs: list[Output] = []  # not yet returned
        self._unfinished: dict[int, RequestState] = {}  # by id
        encodes = context.encoder is not None  # prompts; what is decoded cannot be used again
        cache = PromptCache(0 if encodes else cache_limit(cache_ram))
        self.slots: Slots[RequestState] = Slots(context.memory, cache)
        self._admission = Admission(context, self.slots)
        self.adapters = Adapters()
        self._intake = Intake(context, tokenizer, self.n_vocab, self.matchers, self.adapters)

    # --- requests ---

    def check(self, request: Request) -> None:
        """Raise what `add` would raise."""
        self._intake.new_state(request)

    def new_id(self) -> int:
        """An id for `add`."""
        return next(self._ids)

    def add(self, request: Request, reader: Reader | None = None, id: int | None = None) -> int:
        """Queue a request and return its id, which its outputs carry.

        With `reader` the pieces go to it and are not returned by `step`. `id` is one that `new_id`
        returned, for a caller that needs it before; ids are in the order of arrival. Raises
        BadBatch for a prompt that is empty, has a token outside the vocabulary or does not fit the
        context, SamplingError for bad stop strings or biases of unknown tokens, ArgumentError for a
        request that is not a Request, Unsupported for a model that generates no text.
        """
        sequence = self._intake.new_state(request, self.new_id() if id is None else id, reader)
        if request.penalizes_prompt:
            for token in sequence.tokens:
                sequence.sampler.accept(token)
        try:
            self._unfinished[sequence.id] = sequence
            self._admission.add(sequence)
        except BaseException:  # an interrupt
            self.cancel(sequence.id)
            raise
        return sequence.id

    def cancel(self, id: int) -> None:
        """Drop a request, waiting or running. Does nothing if it is finished or unknown.

        During a step (called by a logits_processor that closes a stream, or when a generator is
        collected) it takes effect after the step.
        """
        if id not in self._unfinished:
            return
        if self._in_step:
            self._cancelled.append(id)
            return
        self._admission.drop(self._unfinished[id])
        self._unfinished.pop(id, None)

    def unload_lora(self, adapter: LoraAdapter) -> None:
        """Remove an adapter from `adapters` and from the context.

        Raises ArgumentError if it is not loaded, GgmlpyError while requests that have it run.
        """
        n = sum(any(a is adapter for a, _ in s.lora) for s in self._unfinished.values())
        if n:
            raise GgmlpyError(
                f"{adapter.name}: {n} running requests have this adapter: read their answers first,"
                " or call reset()"
            )
        self.adapters.remove(adapter)
        self.context.unload_lora(adapter)

    def set_control_vector(self, vector: ControlVector | None) -> None:
        """Set that of the context. Raises GgmlpyError while requests run."""
        if self._unfinished:
            raise GgmlpyError(
                f"{len(self._unfinished)} requests are running, whose tokens have other control"
                " vectors: read their answers first, or call reset()"
            )
        self.context.set_control_vector(vector)

    @property
    def n_waiting(self) -> int:
        """Requests that do not run yet, or not at the moment."""
        return len(self._admission.waiting)

    @property
    def is_drafting(self) -> bool:
        """Whether drafts of a draft model, or of another source, are run."""
        return self._drafts is not None

    @property
    def has_work(self) -> bool:
        """Whether `step` would run or return anything."""
        return self.is_running or bool(self._outputs)

    @property
    def is_running(self) -> bool:
        """Whether any request is not finished."""
        return bool(self._admission.waiting or self.slots.running())

    def reset(self) -> None:
        """Drop every request, and clear the memory. Raises GgmlpyError during a step."""
        self.check_idle_step()
        self._drop_all()

    def _drop_all(self) -> None:
        self._unfinished.clear()
        self._admission.waiting.clear()
        self._outputs.clear()
        self.slots.clear()

    # --- a step ---

    def step(self) -> list[Output]:
        """Run one batch, and return the new pieces of requests without a reader.

        Raises what `advance` raises.
        """
        self.advance()
        outputs, self._outputs = self._outputs, []
        return outputs

    def advance(self) -> None:
        """Run one batch of pending tokens, if there are any.

        An error of one request (its logits_processor raises, its logits have no maximum) ends that
        request, as its output. After an error that is raised here every request is where it was, or
        waits again. An interrupt may drop all requests, if tokens that were run would be lost.
        """
        self.check_idle_step()
        self._n_steps += 1
        try:
            self._in_step = True
            self._step()
            self._in_step = False
        except BaseException:  # not in `finally`, before whose first line an interrupt may come
            self._in_step = False
            raise
        finally:
            for id in self._cancelled:
                self.cancel(id)
            self._cancelled.clear()

    def check_idle_step(self) -> None:
        """Raise GgmlpyError during a step, when a request's callback calls it."""
        if self._in_step:
            raise GgmlpyError(
                "a step is running: a callback, such as a logits_processor, cannot use the model"
            )

    def _step(self) -> None:
        self._shift_full()
        if self._drafts is not None:
            for slot, error in self._drafts.make(self.slots.running(), self.timings):
                self._fail(slot, error)
        with self._reset_if_interrupted():
            self._start()
        while True:
            taken, batch = self._next_batch()
            if not batch:
                assert not self.is_running, "requests are pending, but no batch can be made"
                return
            n_past = [part.slot.taken_by.n_past for part in taken]
            try:
                self._run(taken, batch)
                return
            except CacheFull as full:
                if drop_drafts(taken):  # they must not displace anything
                    continue
                self._free_cells(full)
            except BaseException:
                drop_drafts(taken)
                memory = self.context.memory
                n_held = [memory.seq_pos_max(part.slot.seq) + 1 for part in taken]
                if n_held != n_past:  # an interrupt: the logits of tokens that were run are lost
                    self._drop_all()
                raise

    def _start(self) -> None:
        """Let waiting requests run, as far as they fit."""
        for sequence, error in self._admission.start(self._n_steps, self.timings):
            self._unfinished.pop(sequence.id, None)
            self._deliver(sequence, error)
        for slot in self.slots.running():
            if slot.taken_by.reports_progress and not slot.taken_by.has_reported:
                self._report(slot)

    def _shift_full(self) -> None:
        """Shift the sequences whose context is full. Cells that they share are copied, for which
        others may have to give way: raises CacheFull if nothing can."""
        for slot in self.slots.running():
            while slot.owner is not None and slot.owner.n_room <= 0:
                try:
                    self._shift(slot, slot.owner)
                except CacheFull as full:
                    self._free_cells(full)

    def _shift(self, slot: _Slot, sequence: RequestState) -> None:
        n = n_discarded(sequence.n_past, sequence.n_keep, sequence.request.n_discard)
        with self._reset_if_interrupted():
            self.context.seq_shift(slot.seq, sequence.n_keep, n)
            self.slots.note_shift(slot, sequence.n_keep)
            sequence.cut(n, self.context.sizes.n_ctx_seq - 1)

    def _free_cells(self, full: CacheFull) -> None:
        """Let something give way, else raise the error."""
        with self._reset_if_interrupted():
            if not self._admission.give_way(self.timings):
                raise full

    def _fail(self, slot: _Slot, error: Exception) -> None:
        """End a running request with an error."""
        sequence = slot.taken_by
        self.slots.free(slot)
        self._unfinished.pop(sequence.id, None)
        self._deliver(sequence, error)

    def _run(self, taken: list[Taken], batch: Batch) -> None:
        """Run a batch, and make the pieces that follow from it."""
        started = perf_counter()
        outputs = self.context.run_batch(batch)
        self.last_step = timings_of(self._n_steps, taken, perf_counter() - started)
        self.timings.add(self.last_step)
        self.n_sequences_run += self.last_step.n_sequences
        self.max_cells_used = max(self.max_cells_used, self.context.memory.n_used())
        self._add_pieces(taken, outputs)

    @contextmanager
    def _reset_if_interrupted(self) -> Iterator[None]:
        """Drop all requests if the block is interrupted: one may be nowhere, or in two places."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._drop_all()
            raise

    def _next_batch(self) -> tuple[list[Taken], Batch]:
        n_ubatch = self.context.sizes.n_ubatch
        return next_batch(self.slots.running(), n_ubatch, self.token_budget, self._most_outputs)

    def _add_pieces(self, taken: list[Taken], outputs: Outputs) -> None:
        """Make the pieces of every sequence that has logits, such as those of its last token."""
        with_logits = [part.slot.taken_by for part in taken for _ in range(part.n_outputs)]
        rows = iter(rows_of(outputs, with_logits, self.context))
        for slot, n, n_outputs in taken:
            sequence = slot.taken_by
            if not slot.is_shifted:
                slot.tokens += sequence.tokens[sequence.n_past : sequence.n_past + n]
            sequence.n_past += n
            sequence.first_output = max(sequence.first_output, sequence.n_past)
            sequence.last_step = self._n_steps
            if sequence.reports_progress:
                self._report(slot)
            if not n_outputs:
                continue
            pieces = self._next_pieces(sequence, list(islice(rows, n_outputs)))
            if not sequence.first_s and sequence.n_decoded:
                sequence.first_s = perf_counter()
            if sequence.draft and self._drafts is not None:
                self._drafts.settle(slot, self.context.memory, self.timings)
            for piece in pieces:
                if isinstance(piece, Exception) or piece.finish_reason is not None:
                    self.slots.free(slot)
                    self._unfinished.pop(sequence.id, None)
                    if isinstance(piece, Piece):
                        piece = replace(piece, timings=sequence.timings(slot.seq))
                elif sequence.request.reports_timings:
                    piece = replace(piece, timings=sequence.timings(slot.seq))
                self._deliver(sequence, piece)

    def _report(self, slot: _Slot) -> None:
        """Tell how far the prompt in a slot is."""
        sequence = slot.taken_by
        sequence.has_reported = True
        is_timed = sequence.request.reports_timings
        timings = sequence.timings(slot.seq) if is_timed else None
        self._deliver(sequence, Piece("", progress=sequence.progress(), timings=timings))

    def _deliver(self, sequence: RequestState, piece: Piece | Exception) -> None:
        if sequence.reader is not None:
            sequence.reader(piece)
        else:
            self._outputs.append(Output(sequence.id, piece))

    def _next_pieces(
        self, sequence: RequestState, rows: Sequence[Row]
    ) -> Sequence[Piece | Exception]:
        pieces: list[Piece | Exception] = []
        try:
            pieces.extend(next_pieces(sequence, rows, self._tokenizer.eog_ids, self.timings))
        except Exception as error:  # of this request only: its callback may raise anything
            pieces.append(error)
        return pieces
