"""The sequences of a context as slots: the owner of each, and the tokens that the memory holds.

A slot without an owner keeps its tokens, so that a prompt with the same prefix can reuse them. They
are evicted when cells are needed, those of the least recently used slot first, and then kept in
host memory as far as its budget allows (`ggmlpy/engine/prompt_cache.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ggmlpy.engine.prefix_tree import PrefixTree
from ggmlpy.engine.prompt_cache import PromptCache, can_cut
from ggmlpy.errors import CacheFull
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.state import (
    Changes,
    SequenceState,
    n_bytes_of,
    put_rest,
    put_state,
    take_state,
)

Owner = TypeVar("Owner")

# A state is kept, or restored, if it saves running this many tokens: a few take one step anyway.
# For more, copying is always cheaper: out and back takes 3 us a token of the packaged model, 26 us
# of Llama-3.2-1B, and running it 127 us and 9.4 ms (2 cores of a Xeon with AVX512).
_N_WORTHWHILE = 16


@dataclass(slots=True)
class Slot(Generic[Owner]):
    """One sequence of the context."""

    seq: int
    owner: Owner | None = None
    tokens: list[int] = field(default_factory=list)  # held by the memory, from position 0 on
    is_shifted: bool = False  # it holds more than `tokens`, which nothing else can use
    last_used: int = 0  # by an owner, or for what others had of it; the highest is the latest
    changes: Changes = ()  # of the model, when the tokens were decoded

    @property
    def taken_by(self) -> Owner:
        """The owner, of a slot that has one."""
        assert self.owner is not None
        return self.owner


class Slots(Generic[Owner]):
    """All slots of a memory. Methods change a slot's tokens and the memory together."""

    def __init__(self, memory: SequenceMemory, cache: PromptCache | None = None) -> None:
        """`cache` keeps what is evicted; None: nothing is kept."""
        self.memory = memory
        self.cache = PromptCache(0) if cache is None else cache
        self.all: list[Slot[Owner]] = [Slot(seq) for seq in range(memory.sizes.n_seq_max)]
        self._tree = PrefixTree()  # of the tokens of slots when they were last compared
        # Those, how many there were, and the slot's changes.
        self._compared: dict[int, tuple[list[int], int, Changes]] = {}
        self._n_uses = 0

    def running(self) -> list[Slot[Owner]]:
        """The slots with an owner."""
        return [slot for slot in self.all if slot.owner is not None]

    def has_free(self) -> bool:
        """Whether any slot has no owner."""
        return any(slot.owner is None for slot in self.all)

    def find_free(self, tokens: list[int], changes: Changes = ()) -> Slot[Owner] | None:
        """The free slot for a request: where one of them would keep at least half of its tokens,
        that which keeps the most; else an empty one, else the least recently used one.

        A shorter prefix is copied, so that what the slot holds behind it is not lost.
        """
        free = [slot for slot in self.all if slot.owner is None]
        common = self._common(tokens, changes)

        def value(slot: Slot[Owner]) -> tuple[int, bool, int]:
            n = self.memory.reusable(slot.seq, common.get(slot.seq, 0))
            return n if 2 * n >= len(slot.tokens) else 0, not slot.tokens, -slot.last_used

        return max(free, key=value, default=None)

    def free(self, slot: Slot[Owner]) -> None:
        """Take a slot from its owner. It keeps its tokens."""
        slot.owner = None
        self._touch(slot)
        if slot.is_shifted:
            n = len(slot.tokens)
            if self.memory.reusable(slot.seq, n) == n > 0:
                self.memory.seq_rm(slot.seq, n)
                slot.is_shifted = False
            else:
                self.evict(slot)

    def take_away(self, slot: Slot[Owner]) -> SequenceState:
        """Evict a shifted context, which `give_back` lets a slot hold again.

        Raises MemoryError where the machine has too little for a copy; nothing is changed then.
        """
        state = take_state(self.memory, slot.seq, slot.tokens, slot.changes)
        self.evict(slot)
        return state

    def give_back(self, slot: Slot[Owner], state: SequenceState) -> None:
        """Let a slot hold a shifted context, evicting idle tokens if needed. Raises CacheFull."""
        self.restore(slot, state)
        slot.is_shifted = True

    def note_shift(self, slot: Slot[Owner], n_keep: int) -> None:
        """After a context shift: only the first `n_keep` tokens are what any prompt would give."""
        slot.is_shifted = True
        slot.tokens = slot.tokens[:n_keep]

    def note_state(self, slot: Slot[Owner], state: SequenceState | None) -> None:
        """After a state was loaded: the slot holds its tokens, or with None nothing."""
        slot.tokens = [] if state is None else list(state.tokens)
        slot.changes = () if state is None else state.changes
        self._touch(slot)

    def _touch(self, slot: Slot[Owner]) -> None:
        self._n_uses += 1
        slot.last_used = self._n_uses

    def _common(self, tokens: list[int], changes: Changes) -> dict[int, int]:
        """The lengths of the prefixes that slots have in common with `tokens`, by sequence: of
        those whose tokens were decoded with the same changes of the model.

        Slots' lists of tokens only grow, or are replaced: what is new of each is added to the tree.
        There are none where tokens were decoded with sources, which may differ.
        """
        if self.memory.source is not None:
            return {}
        for slot in self.all:
            known, n_known, changed = self._compared.get(slot.seq, (None, 0, ()))
            is_same = known is slot.tokens and changed == slot.changes
            if is_same and n_known == len(slot.tokens):
                continue
            if not is_same or n_known > len(slot.tokens):
                self._tree.remove(slot.seq)
                n_known = 0
            self._tree.extend(slot.seq, slot.tokens[n_known:], slot.changes)
            self._compared[slot.seq] = slot.tokens, len(slot.tokens), slot.changes
        return self._tree.common(tokens, changes)

    def n_held(self, tokens: list[int], changes: Changes = ()) -> int:
        """The longest prefix of `tokens` that a slot or host memory can give."""
        n_cached = self.cache.n_held(tokens, changes)
        return max(self._most_common(self.all, tokens, changes), n_cached)

    def n_shared(self, tokens: list[int], changes: Changes = ()) -> int:
        """The longest prefix of `tokens` that a slot with an owner can give."""
        return self._most_common(self.running(), tokens, changes)

    def _most_common(
        self, slots: Sequence[Slot[Owner]], tokens: list[int], changes: Changes
    ) -> int:
        common = self._common(tokens, changes)
        lengths = [common.get(slot.seq, 0) for slot in slots if self._can_give(slot, common)]
        return max(lengths, default=0)

    def _can_give(self, slot: Slot[Owner], common: dict[int, int]) -> bool:
        """Whether other slots can get what a slot has in common with some tokens."""
        return self.memory.can_copy(slot.seq, common.get(slot.seq, 0))

    def reuse(self, slot: Slot[Owner], tokens: list[int], changes: Changes = ()) -> int:
        """Keep, copy and restore the longest prefix of `tokens` that is held of a model that was
        changed so, return its length.

        It does not include the last token, which must be processed for its logits.
        """
        reusable = tokens[:-1]
        source, n = self._source_for(slot, reusable, changes)
        n_cached = self.cache.n_held(reusable, changes)
        state = self.cache.find(reusable, changes) if n_cached >= n + _N_WORTHWHILE else None
        if state is None:
            return self._take_prefix(slot, source, reusable[:n], changes)
        if can_cut(state):  # so that it shares what other slots hold
            n_taken = self._take_prefix(slot, source, reusable[:n], changes)
            return self._restore_rest(slot, n_taken, state)
        try:
            self.restore(slot, state)
        except CacheFull:
            source, n = self._source_for(slot, reusable, changes)  # idle ones may be evicted
            return self._take_prefix(slot, source, reusable[:n], changes)
        self._count_restored(len(state.tokens))
        return len(state.tokens)

    def _source_for(
        self, slot: Slot[Owner], tokens: list[int], changes: Changes
    ) -> tuple[Slot[Owner], int]:
        """The slot that can give `slot` the longest prefix of `tokens`, and its length."""
        common = self._common(tokens, changes)
        n_own = self.memory.reusable(slot.seq, common.get(slot.seq, 0))
        others = [other for other in self.all if common.get(other.seq, 0) > n_own]
        able = [other for other in others if other is not slot and self._can_give(other, common)]
        best = max(able, key=lambda other: common[other.seq], default=slot)
        return best, n_own if best is slot else common[best.seq]

    def _take_prefix(
        self, slot: Slot[Owner], source: Slot[Owner], tokens: list[int], changes: Changes
    ) -> int:
        """Let a slot hold these tokens of its own or of another slot, and nothing else.

        Returns how many it got: none where there are too few cells.
        """
        self._keep(slot, len(tokens) if source is slot else 0)
        if source is slot:
            self.memory.seq_rm(slot.seq, len(tokens))
        else:
            self.evict(slot)
            slot.changes = changes
            try:
                self.memory.seq_cp(source.seq, slot.seq, 0, len(tokens))
            except CacheFull:
                return 0
            self._touch(source)
        slot.tokens, slot.changes = tokens, changes
        return len(tokens)

    def _restore_rest(self, slot: Slot[Owner], n_held: int, state: SequenceState) -> int:
        """Restore what a state has behind the first `n_held` tokens, which the slot holds."""
        while True:
            try:
                put_rest(self.memory, slot.seq, state)
                break
            except CacheFull:
                if not self.evict_idle():
                    return n_held
        slot.tokens = list(state.tokens)
        self._count_restored(len(state.tokens) - n_held)
        return len(state.tokens)

    def _count_restored(self, n_tokens: int) -> None:
        self.cache.n_hits += 1
        self.cache.n_restored += n_tokens

    def restore(self, slot: Slot[Owner], state: SequenceState) -> None:
        """Load a state that was saved here into a free slot, evicting idle tokens if needed.

        Raises CacheFull.
        """
        self.swap_out(slot)
        while True:
            try:
                put_state(self.memory, slot.seq, state)
                break
            except CacheFull:
                if not self.evict_idle():
                    raise
        self.note_state(slot, state)

    def swap_out(self, slot: Slot[Owner]) -> None:
        """Evict the slot's tokens; host memory keeps them as far as its budget allows."""
        self._keep(slot)
        self.evict(slot)

    def _keep(self, slot: Slot[Owner], n_left: int = 0) -> None:
        """Keep a slot's tokens in host memory before all but the first `n_left` are evicted.

        Not if that saves little, or if another slot or the cache holds them.
        """
        tokens = slot.tokens
        if not self.cache.is_on or len(tokens) < n_left + _N_WORTHWHILE:
            return
        for seq, n in self._common(tokens, slot.changes).items():
            if seq != slot.seq and n == len(tokens) and self.memory.can_copy(seq, n):
                return
        if not self.cache.has_room(n_bytes_of(self.memory, slot.seq)) or self.cache.use(
            tokens, slot.changes
        ):
            return
        try:
            state = take_state(self.memory, slot.seq, tokens, slot.changes)
        except MemoryError:  # of the machine, for the copy: it is run again when it is needed
            return
        self.cache.keep(state)

    def evict_idle(self) -> bool:
        """Evict the tokens of the least recently used free slot. False if none has any.

        Slots that share all their cells with others come last: evicting one frees none.
        """
        idle = [slot for slot in self.all if slot.owner is None and slot.tokens]
        if not idle:
            return False
        idle.sort(key=lambda slot: slot.last_used)
        frees = (slot for slot in idle if self.n_freed_by(slot))
        self.swap_out(next(frees, idle[0]))
        return True

    def n_freed_by(self, slot: Slot[Owner]) -> int:
        """Cells that evicting the slot's tokens frees."""
        return self.memory.n_freed_by(slot.seq)

    def evict(self, slot: Slot[Owner]) -> None:
        """Remove the slot's tokens from the memory."""
        slot.tokens = []  # first: it must not list what an interrupted removal has removed
        self.memory.seq_rm(slot.seq)
        slot.is_shifted = False

    def clear(self) -> None:
        """Remove all owners and all tokens, also those in host memory."""
        self._tree, self._compared = PrefixTree(), {}
        self.cache.clear()
        for slot in self.all:
            slot.owner = None
            slot.tokens = []
            slot.is_shifted = False
        self.memory.clear()
