"""What it takes to undo a batch: where its tokens were put, and what was lost for that."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ggmlpy.memory.cells import Appended, Cells, Holdings, Positions, SavedRows
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.ubatch import Arrangement


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """Where the tokens of one ubatch went, with what it takes to undo that."""

    ubatch: Arrangement
    positions: Positions  # of its tokens
    cells: list[Cells]  # of its tokens in each cache
    before: list[tuple[KVCache, Holdings]] = field(default_factory=list)
    appended: list[tuple[KVCache, Appended]] = field(default_factory=list)

    def undo(self) -> None:
        """Take back the last slot_info that is not yet undone."""
        for cache, appended in self.appended:
            cache.take_back(appended)
        for cache, holdings in reversed(self.before):
            cache.go_back(holdings)


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
                    self._kept |= {(cache, s): cache.in_sight(s) for s in streams}

    def save(self, cache: KVCache, stream: int, cells: Cells) -> None:
        """Copy what must not be lost of what these cells store."""
        kept = self._kept.get((cache, stream))
        if kept is not None and kept[cells].any():
            doomed = cells[kept[cells]]
            self._saved.append((cache, cache.save_rows(stream, doomed)))
            kept[doomed] = False  # after this they store something else

    def undo(self) -> None:
        for slot_info in reversed(self.slot_infos):
            slot_info.undo()
        safe: dict[tuple[KVCache, int], set[int]] = {}
        for cache, rows in self._saved:
            cache.restore_rows(rows)
            safe.setdefault((cache, rows.stream), set()).update(rows.cells.tolist())
        for slot_info in self.slot_infos:
            for cache, before in slot_info.before:
                lost = set(before.cells.tolist()) - safe.get((cache, before.stream), set())
                cache.forget(before.stream, np.array(sorted(lost), np.int64))
