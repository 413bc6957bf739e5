"""Which requests wait, which of them start, and which give way where the cache is full.

    waiting  --start-->  running  --give_way-->  waiting

Requests of the lowest `priority` value start first, in the order of arrival, and are preempted
last, in the reverse order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from time import perf_counter

from ggmlpy.engine.request_state import RequestState
from ggmlpy.engine.shared_prefix import first_ready
from ggmlpy.engine.slots import Slot, Slots
from ggmlpy.engine.timings import Timings
from ggmlpy.errors import CacheFull
from ggmlpy.memory.batch import Batch
from ggmlpy.runtime.context import Context

# Cells of a shared stream that are reserved for each running sequence when another one starts.
_N_RESERVED = 16

_Slot = Slot[RequestState]


class Admission:
    """The waiting requests of an engine, and the slots that they get."""

    def __init__(self, context: Context, slots: Slots[RequestState]) -> None:
        self.waiting: list[RequestState] = []  # those that do not run, by `_place`
        self._context = context
        self._slots = slots
        # What recurrent layers and windows keep of a running prompt is not that of its beginning.
        memory = context.memory
        windows = (cache.cells.window for cache in memory.caches)
        self._shares = memory.recurrent is None and not any(windows) and context.encoder is None

    def add(self, sequence: RequestState) -> None:
        """Let a request wait."""
        insort(self.waiting, sequence, key=_place)

    def drop(self, sequence: RequestState) -> None:
        """Drop a request, waiting or running."""
        for slot in self._slots.running():
            if slot.owner is sequence:
                self._slots.free(slot)
        i = bisect_left(self.waiting, _place(sequence), key=_place)
        if i < len(self.waiting) and self.waiting[i] is sequence:
            del self.waiting[i]

    def start(self, step: int, timings: Timings) -> list[tuple[RequestState, Exception]]:
        """Give free slots to requests before a step of this number, until the next one does not
        fit. Returns those that cannot start, with the errors.

        The next one is of the lowest priority value: the first that arrived and need not wait for a
        prefix, or for the slot that it asks for. Others do not overtake it, so that it starts as
        soon as it fits.
        """
        failed = []
        while self.waiting and self._slots.has_free():
            sequence = self._first_ready(step)
            if sequence is None or not self._fits(sequence):
                break
            slot = self._slot_for(sequence)
            error = self._admit(sequence, slot, step, timings)
            if error is not None:
                failed.append((sequence, error))
            elif sequence.held is not None:  # there are too few cells for its copy yet
                break
        return failed

    def give_way(self, timings: Timings) -> bool:
        """After CacheFull: evict the tokens of an idle slot, or else preempt a sequence.

        That is the latest of those with the highest priority value, one that frees cells if any of
        them does. So the first one of the lowest value ends, whatever comes later. What one holds
        whose context was shifted cannot be run again: it waits with a copy. Returns whether either
        was possible.
        """
        if self._slots.evict_idle():
            return True
        running = self._slots.running()
        holding = [slot for slot in running if slot.tokens or slot.is_shifted]
        if len(running) < 2 or not holding:
            return False
        slot = max(holding, key=self._preemption_key)
        sequence = slot.taken_by
        if slot.is_shifted:
            sequence.held = self._slots.take_away(slot)
        else:
            self._slots.swap_out(slot)
            sequence.n_past = 0
        self._slots.free(slot)
        sequence.n_preempted += 1
        timings.n_preempted += 1
        self.add(sequence)
        return True

    def _preemption_key(self, slot: _Slot) -> tuple[int, bool, int]:
        """The running sequence with the highest key is preempted."""
        sequence = slot.taken_by
        return sequence.priority, self._slots.n_freed_by(slot) > 0, sequence.id

    # --- starting ---

    def _first_ready(self, step: int) -> RequestState | None:
        """The waiting request that starts next, unless all wait for what others run."""
        ready = (each for each in self.waiting if self._has_slot(each))
        if not self._shares:
            return next(ready, None)
        # A prompt that got no tokens of the last step may wait for long itself.
        running = (slot.taken_by for slot in self._slots.running())
        advancing = [s for s in running if s.last_step >= step - 1]
        return first_ready(ready, advancing, self._slots.n_held)

    def _has_slot(self, sequence: RequestState) -> bool:
        """Whether the slot that a request asks for is free."""
        seq = sequence.request.slot
        return seq is None or self._slots.all[seq].owner is None

    def _slot_for(self, sequence: RequestState) -> _Slot:
        """The free slot that a request gets."""
        request = sequence.request
        if request.slot is not None:
            return self._slots.all[request.slot]
        reusable = sequence.reusable if request.reuses else []
        slot = self._slots.find_free(reusable, sequence.changes)
        assert slot is not None
        return slot

    def _fits(self, sequence: RequestState) -> bool:
        """Whether a sequence can start without an early preemption of another one.

        It always can in a stream of its own. A shared stream must have cells or pages for the
        running sequences, for what the new one does not share with these, and for some growth of
        each, unless no other is running.
        """
        running = self._slots.running()
        if not running:
            return True
        tokens, sources = sequence.tokens, self._context.memory.source
        if sources is not None:
            encoded = {slot.seq: len(slot.taken_by.source) for slot in running}
            if not sources.has_room(encoded, len(sequence.source)):
                return False
        lengths = {slot.seq: len(slot.taken_by.tokens) + _N_RESERVED for slot in running}
        n_shared = 0  # a shifted context comes back as a copy
        if sequence.held is None and sequence.request.reuses:
            n_shared = self._slots.n_shared(sequence.reusable, sequence.changes)
        return self._context.memory.has_room(lengths, len(tokens), n_shared)

    def _admit(
        self, sequence: RequestState, slot: _Slot, step: int, timings: Timings
    ) -> Exception | None:
        """Give a slot to a waiting request, with what is held of its tokens. Returns the error of a
        request that cannot start, which does not wait any more then."""
        cache = self._slots.cache
        restored = cache.n_restored
        self.waiting.remove(sequence)
        slot.owner = sequence
        self._context.use_lora(slot.seq, sequence.lora)
        try:
            sequence.n_past = self._begin(slot, sequence, timings)
        except CacheFull as error:
            self._slots.evict(slot)
            self._slots.free(slot)
            if sequence.held is None:
                return error
            self.add(sequence)
            return None
        except Exception as error:  # it ends this request only, so that others start
            self._slots.evict(slot)
            self._slots.free(slot)
            return error
        sequence.last_step = step - 1
        timings.n_restored += cache.n_restored - restored
        if not sequence.n_preempted:
            timings.n_reused += sequence.n_past
            sequence.n_reused = sequence.n_past
            sequence.started_s = perf_counter()
        return None

    def _begin(self, slot: _Slot, sequence: RequestState, timings: Timings) -> int:
        """Let a slot hold what there is of a sequence's tokens. Returns how many these are."""
        if self._context.encoder is not None:
            self._encode(slot, sequence.source, timings)
            slot.changes = sequence.changes
            return 0
        if sequence.held is not None:
            self._slots.give_back(slot, sequence.held)
            sequence.held = None
            timings.n_restored += sequence.n_past
            return sequence.n_past
        if not sequence.request.reuses and not sequence.n_preempted:
            self._slots.swap_out(slot)
            slot.changes = sequence.changes
            return 0
        tokens = sequence.tokens[: sequence.first_output + 1]
        try:
            return self._slots.reuse(slot, tokens, sequence.changes)
        except MemoryError:  # of the machine, for a copy: all tokens are run
            self._slots.evict(slot)
            slot.changes = sequence.changes
            return 0

    def _encode(self, slot: _Slot, source: list[int], timings: Timings) -> None:
        """Encode the source of a sequence. Those of idle slots are removed, which frees cells."""
        sources = self._slots.memory.source
        assert sources is not None
        self._slots.evict(slot)
        for other in self._slots.all:
            if other.owner is None:
                sources.seq_rm(other.seq)
        batch = Batch()
        batch.extend(slot.seq, source, 0)
        started = perf_counter()
        self._context.encode_batch(batch)
        timings.n_prompt += len(source)
        timings.prompt_s += perf_counter() - started


def _place(sequence: RequestState) -> tuple[int, int]:
    """The order in which requests start."""
    return sequence.priority, sequence.id
