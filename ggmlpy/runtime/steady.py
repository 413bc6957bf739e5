"""Writing goes on: a step in which the sequences of the step before take in one token more each.

Nearly every step is such a one, and little of what its plan reads changes: the tokens, and for each
the next position, the next row of the cache, and one more cell in view. So that is all that is
done. Whatever is otherwise (other sequences, a cache that something else has changed, a plan whose
cells in view are used up) is a step like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.memory.batch import Batch
from ggmlpy.memory.cells import Appended
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.spans import MAX_POSITION
from ggmlpy.memory.transaction import SlotInfo
from ggmlpy.runtime.plans import Plan


@dataclass(slots=True)
class _Behind:
    """The tokens of a cache that come behind all others, step after step."""

    cache: KVCache
    at: Appended  # where the last step's tokens are; changed in place
    rows: NDArray[np.int64]  # the plan's input
    n_new: int  # tokens of a step in one stream
    masks: list[tuple[NDArray[np.uint16], NDArray[np.int64]]]  # as one row, own cells in it
    n_changes: int  # of the cache, when it was as it is

    def go_on(self) -> None:
        """Turn to the next tokens, in the plan's rows and masks too; the cache is as it was."""
        for numbers in (self.at.ends, self.at.cells, self.rows):
            numbers += self.n_new
        for mask, own in self.masks:
            own += self.n_new
            mask[own] = 0

    def n_steps_left(self, n_kv: int) -> int:
        """For how many steps there are cells in view, of `n_kv`."""
        most = min(n_kv, self.cache.n_ctx)
        return (most - int(self.at.cells.max()) - 1) // self.n_new


class SteadyStep:
    """The steps after one of `batch`, each of the same sequences, on the same plan."""

    __slots__ = (
        "_behind", "_n_left", "_n_vocab", "_order", "_places", "_plan", "_positions", "_seq_ids",
        "_ubatch",
    )  # fmt: skip

    def __init__(self, batch: Batch, plan: Plan, slot_info: SlotInfo, n_vocab: int) -> None:
        """Use `after`."""
        ubatch = slot_info.ubatch
        self._plan = plan
        self._ubatch = ubatch
        self._n_vocab = n_vocab
        self._seq_ids = list(batch.seq_ids)
        self._positions = [position + 1 for position in batch.positions]
        in_order = ubatch.places == list(range(len(batch)))
        self._places = None if in_order else ubatch.places
        self._order = None if in_order else np.argsort(ubatch.index)
        self._behind = []
        for i, (cache, appended) in enumerate(slot_info.appended):
            at = Appended(appended.streams, appended.ends.copy(), appended.cells.copy())
            masks, first = [], 0
            for mask in plan.masks[i]:
                n, n_kv = mask.shape
                own = np.arange(n) * n_kv + at.cells[first : first + n]
                masks.append((mask.view(np.uint16).reshape(-1), own))
                first += n
            n_new = int(ubatch.n_new[0])
            self._behind.append(_Behind(cache, at, plan.rows[i], n_new, masks, cache.n_changes))
        n_kvs = (masks[0].shape[1] for masks in plan.masks)
        in_view = [b.n_steps_left(n) for b, n in zip(self._behind, n_kvs, strict=True)]
        self._n_left = min(*in_view, MAX_POSITION - max(batch.positions))

    @classmethod
    def after(
        cls, batch: Batch, plan: Plan, slot_info: SlotInfo, memory: SequenceMemory, n_vocab: int
    ) -> SteadyStep | None:
        """What follows a batch that ran as one ubatch; None where that must be a step like any
        other.

        Windows hide cells as sequences go on, and recurrent states are kept until a step has
        succeeded: with these every step is like any other.
        """
        ubatch = slot_info.ubatch
        goes_on = (
            memory.recurrent is None
            and all(cache.window is None for cache in memory.caches)
            and len(slot_info.appended) == len(memory.caches)
            and not ubatch.is_shared
            and len(ubatch.runs) == len(batch)
            and all(batch.wanted)
        )
        return cls(batch, plan, slot_info, n_vocab) if goes_on else None

    def run(self, batch: Batch) -> NDArray[np.float32] | None:
        """The logits of the batch in its order, good until the next run; None, with nothing done,
        for a batch that is not what follows.

        Whatever ends it early leaves the memory as it was. Then it must not be run again.
        """
        if not self._is_next(batch):
            return None
        plan, places = self._plan, self._places
        tokens = batch.tokens
        plan.tokens[:] = tokens if places is None else [tokens[place] for place in places]
        plan.positions += 1
        for part in self._behind:
            part.go_on()
        try:
            for part in self._behind:
                part.cache.append(part.at, self._ubatch, plan.positions)
            logits = plan.run()
            self._positions = [position + 1 for position in batch.positions]
            self._n_left -= 1
            return logits if self._order is None else logits[self._order]
        except BaseException:
            for part in self._behind:
                part.cache.take_back(part.at)
            raise

    def _is_next(self, batch: Batch) -> bool:
        tokens = batch.tokens
        return (
            self._n_left > 0
            and batch.positions == self._positions
            and batch.seq_ids == self._seq_ids
            and len(tokens) == len(batch.wanted) == len(self._positions)
            and all(batch.wanted)
            and set(map(type, tokens)) == {int}
            and min(tokens) >= 0
            and max(tokens) < self._n_vocab
            and all(part.cache.n_changes == part.n_changes for part in self._behind)
        )
