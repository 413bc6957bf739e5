"""Host memory that keeps the states of sequences whose cells were needed for others.

The least recently used states are dropped when their bytes exceed the budget. A state that only
holds the beginning of another one is dropped as well, if the other one can be cut to it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from itertools import count

import numpy as np

from ggmlpy.common.system_memory import physical_memory
from ggmlpy.engine.prefix_tree import PrefixTree
from ggmlpy.memory.state import Changes, LayerRows, SequenceState
from ggmlpy.runtime.context_sizes import check_least

MIB = 2**20


def default_cache_ram() -> int:
    """The default budget in MiB: that of llama-server, but at most an eighth of the machine's
    memory, of which the KV caches in use may have half.
    """
    return min(8192, physical_memory() // (8 * MIB))


def cache_limit(cache_ram: int | None) -> int | None:
    """The limit in bytes of a budget in MiB: -1 is none, None the default.

    Raises ArgumentError for less than -1.
    """
    if cache_ram is None:
        cache_ram = default_cache_ram()
    check_least("cache_ram", cache_ram, -1)
    return None if cache_ram == -1 else cache_ram * MIB


class PromptCache:
    """States of sequences, at most `limit` bytes of them (None: any number)."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.n_bytes = 0  # held
        self.n_hits = 0  # sequences that began, or went on, with a state from here
        self.n_restored = 0  # tokens of those states that were restored
        self._states: OrderedDict[int, SequenceState] = OrderedDict()  # latest use last
        self._cuttable = PrefixTree()  # of states of which any beginning is a state
        self._whole = PrefixTree()  # of the others
        self._ids = count()

    def __len__(self) -> int:
        return len(self._states)

    def __str__(self) -> str:
        most = "no limit" if self.limit is None else f"at most {self.limit // MIB} MiB"
        if not self.is_on:
            return "off: what is evicted is run again"
        held = f"{len(self)} evicted states of {self.n_bytes / MIB:.1f} MiB in host memory, {most}"
        return f"{held}; {self.n_hits} sequences restored {self.n_restored} tokens"

    @property
    def is_on(self) -> bool:
        """Whether any state can be kept."""
        return self.limit != 0

    def n_held(self, tokens: list[int], changes: Changes = ()) -> int:
        """The length of the longest beginning of `tokens` that `find` would return."""
        return self._longest(tokens, changes)[1]

    def find(self, tokens: list[int], changes: Changes = ()) -> SequenceState | None:
        """The state of the longest beginning of `tokens` that is held of a model that was changed
        so, which counts as used."""
        id, n = self._longest(tokens, changes)
        if n == 0:
            return None
        self._states.move_to_end(id)
        return cut(self._states[id], n)

    def _longest(self, tokens: list[int], changes: Changes) -> tuple[int, int]:
        """The state that gives the longest beginning of `tokens`, and its length; 0 for none."""
        id, n = self._cuttable.longest(tokens, changes) or (-1, 0)
        for whole in self._whole.prefixes(tokens, changes)[-1:]:
            n_whole = len(self._states[whole].tokens)
            if n_whole > n:
                return whole, n_whole
        return id, n

    def use(self, tokens: list[int], changes: Changes = ()) -> bool:
        """Whether exactly these tokens are held; then their state counts as used."""
        id, n = self._longest(tokens, changes)
        if n == 0 or n < len(tokens):
            return False
        self._states.move_to_end(id)
        return True

    def has_room(self, n_bytes: int) -> bool:
        """Whether a state of this size can be kept, if others are dropped."""
        return self.limit is None or n_bytes <= self.limit

    def keep(self, state: SequenceState) -> None:
        """Add a state, and drop those that it makes superfluous or that exceed the budget."""
        size = state.n_bytes
        if not state.tokens or not self.has_room(size):
            return
        is_cuttable = can_cut(state)
        for tree in (self._cuttable, self._whole):
            for id in tree.prefixes(state.tokens, state.changes):
                if is_cuttable or len(self._states[id].tokens) == len(state.tokens):
                    self._drop(id)
        while self.limit is not None and self.n_bytes + size > self.limit:
            self._drop(next(iter(self._states)))
        id = next(self._ids)
        self._states[id] = state
        self.n_bytes += size
        tree = self._cuttable if is_cuttable else self._whole
        tree.extend(id, state.tokens, state.changes)

    def clear(self) -> None:
        """Drop all states."""
        self._states = OrderedDict()
        self._cuttable, self._whole = PrefixTree(), PrefixTree()
        self.n_bytes = 0

    def _drop(self, id: int) -> None:
        self._cuttable.remove(id)
        self._whole.remove(id)
        self.n_bytes -= self._states.pop(id).n_bytes


def can_cut(state: SequenceState) -> bool:
    """Whether any beginning of a state is a state: not of recurrent layers, nor where a window has
    evicted positions.
    """
    return not state.recurrent and not any(rows.evicted for rows in state.layers.values())


def cut(state: SequenceState, n_tokens: int) -> SequenceState:
    """The state after the first `n_tokens`. Its K and V are views."""
    if n_tokens == len(state.tokens):
        return state
    assert can_cut(state)
    layers = {i: _first_rows(rows, n_tokens) for i, rows in state.layers.items()}
    return SequenceState(state.tokens[:n_tokens], layers, changes=state.changes)


def _first_rows(rows: LayerRows, n_tokens: int) -> LayerRows:
    n = int(np.searchsorted(rows.positions, n_tokens))
    return replace(rows, positions=rows.positions[:n], k=rows.k[:n], v=rows.v[:n])
