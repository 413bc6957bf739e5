"""Slots: the cells that the tokens of a ubatch get in each cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from ggmlpy.memory.cell_table import Appended, Index, Moves
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.spans import Positions
from ggmlpy.memory.transaction import Transaction
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.memory.window import Flags


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """Cells of one cache for the tokens of a ubatch."""

    cache: KVCache
    cells: Index
    appended: Appended | None  # where they are empty, and no token has several sequences
    moves: Moves | None = None  # what is done first

    @classmethod
    def find(cls, cache: KVCache, ubatch: UBatch) -> Slot:
        """Raises CacheFull; changes nothing."""
        found = cache.cells.find(ubatch)
        return cls(cache, found.cells, found.appended, found.moves)

    def overwrite(
        self, ubatch: UBatch, change: Transaction, saved: SavedCells | None = None
    ) -> None:
        """Prepare for K and V of the cells being overwritten: before `apply`, where a graph runs.

        If that fails, cells that held a token hold it again where K and V are `saved`; the others
        hold nothing, their positions are evicted.
        """
        if self.moves is not None:
            self._overwrite_pages(self.moves, change, saved)
        if self.appended is not None or self.cache.cells.window is None:
            return
        for run, at in ubatch.by_run():
            lost, stream = self.cells[at], self.cache.cells.stream_of(run.seqs[0])
            if saved is not None:
                lost = lost[~saved.save(self.cache, stream, lost, change)]
            change.after_undo(self.cache.cells.evict, stream, lost)

    def _overwrite_pages(self, moves: Moves, change: Transaction, saved: SavedCells | None) -> None:
        """Prepare for new contents of pages, and copy K and V of those that are copied."""
        cells, store, lost = self.cache.cells, self.cache.store, moves.evicted
        if lost.size:
            if saved is not None:
                lost = lost[~saved.save(self.cache, 0, lost, change)]
            change.after_undo(cells.evict, 0, lost)
        for copy in moves.copies:
            # What none but those that get a copy hold is empty then: later tokens may overwrite it.
            leaving = moves.leaving(copy)
            alone = copy.source[~cells.is_held_besides(leaving, copy.source)]
            change.on_failure(store.restore_rows, store.save_rows(0, alone))
            store.copy_rows(0, copy.source, 0, copy.target)

    def apply(self, ubatch: UBatch, positions: Positions, change: Transaction) -> None:
        """Let the cells hold the tokens."""
        cells = self.cache.cells
        if self.moves is not None:
            change.on_failure(cells.restore, cells.snapshot(0, self.moves.cells))
            cells.make_room(self.moves)
        if self.appended is not None:
            change.on_failure(cells.undo_append, self.appended)
            cells.append(self.appended, ubatch, positions)
            return
        for run, at in ubatch.by_run():
            stream = cells.stream_of(run.seqs[0])
            change.on_failure(cells.restore, cells.snapshot(stream, self.cells[at]))
            cells.occupy(self.cells[at], positions[at], run.seqs)


@dataclass(frozen=True, slots=True, eq=False)
class SlotInfo:
    """Where the tokens of one ubatch are: a slot in each cache."""

    ubatch: UBatch
    positions: Positions  # of its tokens
    slots: list[Slot]

    @property
    def cells(self) -> list[Index]:
        """Of its tokens, in each cache."""
        return [slot.cells for slot in self.slots]

    def apply(self, change: Transaction) -> None:
        """Let the cells hold the tokens in every cache."""
        for slot in self.slots:
            slot.apply(self.ubatch, self.positions, change)


class SavedCells:
    """K and V of cells that later tokens see if a batch fails, saved before it overwrites them.

    Only caches with a window use cells again that held a token, and only a batch of several
    ubatches overwrites visible ones: the first ubatch takes none that is visible, later ones may,
    because the window has advanced by then.
    """

    def __init__(self, caches: Iterable[KVCache], seqs: Iterable[int]) -> None:
        self._visible: dict[tuple[KVCache, int], Flags] = {}  # when the batch begins
        self._saved: dict[tuple[KVCache, int], Flags] = {}
        windowed = (cache for cache in caches if cache.cells.window is not None)
        for cache, seq in product(windowed, seqs):
            key = cache, cache.cells.stream_of(seq)
            if key not in self._visible:
                self._visible[key] = cache.cells.kept(key[1])
                self._saved[key] = np.zeros_like(self._visible[key])

    def save(self, cache: KVCache, stream: int, cells: Index, change: Transaction) -> Flags:
        """Save those of some cells that need it. Returns which of the cells are saved by now."""
        visible, saved = self._visible[cache, stream], self._saved[cache, stream]
        doomed = cells[visible[cells] & ~saved[cells]]
        if doomed.size:
            change.on_failure(cache.store.restore_rows, cache.store.save_rows(stream, doomed))
            saved[doomed] = True
        now: Flags = saved[cells]
        return now


class BatchTransaction(Transaction):
    """The transaction of a batch, with what it takes to undo several ubatches."""

    __slots__ = ("saved",)

    def __init__(self, saved: SavedCells | None) -> None:
        super().__init__()
        self.saved = saved  # None for a batch of one ubatch
