"""Slots: the cells that the tokens of a ubatch get in each cache, and how that is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ggmlpy.memory.batch import TokenRun
from ggmlpy.memory.cells import Appended, Cells, Positions, SavedRows, Snapshot
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.ubatch import UBatch

# Called with a stream and its cells before they are used for other tokens.
Save = Callable[[KVCache, int, Cells], None]


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """Cells of one cache for the tokens of a ubatch."""

    cache: KVCache
    cells: Cells
    appended: Appended | None  # where they come behind all others of their streams
    before: list[Snapshot] = field(default_factory=list)  # else what they held, once applied

    @classmethod
    def find(cls, cache: KVCache, ubatch: UBatch) -> Slot:
        """Raises CacheFull; changes nothing."""
        appended = cache.find_append(ubatch)
        if appended is not None:  # what most steps do
            return cls(cache, appended.cells, appended)
        return cls(cache, _find_slot(cache, ubatch.runs), None)

    def apply(self, ubatch: UBatch, positions: Positions, save: Save | None = None) -> None:
        """Say that the cells hold the tokens. `save` may keep what they store."""
        if self.appended is not None:
            self.cache.append(self.appended, ubatch, positions)
            return
        for run, last in zip(ubatch.runs, ubatch.run_ends.tolist(), strict=True):
            at = slice(last + 1 - len(run.index), last + 1)
            stream = self.cache.stream_of(run.seqs[0])
            if save is not None:
                save(self.cache, stream, self.cells[at])
            self.before.append(self.cache.snapshot(stream, self.cells[at]))
            self.cache.occupy(self.cells[at], positions[at], run.seqs)

    def undo(self) -> None:
        """Let the cells hold what they held before `apply`, or a part of it."""
        if self.appended is not None:
            self.cache.undo_append(self.appended)
        for snapshot in reversed(self.before):
            self.cache.restore(snapshot)

    def evict_overwritten(self, saved: dict[tuple[KVCache, int], set[int]]) -> None:
        """After `undo`, of cells whose K and V may be another token's: they hold nothing.

        Those of `saved`, by cache and stream, have been restored.
        """
        for snapshot in self.before:
            kept = saved.get((self.cache, snapshot.stream), set())
            lost = sorted(set(snapshot.cells.tolist()) - kept)
            self.cache.forget(snapshot.stream, np.array(lost, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class SlotInfo:
    """Where the tokens of one ubatch are: a slot in each cache."""

    ubatch: UBatch
    positions: Positions  # of its tokens
    slots: list[Slot]

    @property
    def cells(self) -> list[Cells]:
        """Of its tokens, in each cache."""
        return [slot.cells for slot in self.slots]

    def apply(self, save: Save | None = None) -> None:
        """Let the cells hold the tokens in every cache."""
        for slot in self.slots:
            slot.apply(self.ubatch, self.positions, save)

    def undo(self) -> None:
        """Undo what of `apply` was done."""
        for slot in reversed(self.slots):
            slot.undo()


class Transaction:
    """What it takes to undo a batch of which some ubatches were run."""

    def __init__(self, caches: list[KVCache], seqs: list[int], one_ubatch: bool) -> None:
        self.slot_infos: list[SlotInfo] = []
        self._saved: list[tuple[KVCache, SavedRows]] = []
        # Cells that must be held if the batch fails. The first ubatch takes none of them, later
        # ones may: their window is further on.
        self._kept: dict[tuple[KVCache, int], NDArray[np.bool_]] = {}
        if not one_ubatch:
            for cache in caches:
                if cache.window is not None:
                    streams = {cache.stream_of(seq) for seq in seqs}
                    self._kept |= {(cache, s): cache.visible(s) for s in streams}

    def save(self, cache: KVCache, stream: int, cells: Cells) -> None:
        """Copy what must not be lost of what these cells store."""
        kept = self._kept.get((cache, stream))
        if kept is not None and kept[cells].any():
            doomed = cells[kept[cells]]
            self._saved.append((cache, cache.save_rows(stream, doomed)))
            kept[doomed] = False  # after this they store something else

    def undo(self) -> None:
        """Let the caches hold what they held, and store what was saved."""
        for slot_info in reversed(self.slot_infos):
            slot_info.undo()
        safe: dict[tuple[KVCache, int], set[int]] = {}
        for cache, rows in self._saved:
            cache.restore_rows(rows)
            safe.setdefault((cache, rows.stream), set()).update(rows.cells.tolist())
        for slot_info in self.slot_infos:
            for slot in slot_info.slots:
                slot.evict_overwritten(safe)


def _find_slot(cache: KVCache, runs: list[TokenRun]) -> Cells:
    """Cells for the tokens of a ubatch.

    In a shared stream for all runs at once: a window's cells are given away by where sequences are
    before the ubatch, so that none goes which a token of another run has yet to see.
    """
    lengths = [len(run.index) for run in runs]
    if cache.n_stream == 1:
        return cache.find_slot(sum(lengths))
    pairs = zip(runs, lengths, strict=True)
    return np.concatenate([cache.find_slot(n, cache.stream_of(run.seqs[0])) for run, n in pairs])
