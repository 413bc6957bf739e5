"""The batch of a step: which tokens of which sequences it runs, and what it counts for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ggmlpy.engine.request_state import RequestState
from ggmlpy.engine.schedule import share_step
from ggmlpy.engine.slots import Slot
from ggmlpy.engine.timings import StepPart, StepTimings
from ggmlpy.memory.batch import Batch


class Taken(NamedTuple):
    """What a step runs of a sequence."""

    slot: Slot[RequestState]
    n: int  # tokens, without those of its draft
    n_outputs: int  # how many of all give logits: the last ones


def next_batch(
    running: Sequence[Slot[RequestState]], n_ubatch: int, token_budget: int, most_outputs: int
) -> tuple[list[Taken], Batch]:
    """The batch of a step of at most `n_ubatch` tokens, and how many of which slots it has.

    A prompt of which many tokens give logits runs in shorter chunks if these would be more than
    `most_outputs`, beside one of each sequence.
    """
    sequences = [slot.taken_by for slot in running]
    n_drafted = sum(len(sequence.draft) for sequence in sequences)
    counts = share_step(sequences, n_ubatch - n_drafted, token_budget - n_drafted)
    taken: list[Taken] = []
    batch = Batch()
    n_left = max(0, most_outputs - n_drafted)
    for slot, sequence, n in zip(running, sequences, counts, strict=True):
        if n == 0:
            continue
        n = min(n, sequence.n_room)
        n_outputs = sequence.n_outputs(n)
        if n_outputs > 1:
            n_cut = max(0, n_outputs - 1 - n_left)
            n, n_outputs = n - n_cut, n_outputs - n_cut
            n_left -= n_outputs - 1
        tokens = sequence.tokens[sequence.n_past : sequence.n_past + n] + sequence.draft
        n_outputs += len(sequence.draft)
        taken.append(Taken(slot, n, n_outputs))
        batch.extend(slot.seq, tokens, sequence.n_past, n_outputs=n_outputs)
    return taken, batch


def drop_drafts(taken: Sequence[Taken]) -> bool:
    """Let sequences run without their drafts. Returns whether any had one."""
    drafting = [part.slot.owner for part in taken if part.slot.owner and part.slot.owner.draft]
    for sequence in drafting:
        sequence.draft = []
    return bool(drafting)


def timings_of(step: int, taken: Sequence[Taken], spent_s: float) -> StepTimings:
    """How many tokens of which kind a step has run, before they are counted as past ones."""
    parts = []
    n_prompt = n_decoded = n_drafted = 0
    for slot, n, _ in taken:
        sequence = slot.taken_by
        n_draft = len(sequence.draft)
        n_drafted += n_draft
        if sequence.is_decoding:
            n_decoded += n
            parts.append(StepPart(slot.seq, 0, n, n_draft))
        else:
            n_prompt += n
            parts.append(StepPart(slot.seq, n, 0, n_draft))
    return StepTimings(step, len(taken), n_prompt, n_decoded, n_drafted, spent_s, tuple(parts))
