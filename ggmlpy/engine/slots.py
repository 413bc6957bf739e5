"""The sequences of a context as slots: who has each, and which tokens the memory holds for it.

A slot that is given up keeps its tokens, so that a text that begins like them need not run that
part again. They make way, those of the longest unused slot first, when room is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ggmlpy.errors import BadBatch, CacheFull
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.state import SequenceState, put_state, put_states, take_state

Owner = TypeVar("Owner")


@dataclass(slots=True)
class Slot(Generic[Owner]):
    """One sequence of the context."""

    seq: int
    owner: Owner | None = None
    tokens: list[int] = field(default_factory=list)  # that the memory holds, from position 0 on
    freed_at: int = 0  # the step at which it was last given up

    @property
    def taken_by(self) -> Owner:
        """The owner of a slot that has one."""
        assert self.owner is not None
        return self.owner


class Slots(Generic[Owner]):
    """All slots of a memory. What is done to their tokens is done in the memory too."""

    def __init__(self, memory: SequenceMemory) -> None:
        self.memory = memory
        self.all: list[Slot[Owner]] = [Slot(seq) for seq in range(memory.sizes.n_seq_max)]

    def running(self) -> list[Slot[Owner]]:
        """Those that someone has."""
        return [slot for slot in self.all if slot.owner is not None]

    def choose(self, tokens: list[int]) -> Slot[Owner] | None:
        """The free slot that holds most of the beginning of `tokens`, else the longest unused."""
        free = [slot for slot in self.all if slot.owner is None]
        return max(
            free, key=lambda slot: (_n_common(slot.tokens, tokens), -slot.freed_at), default=None
        )

    def reuse(self, slot: Slot[Owner], tokens: list[int]) -> int:
        """Keep or copy what the memory holds of the beginning of `tokens`; how many that is.

        The last token is always run: its logits are wanted.
        """
        wanted = tokens[:-1]
        n_own = self.memory.reusable(slot.seq, _n_common(slot.tokens, wanted))
        best = max(self.all, key=lambda other: _n_common(other.tokens, wanted))
        n_best = _n_common(best.tokens, wanted)
        if best is not slot and n_best > n_own and self.memory.can_copy(best.seq, n_best):
            self.forget(slot)
            try:
                self.memory.seq_cp(best.seq, slot.seq, 0, n_best)
                slot.tokens = wanted[:n_best]
                return n_best
            except CacheFull:
                return 0
        self.memory.seq_rm(slot.seq, n_own)
        del slot.tokens[n_own:]
        return n_own

    def drop_idle(self) -> bool:
        """Forget the tokens of the free slot that was given up first. False if none holds any."""
        idle = [slot for slot in self.all if slot.owner is None and slot.tokens]
        if not idle:
            return False
        self.forget(min(idle, key=lambda slot: slot.freed_at))
        return True

    def forget(self, slot: Slot[Owner]) -> None:
        self.memory.seq_rm(slot.seq)
        slot.tokens = []

    def clear(self) -> None:
        """Take every slot from its owner, and forget all tokens."""
        for slot in self.all:
            slot.owner = None
            slot.tokens = []
        self.memory.clear()

    # --- states ---

    def save(self, seq: int | None = None) -> dict[int, SequenceState]:
        """What the memory holds of one sequence, or of all that hold any tokens.

        Raises BadBatch for a sequence that there is not.
        """
        if seq is not None:
            self.memory.check_seq(seq)
        wanted = [s for s in self.all if (s.tokens if seq is None else s.seq == seq)]
        return {slot.seq: take_state(self.memory, slot.seq, slot.tokens) for slot in wanted}

    def restore(self, slot: Slot[Owner], state: SequenceState) -> None:
        """Give a free slot a state that was saved here; idle tokens make way. Raises CacheFull."""
        self.forget(slot)
        while True:
            try:
                put_state(self.memory, slot.seq, state)
                break
            except CacheFull:
                if not self.drop_idle():
                    raise
        slot.tokens = list(state.tokens)

    def load(self, states: dict[int, SequenceState], seq: int | None) -> None:
        """Hold saved sequences: instead of all that is held, or one of them as sequence `seq`.

        Raises BadBatch for more sequences than there are or a slot in use, and what `put_states`
        raises; nothing is changed then.
        """
        if seq is not None:
            self._load_one(states, seq)
            return
        if self.running():
            raise BadBatch("texts are being written: read them to their end first, or reset()")
        if len(states) > len(self.all):
            raise BadBatch(
                f"the state holds {len(states)} sequences, there are n_seq_max = {len(self.all)}:"
                " load some of them one by one, state.sequence(n) as seq=…"
            )
        # Each keeps its number if all can: whoever saved them may count on it.
        kept = all(n < len(self.all) for n in states)
        wanted = states if kept else dict(enumerate(states.values()))
        with self._held_tokens_only():
            put_states(self.memory, wanted)
        for slot in self.all:
            slot.tokens = list(wanted[slot.seq].tokens) if slot.seq in wanted else []

    def _load_one(self, states: dict[int, SequenceState], seq: int) -> None:
        self.memory.check_seq(seq)
        if len(states) != 1:
            raise BadBatch(
                f"the state holds {len(states)} sequences, one can become sequence {seq}: choose"
                " it by state.sequence(n)"
            )
        slot = self.all[seq]
        if slot.owner is not None:
            raise BadBatch(f"sequence {seq} is being written: read it to its end first, or reset()")
        (state,) = states.values()
        with self._held_tokens_only():
            put_state(self.memory, seq, state)
        slot.tokens = list(state.tokens)

    @contextmanager
    def _held_tokens_only(self) -> Iterator[None]:
        """Slots lose the tokens that the memory loses where the block is interrupted."""
        try:
            yield
        except BaseException:
            for slot in self.all:
                del slot.tokens[self.memory.seq_pos_max(slot.seq) + 1 :]
            raise


def _n_common(a: list[int], b: list[int]) -> int:
    """Length of the common beginning."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
