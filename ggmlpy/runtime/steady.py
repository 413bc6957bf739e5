"""Steady decode: every sequence of the previous step decodes one more token.

Only tokens, positions, rows and the numbers of cells that are seen change in the inputs of the
plan. Where a token gets the cell after that of the previous token, it sees one cell more. Inputs
are filled again where cells are looked for: with a window, which cells leave; in a cache with empty
cells before others; in a paged cache, when a sequence needs a new page. Recurrent states change
rows. Any other batch takes the full path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ggmlpy.memory.batch import Batch
from ggmlpy.memory.cell_table import NO_CELLS, Appended
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.pages import PagedCells
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.slots import Slot, SlotInfo
from ggmlpy.memory.spans import MAX_POSITION, Positions
from ggmlpy.memory.transaction import Transaction
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.runtime.inputs import CacheInputs
from ggmlpy.runtime.outputs import Outputs
from ggmlpy.runtime.plans import Plan


class _Part(Protocol):
    """One cache, step after step."""

    def is_unchanged(self) -> bool:
        """Whether nothing else has changed what its cells hold."""

    def n_steps_left(self) -> int:
        """For how many steps there surely are cells."""

    def prepare(self) -> None:
        """Advance the plan's inputs to the next tokens; the cache stays as it was."""

    def apply(self, ubatch: UBatch, positions: Positions, change: Transaction) -> None:
        """Let the next cells hold the tokens. Raises CacheFull."""


@dataclass(slots=True)
class _Behind:
    """A cache without a window: new tokens get the cells behind all others."""

    cells: KVCells
    inputs: CacheInputs
    at: Appended  # where the last step's tokens are; changed in place
    n_new: int  # tokens of a step in one stream
    n_changes: int  # of the cells, when they were as they are

    @classmethod
    def of(cls, slot: Slot, inputs: CacheInputs, ubatch: UBatch) -> _Behind:
        assert slot.appended is not None
        appended, cells = slot.appended, slot.cache.cells
        at = Appended(appended.streams, appended.ends.copy(), appended.cells.copy())
        return cls(cells, inputs, at, int(ubatch.n_new[0]), cells.n_changes)

    def is_unchanged(self) -> bool:
        return self.cells.n_changes == self.n_changes

    def n_steps_left(self) -> int:
        return (self.cells.n_ctx - int(self.at.cells.max()) - 1) // self.n_new

    def prepare(self) -> None:
        ends, cells = self.at.ends, self.at.cells
        ends += self.n_new
        cells += self.n_new
        self.inputs.advance(len(cells), self.n_new)

    def apply(self, ubatch: UBatch, positions: Positions, change: Transaction) -> None:
        change.on_failure(self.cells.undo_append, self.at)
        self.cells.append(self.at, ubatch, positions)


@dataclass(slots=True)
class _Paged:
    """A paged cache without a window: new tokens stay in the pages, until one is full."""

    cache: KVCache
    cells: PagedCells
    inputs: CacheInputs
    at: Appended  # where the last step's tokens are; changed in place
    n_left: int  # steps for which each sequence has cells in its page
    n_changes: int

    @classmethod
    def of(cls, slot: Slot, inputs: CacheInputs, ubatch: UBatch) -> _Paged:
        cells = slot.cache.cells
        assert isinstance(cells, PagedCells)
        at = Appended(ubatch.streams, NO_CELLS, slot.cells.copy())
        return cls(slot.cache, cells, inputs, at, cells.room_of(ubatch), cells.n_changes)

    def is_unchanged(self) -> bool:
        return self.cells.n_changes == self.n_changes

    def n_steps_left(self) -> int:
        return MAX_POSITION  # `apply` takes new pages

    def prepare(self) -> None:
        if self.n_left:
            cells = self.at.cells
            cells += 1
            self.inputs.advance(len(cells), 1)

    def apply(self, ubatch: UBatch, positions: Positions, change: Transaction) -> None:
        if self.n_left:
            change.on_failure(self.cells.undo_append, self.at)
            self.cells.append(self.at, ubatch, positions)
            self.n_left -= 1
            return
        slot = Slot.find(self.cache, ubatch)
        slot.overwrite(ubatch, change)
        slot.apply(ubatch, positions, change)
        self.inputs.fill(ubatch, slot.cells, positions)
        self.at.cells[:] = slot.cells
        self.n_left = self.cells.room_of(ubatch)
        self.n_changes = self.cells.n_changes


@dataclass(slots=True)
class _Searched:
    """A cache in which cells are looked for: used again behind a window, or empty before others.

    So is one whose inputs have positions of cells, of which every step changes all.
    """

    cache: KVCache
    inputs: CacheInputs
    n_changes: int

    @classmethod
    def of(cls, slot: Slot, inputs: CacheInputs, ubatch: UBatch) -> _Searched:
        return cls(slot.cache, inputs, slot.cache.cells.n_changes)

    def is_unchanged(self) -> bool:
        return self.cache.cells.n_changes == self.n_changes

    def n_steps_left(self) -> int:
        return MAX_POSITION  # `apply` finds them

    def prepare(self) -> None:
        """Nothing: `apply` fills the inputs once it has found the cells."""

    def apply(self, ubatch: UBatch, positions: Positions, change: Transaction) -> None:
        slot = Slot.find(self.cache, ubatch)
        slot.overwrite(ubatch, change)
        slot.apply(ubatch, positions, change)
        self.inputs.fill(ubatch, slot.cells, positions)
        self.n_changes = self.cache.cells.n_changes


class SteadyStep:
    """The steps after that of `batch`, each of the same sequences, on the same plan."""

    __slots__ = (
        "_indices", "_memory", "_n_left", "_n_vocab", "_order", "_parts", "_plan", "_positions",
        "_seq_ids", "_seqs", "_ubatch",
    )  # fmt: skip

    def __init__(
        self, batch: Batch, plan: Plan, slot_info: SlotInfo, memory: SequenceMemory, n_vocab: int
    ) -> None:
        """Use `after`."""
        ubatch = slot_info.ubatch
        self._plan = plan
        self._memory = memory
        self._ubatch = ubatch
        self._n_vocab = n_vocab
        self._seq_ids = list(batch.seq_ids)
        self._seqs = ubatch.run_seqs.tolist()
        self._positions = [position + 1 for position in batch.positions]
        in_order = ubatch.indices == list(range(len(batch)))
        self._indices = None if in_order else ubatch.indices
        self._order = None if in_order else np.argsort(ubatch.index)
        self._parts: list[_Part] = []
        for slot, inputs in zip(slot_info.slots, plan.inputs.caches, strict=True):
            self._parts.append(_kind_of(slot).of(slot, inputs, ubatch))
        n_steps = [part.n_steps_left() for part in self._parts]
        self._n_left = min(*n_steps, MAX_POSITION - max(batch.positions))

    @classmethod
    def after(
        cls, batch: Batch, plan: Plan, slot_info: SlotInfo, memory: SequenceMemory, n_vocab: int
    ) -> SteadyStep | None:
        """The steps after a batch that was one ubatch; None if they must take the full path."""
        ubatch = slot_info.ubatch
        is_steady = (
            not ubatch.is_shared
            and len(ubatch.runs) == len(batch)
            and all(batch.outputs)
            and not any(inputs.is_gathered for inputs in plan.inputs.caches)
        )
        return cls(batch, plan, slot_info, memory, n_vocab) if is_steady else None

    def run(self, batch: Batch, read: bool) -> Outputs | None:
        """Run the next step. Returns its outputs in the order of the batch, if `read` on the host.

        None, with nothing done, if the batch is not the next step. Whatever ends the step early
        leaves the memory unchanged; then `run` must not be called again.
        """
        if not self._is_next(batch):
            return None
        inputs, indices, recurrent = self._plan.inputs, self._indices, self._memory.recurrent
        tokens = batch.tokens
        positions = inputs.advance(tokens if indices is None else [tokens[i] for i in indices])
        for part in self._parts:
            part.prepare()
        change = Transaction()
        try:
            for part in self._parts:
                part.apply(self._ubatch, positions, change)
            if recurrent is not None and inputs.recurrent is not None:
                change.on_failure(recurrent.restore, recurrent.begin())
                inputs.recurrent.fill_rows(self._ubatch)
            self._plan.run()
            outputs = Outputs(self._plan, len(tokens), self._order)
            if read:
                outputs.all()
            self._positions = [position + 1 for position in batch.positions]
            self._n_left -= 1
            if recurrent is not None:
                recurrent.note_written(self._seqs)
            return outputs
        except BaseException:  # no `with`: see Transaction
            change.undo()
            raise

    def _is_next(self, batch: Batch) -> bool:
        tokens = batch.tokens
        return (
            self._n_left > 0
            and batch.positions == self._positions
            and batch.seq_ids == self._seq_ids
            and len(tokens) == len(batch.outputs) == len(self._positions)
            and all(batch.outputs)
            and set(map(type, tokens)) == {int}
            and min(tokens) >= 0
            and max(tokens) < self._n_vocab
            and all(part.is_unchanged() for part in self._parts)
        )


def _kind_of(slot: Slot) -> type[_Behind] | type[_Paged] | type[_Searched]:
    """How a cache goes on after a step in which its tokens got a slot."""
    cells = slot.cache.cells
    if cells.window is not None or cells.needs_positions or slot.appended is None:
        return _Searched
    if isinstance(cells, PagedCells):
        return _Paged
    return _Behind if slot.appended.ends.size else _Searched
