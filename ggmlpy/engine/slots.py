"""The sequences of a context as slots: the owner of each, and the tokens that the memory holds.

A slot without an owner keeps its tokens, so that a prompt with the same prefix can reuse them. They
are evicted when cells are needed, those of the least recently used slot first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ggmlpy.errors import ArgumentError, CacheFull, GgmlpyError
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.state import SequenceState, put_state, put_states, take_state

Owner = TypeVar("Owner")


@dataclass(slots=True)
class Slot(Generic[Owner]):
    """One sequence of the context."""

    seq: int
    owner: Owner | None = None
    tokens: list[int] = field(default_factory=list)  # held by the memory, from position 0 on
    freed_at: int = 0  # the step in which its last owner was removed

    @property
    def taken_by(self) -> Owner:
        """The owner, of a slot that has one."""
        assert self.owner is not None
        return self.owner


class Slots(Generic[Owner]):
    """All slots of a memory. Methods change a slot's tokens and the memory together."""

    def __init__(self, memory: SequenceMemory) -> None:
        self.memory = memory
        self.all: list[Slot[Owner]] = [Slot(seq) for seq in range(memory.sizes.n_seq_max)]

    def running(self) -> list[Slot[Owner]]:
        """The slots with an owner."""
        return [slot for slot in self.all if slot.owner is not None]

    def find_free(self, tokens: list[int]) -> Slot[Owner] | None:
        """The free slot with the longest common prefix, else the least recently used one."""
        free = [slot for slot in self.all if slot.owner is None]
        return max(
            free, key=lambda slot: (_n_common(slot.tokens, tokens), -slot.freed_at), default=None
        )

    def reuse(self, slot: Slot[Owner], tokens: list[int]) -> int:
        """Keep or copy the longest prefix of `tokens` that the memory holds, return its length.

        It does not include the last token, which must be processed for its logits.
        """
        reusable = tokens[:-1]
        n_own = self.memory.reusable(slot.seq, _n_common(slot.tokens, reusable))
        best = max(self.all, key=lambda other: _n_common(other.tokens, reusable))
        n_best = _n_common(best.tokens, reusable)
        if best is not slot and n_best > n_own and self.memory.can_copy(best.seq, n_best):
            self.evict(slot)
            try:
                self.memory.seq_cp(best.seq, slot.seq, 0, n_best)
                slot.tokens = reusable[:n_best]
                return n_best
            except CacheFull:
                return 0
        self.memory.seq_rm(slot.seq, n_own)
        del slot.tokens[n_own:]
        return n_own

    def evict_idle(self) -> bool:
        """Evict the tokens of the least recently used free slot. False if none has any."""
        idle = [slot for slot in self.all if slot.owner is None and slot.tokens]
        if not idle:
            return False
        self.evict(min(idle, key=lambda slot: slot.freed_at))
        return True

    def evict(self, slot: Slot[Owner]) -> None:
        """Remove the slot's tokens from the memory."""
        self.memory.seq_rm(slot.seq)
        slot.tokens = []

    def clear(self) -> None:
        """Remove all owners and all tokens."""
        for slot in self.all:
            slot.owner = None
            slot.tokens = []
        self.memory.clear()

    # --- states ---

    def save(self, seq: int | None = None) -> dict[int, SequenceState]:
        """The states of one sequence, or of all that hold any tokens.

        Raises ArgumentError for a sequence that does not exist.
        """
        if seq is not None:
            self.memory.check_seq(seq)
        saved = [s for s in self.all if (s.tokens if seq is None else s.seq == seq)]
        return {slot.seq: take_state(self.memory, slot.seq, slot.tokens) for slot in saved}

    def restore(self, slot: Slot[Owner], state: SequenceState) -> None:
        """Load a state that was saved here into a free slot, evicting idle tokens if needed.

        Raises CacheFull.
        """
        self.evict(slot)
        while True:
            try:
                put_state(self.memory, slot.seq, state)
                break
            except CacheFull:
                if not self.evict_idle():
                    raise
        slot.tokens = list(state.tokens)

    def load(self, states: dict[int, SequenceState], seq: int | None) -> None:
        """Replace all sequences by saved ones, or sequence `seq` by the one that is saved.

        Raises ArgumentError for more sequences than there are slots, GgmlpyError while a slot is in
        use, and what `put_states` raises; nothing is changed then.
        """
        if seq is not None:
            self._load_one(states, seq)
            return
        if self.running():
            raise GgmlpyError("requests are running: read their answers first, or call reset()")
        if len(states) > len(self.all):
            raise ArgumentError(
                f"load_state: the state has {len(states)} sequences, n_seq_max is {len(self.all)}:"
                " load single ones, state.sequence(n) as seq=…"
            )
        # Each keeps its number if all can: the caller may rely on it.
        keeps_numbers = all(n < len(self.all) for n in states)
        by_seq = states if keeps_numbers else dict(enumerate(states.values()))
        with self._held_tokens_only():
            put_states(self.memory, by_seq)
        for slot in self.all:
            slot.tokens = list(by_seq[slot.seq].tokens) if slot.seq in by_seq else []

    def _load_one(self, states: dict[int, SequenceState], seq: int) -> None:
        self.memory.check_seq(seq)
        if len(states) != 1:
            raise ArgumentError(
                f"load_state: the state has {len(states)} sequences, only one can become sequence"
                f" {seq}: select it by state.sequence(n)"
            )
        slot = self.all[seq]
        if slot.owner is not None:
            raise GgmlpyError(
                f"sequence {seq} has a running request: read its answer first, or call reset()"
            )
        (state,) = states.values()
        with self._held_tokens_only():
            put_state(self.memory, seq, state)
        slot.tokens = list(state.tokens)

    @contextmanager
    def _held_tokens_only(self) -> Iterator[None]:
        """If the block fails, slots lose the tokens that the memory has lost."""
        try:
            yield
        except BaseException:
            for slot in self.all:
                del slot.tokens[self.memory.seq_pos_max(slot.seq) + 1 :]
            raise


def _n_common(a: list[int], b: list[int]) -> int:
    """The length of the common prefix."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
