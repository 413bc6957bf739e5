"""Drafts of a step: which sequences get one, and how many tokens they share.

Drafts pay as long as a step with them takes hardly longer than one without. Products of a few
tokens are limited by reading weights, so that `_MOST_TOKENS` are decoded and checked together at
most: more sequences get shorter drafts, and none where that many decode anyway. Beside prompts,
which fill a step, drafts take from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from ggmlpy.common.prefix import n_common
from ggmlpy.draft import Asked, Drafter
from ggmlpy.engine.request_state import RequestState
from ggmlpy.engine.schedule import LEAST_PROMPT
from ggmlpy.engine.slots import Slot
from ggmlpy.engine.timings import Timings
from ggmlpy.memory.sequences import SequenceMemory

# Tokens that are decoded and checked in a step, see `schedule.py` for the limit of products.
_MOST_TOKENS = 32


class Drafts:
    """Drafts for the running sequences of an engine."""

    def __init__(self, drafter: Drafter, n_ubatch: int) -> None:
        self.drafter = drafter
        self._n_ubatch = n_ubatch

    def make(
        self, slots: Sequence[Slot[RequestState]], timings: Timings
    ) -> list[tuple[Slot[RequestState], Exception]]:
        """Give sequences that decode the draft that the next step runs behind their last token.

        Returns those of which a function of the user raised an error.
        """
        for slot in slots:
            slot.taken_by.draft = []
        asked = self._asked(slots)
        if not asked:
            return []
        started = perf_counter()
        drafts = self.drafter.draft([each for each, _ in asked])
        timings.draft_s += perf_counter() - started
        failed = []
        for (_, slot), draft in zip(asked, drafts, strict=True):
            if isinstance(draft, Exception):
                failed.append((slot, draft))
            else:
                slot.taken_by.draft = draft
        return failed

    def _asked(self, slots: Sequence[Slot[RequestState]]) -> list[tuple[Asked, Slot[RequestState]]]:
        decoding = [slot for slot in slots if _can_draft(slot.taken_by)]
        n_decoding = sum(slot.taken_by.n_pending == 1 for slot in slots)
        room = min(_MOST_TOKENS, self._n_ubatch - LEAST_PROMPT) - n_decoding
        asked = []
        for i, slot in enumerate(decoding):
            sequence = slot.taken_by
            share = room // (len(decoding) - i)
            # The last token of an answer needs no logits. A full context is shifted before more.
            n_needed = min(sequence.n_predict - sequence.n_decoded, sequence.n_room) - 1
            n_most = min(share, self.drafter.n_most, n_needed)
            n = sequence.draft_length.next(n_most) if n_most > 0 else 0
            if n > 0:
                asked.append((Asked(slot.seq, sequence.tokens, n), slot))
                room -= n
        return asked

    def settle(self, slot: Slot[RequestState], memory: SequenceMemory, timings: Timings) -> None:
        """After a step: keep what was accepted of a sequence's draft, and remove the rest from the
        memory."""
        sequence = slot.taken_by
        draft, n_past = sequence.draft, sequence.n_past
        added = sequence.tokens[n_past:]
        n = n_common(draft, added)
        if n < len(draft):
            memory.seq_rm(slot.seq, n_past + n)
        if not slot.is_shifted:
            slot.tokens += draft[:n]
        sequence.n_past += n
        sequence.first_output = max(sequence.first_output, sequence.n_past)
        sequence.draft = []
        sequence.draft_length.note(len(draft), n, self.drafter.n_most)
        sequence.n_drafts += bool(draft)
        sequence.n_drafted += len(draft)
        sequence.n_accepted += n
        timings.n_drafted += len(draft)
        timings.n_accepted += n
        timings.n_decoded += n


def _can_draft(sequence: RequestState) -> bool:
    """Whether the next step decodes one token of a sequence."""
    return sequence.is_decoding and sequence.n_pending == 1
