"""Everything that a model keeps of its sequences: KV caches, with and without windows, and states.

One object holds all of them, so that an operation on a sequence is done in each, or in none, also
where it is interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral

import numpy as np

from ggmlpy.errors import ArgumentError, Unsupported
from ggmlpy.graph.types import TensorType
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.cell_table import Index
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.kv_cache import KVCache, suffixes
from ggmlpy.memory.recurrent_state import RecurrentState
from ggmlpy.memory.rotation import check_rotation
from ggmlpy.memory.sizes import Sizes, cache_size, cached_parts, check_free, memory_bytes
from ggmlpy.memory.slots import BatchTransaction, SavedCells, Slot, SlotInfo
from ggmlpy.memory.spans import Positions, Spans
from ggmlpy.memory.store import BufferTypes
from ggmlpy.memory.transaction import Transaction
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.memory.window import missed
from ggmlpy.models.memory import Memory, RecurrentLayers


class SequenceMemory:
    """The memory of up to `n_seq_max` sequences of one model.

    `seq_rm`, `seq_cp`, `seq_keep`, `seq_div`, `clear` are complete when they return. Shifting
    positions (`seq_add`) needs the model, to rotate K: see `Context.seq_add`.

    Sources are copied with their sequences, and removed by `clear` and `seq_keep`; `seq_rm` removes
    what was decoded and leaves them, so that the same source can be decoded again.

    Raises Unsupported for types of K and V and a `kv_rotation` (see `rotation_of`) that it cannot
    have, AllocationError where all caches in one memory together are more bytes than the machine,
    or the device, has.
    """

    def __init__(
        self,
        spec: Memory,
        sizes: Sizes,
        type_k: TensorType,
        type_v: TensorType,
        buffer_types: BufferTypes | None = None,
        kv_rotation: bool | None = None,
        source: SequenceMemory | None = None,
    ) -> None:
        """`source` is the memory of the sources of sequences, which an encoder has stored."""
        self.source = source
        self.sizes = sizes
        needed = memory_bytes(spec, sizes, type_k, type_v, buffer_types, kv_rotation)
        self.n_bytes = sum(needed.values())
        check_free(needed)
        types, n_seq_max = buffer_types or {}, sizes.n_seq_max
        attention = cached_parts(spec)
        check_rotation(attention, type_k, type_v, kv_rotation)
        kinds = type_k, type_v, n_seq_max, sizes.layout, types
        self.caches = [
            KVCache(part, cache_size(part, sizes), *kinds, name, kv_rotation)
            for part, name in zip(attention, suffixes(attention), strict=True)
        ]
        recurrent = [part for part in spec if isinstance(part, RecurrentLayers)]
        self.recurrent = RecurrentState(recurrent[0], n_seq_max, types) if recurrent else None

    @property
    def n_stream(self) -> int:
        """Streams of the KV caches: 1 where sequences share one."""
        return self.caches[0].cells.n_stream

    def seq_pos_min(self, seq: int) -> int:
        """The lowest position that every layer still holds of a sequence; -1 for none."""
        self.check_seq(seq)
        return max(cache.cells.pos_min(seq) for cache in self.caches)

    def seq_pos_max(self, seq: int) -> int:
        """The highest position held of a sequence; -1 for none."""
        self.check_seq(seq)
        return self.caches[0].cells.pos_max(seq)

    def n_source(self, seq: int) -> int:
        """Tokens of a sequence's source."""
        return 0 if self.source is None else self.source.seq_pos_max(seq) + 1

    def next_positions(self) -> list[int]:
        """The position of the next token of each sequence."""
        return self.caches[0].cells.next_positions()

    def n_used(self) -> int:
        """Cells in use, of all sequences, in the cache that holds the most."""
        return max(cache.cells.n_used_in_all() for cache in self.caches)

    def has_room(self, lengths: Mapping[int, int], n_tokens: int, n_shared: int = 0) -> bool:
        """Whether there are cells for one more sequence of `n_tokens`, when sequences have grown to
        these `lengths` and all others are removed. `n_shared` tokens are those of one of them."""
        # A cache without a window, if there is one: with a window cells are used again.
        cells = min((c.cells for c in self.caches), key=lambda cells: cells.window is not None)
        if cells.window is not None:
            return self.n_stream > 1 or sum(lengths.values()) + n_tokens <= self.sizes.n_ctx
        return cells.has_room(lengths, n_tokens, n_shared)

    def n_freed_by(self, seq: int) -> int:
        """Cells that removing a sequence frees, in the cache where that is the least."""
        return min(cache.cells.n_freed_by(seq) for cache in self.caches)

    # --- batches ---

    def check_slots(self, batch: Batch, ubatches: list[UBatch]) -> None:
        """Raise CacheFull unless every ubatch finds its slots, one after another.

        Changes nothing.
        """
        trial = Transaction()
        try:
            for ubatch in ubatches:
                self._find_slots(batch, ubatch).apply(trial)
        finally:
            trial.undo()

    def transaction(self, batch: Batch) -> BatchTransaction:
        """The transaction that a batch is decoded in. `undo` undoes the batch.

        Every position that a later token sees is held again, with the K and V that it had, and so
        is every recurrent state. Not restored are positions that no later token sees, in layers
        with a window, whose cells the batch used: they are evicted, as when a batch succeeds.
        """
        seqs = {seq for seqs in batch.seq_ids for seq in seqs}
        is_cut = len(batch) > self.sizes.n_ubatch
        change = BatchTransaction(SavedCells(self.caches, seqs) if is_cut else None)
        if self.recurrent is not None:
            change.on_failure(self.recurrent.restore, self.recurrent.begin())
        return change

    def apply(self, batch: Batch, ubatch: UBatch, change: BatchTransaction) -> SlotInfo:
        """Find slots for one ubatch, and let their cells hold its tokens.

        Raises CacheFull, and then changes nothing.
        """
        slot_info = self._find_slots(batch, ubatch)
        for slot in slot_info.slots:
            slot.overwrite(ubatch, change, change.saved)
        slot_info.apply(change)
        return slot_info

    def _find_slots(self, batch: Batch, ubatch: UBatch) -> SlotInfo:
        positions = np.array([batch.positions[i] for i in ubatch.indices], np.int32)
        slots = [Slot.find(cache, ubatch) for cache in self.caches]
        return SlotInfo(ubatch, positions, slots)

    # --- sequences ---

    def clear(self) -> None:
        """Remove every sequence."""
        with Transaction() as change:
            for cache in self.caches:
                cache.cells.clear(change)
            self._clear_recurrent(range(self.sizes.n_seq_max), change)
            if self.source is not None:
                self.source.clear()

    def seq_rm(self, seq: int, start: int = 0, stop: int | None = None) -> None:
        """Remove positions `start` up to `stop` (None: to the end); `seq` -1 means every sequence.

        Raises Unsupported, and changes nothing, for a part of a sequence with recurrent layers, and
        where the next token would see positions that a window has evicted.
        """
        seqs = range(self.sizes.n_seq_max) if seq == -1 else (seq,)
        asked = f"positions {_range(start, stop)} of sequence {{}} cannot be removed"
        for each in seqs:
            self.check_seq(each)
            self._whole_if_recurrent(each, start, stop, "removed")
            for cache in self.caches:
                left = cache.cells.positions_besides(each, start, stop)
                evicted = cache.cells.evicted(each).without(start, stop)
                self.check_missed(cache, left, evicted, each, asked.format(each))
        self._remove(seqs, start, stop)

    def _remove(self, seqs: Sequence[int], start: int = 0, stop: int | None = None) -> None:
        with Transaction() as change:
            for each in seqs:
                for cache in self.caches:
                    cache.cells.remove(each, start, stop, change)
            self._clear_recurrent((seq for seq in seqs if self.seq_pos_max(seq) < 0), change)

    def _clear_recurrent(self, seqs: Iterable[int], change: Transaction) -> None:
        """Begin the recurrent states of some sequences anew."""
        if self.recurrent is not None:
            change.on_failure(self.recurrent.restore, self.recurrent.begin())
            for seq in seqs:
                self.recurrent.clear(seq)

    def check_missed(
        self, cache: KVCache, held: Positions, evicted: Spans, seq: int, asked: str
    ) -> None:
        """Raise Unsupported if the next token of a sequence would see evicted positions.

        `held` and `evicted` are its positions after an operation, `asked` describes that, `seq` is
        the sequence that it takes positions from.
        """
        cells = cache.cells
        lost = missed(held, evicted, cells.window)
        if lost:
            position = max(int(held.max(initial=-1)) + 1, evicted.end)
            still = Spans.of(cells.positions_of(seq, cells.of(seq))) or "none"
            raise Unsupported(
                f"{asked}: the next token, at {position}, would see {lost}, which layers with a"
                f" window of {cells.window} have evicted; of sequence {seq} they still hold"
                f" {still}. Remove the sequence as a whole and decode its tokens again"
            )

    def seq_keep(self, seq: int) -> None:
        """Remove every sequence but one."""
        self.check_seq(seq)
        self._remove([other for other in range(self.sizes.n_seq_max) if other != seq])
        if self.source is not None:
            self.source.seq_keep(seq)

    def seq_cp(self, source: int, target: int, start: int = 0, stop: int | None = None) -> None:
        """Let `target` hold what `source` holds at positions `start` up to `stop`.

        What the target held there is replaced. In a shared stream the cells belong to both from
        then on; between streams K and V are copied. Raises CacheFull or Unsupported, and then
        changes nothing.
        """
        self.check_seq(source)
        self.check_seq(target)
        if source == target:
            return
        self._whole_if_recurrent(source, start, stop, "copied")
        self._whole_if_recurrent(target, start, stop, "replaced")
        if self.source is not None:
            self._check_one_source(source, target, start, stop)
        asked = f"positions {_range(start, stop)} of sequence {source} cannot be copied to {target}"
        for cache in self.caches:
            cells = cache.cells
            rest = cells.positions_besides(target, start, stop)
            held = [rest, cells.positions_of(source, cells.of(source, start, stop))]
            evicted = _merged(cells, source, target, start, stop)
            self.check_missed(cache, np.concatenate(held), evicted, source, asked)
        with self.change_of([target]) as change:
            copies = [_copy_cells(c, source, target, start, stop, change) for c in self.caches]
            for cache, (cells_from, cells_to) in zip(self.caches, copies, strict=True):
                cache.store.copy_rows(source, cells_from, target, cells_to)
            if self.recurrent is not None:
                if not self._is_nothing(source, start, stop):
                    self.recurrent.copy(source, target)
                elif self.seq_pos_max(target) < 0:
                    self.recurrent.clear(target)
            if self.source is not None:  # last: it changes nothing where it fails
                self.source.seq_cp(source, target)

    def _check_one_source(self, source: int, target: int, start: int, stop: int | None) -> None:
        """All that the target holds then must have been decoded with what becomes its source."""
        if len(self.caches[0].cells.positions_besides(target, start, stop)):
            raise Unsupported(
                f"positions {_range(start, stop)} of sequence {source} cannot be copied to"
                f" {target}, which holds others: those were decoded with another source"
            )

    def change_of(self, seqs: Iterable[int]) -> Transaction:
        """A transaction that restores what the cells of some sequences' streams held, in every
        cache, and all recurrent states, of which each may be changed once.

        What cells store is not restored: see `KVStore.save_rows`.
        """
        change = Transaction()
        for cache in self.caches:
            for stream in {cache.cells.stream_of(seq) for seq in seqs}:
                change.on_failure(cache.cells.restore, cache.cells.snapshot(stream))
        if self.recurrent is not None:
            change.on_failure(self.recurrent.restore, self.recurrent.begin())
        return change

    def _whole_if_recurrent(self, seq: int, start: int, stop: int | None, done: str) -> None:
        """A recurrent state holds all of a sequence: no part of it can be taken."""
        if self.recurrent is None or self._is_nothing(seq, start, stop):
            return
        if start > 0 or (stop is not None and stop <= self.seq_pos_max(seq)):
            raise Unsupported(
                f"positions {_range(start, stop)} of sequence {seq} cannot be {done}: the model has"
                " recurrent layers, whose state holds all of it"
            )

    def _is_nothing(self, seq: int, start: int, stop: int | None) -> bool:
        return start > self.seq_pos_max(seq) or (stop is not None and stop <= max(start, 0))

    def reusable(self, seq: int, n_tokens: int) -> int:
        """How many of a sequence's first `n_tokens` can stay when the rest is removed.

        All of them with full attention. A window evicts, and a recurrent state cannot go back.
        """
        held = self.seq_pos_max(seq) + 1
        n_tokens = min(n_tokens, held)
        if self.recurrent is not None and n_tokens != held:
            return 0
        return n_tokens if all(cache.cells.sees_all(seq, n_tokens) for cache in self.caches) else 0

    def can_copy(self, seq: int, n_tokens: int) -> bool:
        """Whether the first `n_tokens` of a sequence are all there to be copied to another."""
        whole = n_tokens == self.seq_pos_max(seq) + 1
        return (self.recurrent is None or whole) and self.reusable(seq, n_tokens) == n_tokens

    def histories(self) -> list[int]:
        """A number for each sequence of a shared stream, equal for those that hold the same."""
        assert self.n_stream == 1
        known: dict[tuple[bytes, ...], int] = {}
        by_cache = [cache.cells.by_sequence() for cache in self.caches]
        return [known.setdefault(cells, len(known)) for cells in zip(*by_cache, strict=True)]

    def check_seq(self, seq: int) -> None:
        """Raise ArgumentError for a sequence that does not exist."""
        if not isinstance(seq, Integral) or not 0 <= seq < self.sizes.n_seq_max:
            n = self.sizes.n_seq_max
            raise ArgumentError(
                f"the sequence is {seq!r}: it must be 0 to {n - 1}, n_seq_max is {n}"
            )

    def check_saves(self) -> None:
        """Raise Unsupported where states of sequences are not all that later tokens see."""
        if self.source is not None:
            raise Unsupported(
                "sequences of an encoder-decoder model cannot be saved or loaded: their states do"
                " not hold what was encoded of their sources"
            )


def _range(start: int, stop: int | None) -> str:
    return f"{start} to {'the end' if stop is None else stop - 1}"


def _merged(cells: KVCells, source: int, target: int, start: int, stop: int | None) -> Spans:
    """What is evicted of a target that gets positions of a source."""
    rest = cells.evicted(target).without(start, stop)
    return rest.plus(cells.evicted(source).between(start, stop))


def _copy_cells(
    cache: KVCache, source: int, target: int, start: int, stop: int | None, change: Transaction
) -> tuple[Index, Index]:
    """Give a sequence positions of another one, in one cache.

    Returns the cells whose K and V are to be copied, and those they go to. What the latter store
    is saved in `change`.
    """
    cells, store, stream = cache.cells, cache.store, cache.cells.stream_of(target)
    copied, before = cells.of(source, start, stop), cells.of(target)
    evicted = _merged(cells, source, target, start, stop)
    cells.remove(target, start, stop)
    cells.set_evicted(target, evicted)
    if cells.n_stream == 1:
        cells.share(target, copied)
        return copied[:0], copied[:0]
    to = cells.find_slot(len(copied), target)
    if copied.size:
        again = np.zeros(cells.kv_size, np.bool_)
        again[before] = True
        change.on_failure(store.restore_rows, store.save_rows(stream, to[again[to]]))
        cells.occupy(to, cells.positions_of(source, copied), (target,))
    return copied, to
