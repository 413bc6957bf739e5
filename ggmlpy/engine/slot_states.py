"""Saved states of sequences: taken from slots, and loaded into them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ggmlpy.engine.slots import Owner, Slots
from ggmlpy.errors import ArgumentError, CacheFull, GgmlpyError
from ggmlpy.memory.state import SequenceState, put_state, put_states, take_state


def save_states(slots: Slots[Owner], seq: int | None = None) -> dict[int, SequenceState]:
    """The states of one sequence, or of all that hold any tokens.

    Raises ArgumentError for a sequence that does not exist, GgmlpyError for one that runs and whose
    context was shifted.
    """
    if seq is not None:
        slots.memory.check_seq(seq)
    saved = [s for s in slots.all if (s.tokens if seq is None else s.seq == seq)]
    for slot in saved:
        if slot.is_shifted:
            raise GgmlpyError(
                f"sequence {slot.seq} has a running request whose context was shifted: there is no"
                " state of its tokens"
            )
    return {s.seq: take_state(slots.memory, s.seq, s.tokens, s.changes) for s in saved}


def load_states(slots: Slots[Owner], states: dict[int, SequenceState], seq: int | None) -> None:
    """Replace all sequences by saved ones, or sequence `seq` by the one that is saved.

    Raises ArgumentError for more sequences than there are slots, GgmlpyError while a slot is in
    use, CacheFull for more tokens than fit, and what `put_states` raises; nothing is changed then.
    """
    if seq is not None:
        _load_one(slots, states, seq)
        return
    if slots.running():
        raise GgmlpyError("requests are running: read their answers first, or call reset()")
    if len(states) > len(slots.all):
        raise ArgumentError(
            f"load_state: the state has {len(states)} sequences, n_seq_max is {len(slots.all)}:"
            " load single ones, state.sequence(n) as seq=…"
        )
    # Each keeps its number if all can: the caller may rely on it.
    keeps_numbers = all(n < len(slots.all) for n in states)
    by_seq = states if keeps_numbers else dict(enumerate(states.values()))
    for state in by_seq.values():
        _check_length(slots, state)
    with _held_tokens_only(slots):
        put_states(slots.memory, by_seq)
    for slot in slots.all:
        slots.note_state(slot, by_seq.get(slot.seq))


def _load_one(slots: Slots[Owner], states: dict[int, SequenceState], seq: int) -> None:
    slots.memory.check_seq(seq)
    if len(states) != 1:
        raise ArgumentError(
            f"load_state: the state has {len(states)} sequences, only one can become sequence"
            f" {seq}: select it by state.sequence(n)"
        )
    slot = slots.all[seq]
    if slot.owner is not None:
        raise GgmlpyError(
            f"sequence {seq} has a running request: read its answer first, or call reset()"
        )
    (state,) = states.values()
    _check_length(slots, state)
    with _held_tokens_only(slots):
        put_state(slots.memory, seq, state)
    slots.note_state(slot, state)


def _check_length(slots: Slots[Owner], state: SequenceState) -> None:
    """Raise CacheFull for more tokens than a sequence may have."""
    n_ctx_seq = slots.memory.sizes.n_ctx_seq
    if len(state.tokens) > n_ctx_seq:
        raise CacheFull(
            f"load_state: the state has {len(state.tokens)} tokens, a sequence may have"
            f" n_ctx_seq = {n_ctx_seq}"
        )


@contextmanager
def _held_tokens_only(slots: Slots[Owner]) -> Iterator[None]:
    """If the block fails, slots lose the tokens that the memory has lost."""
    try:
        yield
    except BaseException:
        for slot in slots.all:
            slot.tokens = slot.tokens[: slots.memory.seq_pos_max(slot.seq) + 1]
        raise
