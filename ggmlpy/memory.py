"""Everything a model keeps of its sequences: KV caches, with and without windows, and states.

One object for all of them, so that whatever is done to a sequence is done in each, or in none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ggmlpy.batch import Batch, TokenRun
from ggmlpy.errors import BadBatch, CacheFull, Unsupported
from ggmlpy.kv_cache import Cells, KVCache, Placed, padded
from ggmlpy.models.memory import AttentionLayers, Memory, RecurrentLayers
from ggmlpy.recurrent_state import RecurrentState
from ggmlpy.types import TensorType


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a memory holds: decided once, shown to whoever asks."""

    n_ctx: int  # tokens of all sequences together
    n_ctx_seq: int  # tokens that one sequence may have
    n_seq_max: int
    unified: bool
    n_ubatch: int


def decide_sizes(
    n_ctx: int, n_seq_max: int, unified: bool, n_ubatch: int, n_ctx_seq: int | None = None
) -> Sizes:
    """Unified, any sequence may take all of `n_ctx`, or `n_ctx_seq` of it; else each has an equal
    share of its own.

    Raises BadBatch where there is less than one token for each.
    """
    if n_seq_max < 1:
        raise BadBatch(f"n_seq_max is {n_seq_max}: it must be at least 1")
    share = n_ctx if unified else n_ctx // n_seq_max
    n_ctx_seq = share if n_ctx_seq is None else n_ctx_seq
    if share < 1:
        raise BadBatch(f"n_ctx is {n_ctx}: less than one token for each of {n_seq_max} sequences")
    if not 1 <= n_ctx_seq <= share:
        raise BadBatch(f"n_ctx_seq is {n_ctx_seq}: it must be 1 to {share}, what one can have")
    return Sizes(n_ctx, n_ctx_seq, n_seq_max, unified, n_ubatch)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the tokens of one ubatch went, with what it takes to undo that."""

    runs: list[TokenRun]
    cells: list[list[Cells]]  # [cache][run]
    placed: list[tuple[KVCache, Placed]]


class SequenceMemory:
    """The memory of up to `n_seq_max` sequences of one model.

    `seq_rm`, `seq_cp`, `seq_keep`, `seq_div`, `clear` are complete when they return. Shifting
    positions (`seq_add`) needs the model, to turn K: see `Context.seq_add`.
    """

    def __init__(self, spec: Memory, sizes: Sizes, type_k: TensorType, type_v: TensorType) -> None:
        self.sizes = sizes
        self.caches = [
            KVCache(part, _cache_size(part, sizes), type_k, type_v, sizes.n_seq_max, sizes.unified)
            for part in spec
            if isinstance(part, AttentionLayers)
        ]
        recurrent = [part for part in spec if isinstance(part, RecurrentLayers)]
        self.recurrent = RecurrentState(recurrent[0], sizes.n_seq_max) if recurrent else None
        assert self.caches, "a model without attention has no memory of positions here"
        self._open: list[Placement] = []  # of the transaction under way

    @property
    def n_bytes(self) -> int:
        kept = sum(cache.n_bytes for cache in self.caches)
        return kept + (self.recurrent.n_bytes if self.recurrent is not None else 0)

    @property
    def n_stream(self) -> int:
        """Streams of the KV caches: 1 where sequences share one. The one place that says it."""
        return self.caches[0].n_stream

    def seq_pos_min(self, seq: int) -> int:
        """The lowest position that every layer still holds of a sequence; -1 for none."""
        self.check_seq(seq)
        return max(cache.seq_pos_min(seq) for cache in self.caches)

    def seq_pos_max(self, seq: int) -> int:
        """The highest position held of a sequence; -1 for none."""
        self.check_seq(seq)
        return self.caches[0].seq_pos_max(seq)

    def n_used(self) -> int:
        """Cells in use, of all sequences, in the cache that holds the most."""
        return max(sum(c.n_used(s) for s in range(c.n_stream)) for c in self.caches)

    def n_free(self, seq: int) -> int:
        """Tokens that a sequence can still take in."""
        cache = self._unbounded()
        return cache.n_ctx - cache.n_used(cache.stream_of(seq))

    def _unbounded(self) -> KVCache:
        """A cache without a window where there is one: it is what fills up."""
        return min(self.caches, key=lambda cache: cache.window is not None)

    # --- placing a batch ---

    def check_room(self, batch: Batch, ubatches: list[list[TokenRun]]) -> None:
        """Raise CacheFull unless every ubatch finds its cells in turn. Changes nothing."""
        placements: list[Placement] = []
        try:
            for runs in ubatches:
                placements.append(self.place(batch, runs))
        finally:
            for placement in reversed(placements):
                self.undo(placement)

    def place(self, batch: Batch, runs: list[TokenRun]) -> Placement:
        """Give the tokens of one ubatch their cells. Raises CacheFull, and then changes nothing."""
        positions = np.array(batch.positions, np.int32)
        placement = Placement(runs, [[] for _ in self.caches], [])
        try:
            for cache, cells in zip(self.caches, placement.cells, strict=True):
                for run, found in zip(runs, _find_cells(cache, runs), strict=True):
                    placed = cache.occupy(found, positions[run.index], run.seqs)
                    placement.placed.append((cache, placed))
                    cells.append(found)
        except CacheFull:
            self.undo(placement)
            raise
        self._open.append(placement)
        return placement

    @contextmanager
    def transaction(self, batch: Batch) -> Iterator[None]:
        """Placing and running a batch: whatever ends it early leaves everything as it was."""
        seqs = sorted({seq for seqs in batch.seq_ids for seq in seqs})
        saved = [] if self.recurrent is None else self.recurrent.save(seqs)
        self._open = []
        try:
            yield
        except BaseException:
            for placement in reversed(self._open):
                self.undo(placement)
            if self.recurrent is not None:
                self.recurrent.restore(seqs, saved)
            raise

    def undo(self, placement: Placement) -> None:
        """Take back the last placement that is not yet undone."""
        for cache, placed in reversed(placement.placed):
            cache.undo(placed)

    # --- sequences ---

    def clear(self) -> None:
        """Forget everything."""
        for cache in self.caches:
            cache.clear()
        if self.recurrent is not None:
            for seq in range(self.sizes.n_seq_max):
                self.recurrent.clear(seq)

    def seq_rm(self, seq: int, start: int = 0, stop: int | None = None) -> None:
        """Forget positions `start` up to `stop` (None: to the end); `seq` -1 means every sequence.

        Raises Unsupported, and changes nothing, for a part of a sequence with recurrent layers.
        """
        seqs = range(self.sizes.n_seq_max) if seq == -1 else (seq,)
        for each in seqs:
            self.check_seq(each)
            self._whole_if_recurrent(each, start, stop, "removed")
        for each in seqs:
            for cache in self.caches:
                cache.release(each, cache.cells_of(each, start, stop))
            if self.recurrent is not None and self.seq_pos_max(each) < 0:
                self.recurrent.clear(each)

    def seq_keep(self, seq: int) -> None:
        """Forget every sequence but one."""
        self.check_seq(seq)
        for other in range(self.sizes.n_seq_max):
            if other != seq:
                self.seq_rm(other)

    def seq_cp(self, source: int, target: int, start: int = 0, stop: int | None = None) -> None:
        """Let `target` hold what `source` holds at positions `start` up to `stop`.

        What the target held there is forgotten. In a shared stream the cells belong to both from
        then on; between streams K and V are copied. Raises CacheFull or Unsupported, and then
        changes nothing.
        """
        self.check_seq(source)
        self.check_seq(target)
        if source == target:
            return
        self._whole_if_recurrent(source, start, stop, "copied")
        self._whole_if_recurrent(target, start, stop, "replaced")
        copies = []
        with self._unchanged_on_failure():
            for cache in self.caches:
                cells = cache.cells_of(source, start, stop)
                cache.release(target, cache.cells_of(target, start, stop))
                if cache.n_stream == 1:
                    cache.share(target, cells)
                elif cells.size:
                    to = cache.find_cells(len(cells), target)
                    cache.occupy(to, cache.positions_of(source, cells), (target,))
                    copies.append((cache, cells, to))
        for cache, cells, to in copies:
            cache.copy_cells(source, cells, target, to)
        if self.recurrent is not None and not self._is_nothing(source, start, stop):
            self.recurrent.copy(source, target)
        elif self.recurrent is not None and self.seq_pos_max(target) < 0:
            self.recurrent.clear(target)

    @contextmanager
    def _unchanged_on_failure(self) -> Iterator[None]:
        """Changing what cells hold, but not yet what they store: in every cache, or in none."""
        before = [cache.holdings() for cache in self.caches]
        try:
            yield
        except BaseException:
            for cache, old in zip(self.caches, before, strict=True):
                cache.go_back(old)
            raise

    def _whole_if_recurrent(self, seq: int, start: int, stop: int | None, done: str) -> None:
        """A recurrent state holds all of a sequence: no part of it can be taken."""
        if self.recurrent is None or self._is_nothing(seq, start, stop):
            return
        if start > 0 or (stop is not None and stop <= self.seq_pos_max(seq)):
            raise Unsupported(
                f"positions {start} to {'the end' if stop is None else stop} of sequence {seq}"
                f" cannot be {done}: the model has recurrent layers, whose state holds all of it"
            )

    def _is_nothing(self, seq: int, start: int, stop: int | None) -> bool:
        return start > self.seq_pos_max(seq) or (stop is not None and stop <= max(start, 0))

    def reusable(self, seq: int, n_tokens: int) -> int:
        """How many of a sequence's first `n_tokens` can stay when the rest is removed.

        All of them with full attention. A window forgets, and a recurrent state cannot go back.
        """
        held = self.seq_pos_max(seq) + 1
        n_tokens = min(n_tokens, held)
        if self.recurrent is not None and n_tokens != held:
            return 0
        return n_tokens if all(cache.sees_all(seq, n_tokens) for cache in self.caches) else 0

    def can_copy(self, seq: int, n_tokens: int) -> bool:
        """Whether the first `n_tokens` of a sequence are all there to be copied to another."""
        whole = n_tokens == self.seq_pos_max(seq) + 1
        return (self.recurrent is None or whole) and self.reusable(seq, n_tokens) == n_tokens

    def histories(self) -> list[int]:
        """A number for each sequence of a shared stream, equal for those that hold the same."""
        assert self.n_stream == 1
        known: dict[tuple[bytes, ...], int] = {}
        by_cache = [cache.cells_by_sequence() for cache in self.caches]
        return [known.setdefault(cells, len(known)) for cells in zip(*by_cache, strict=True)]

    def check_seq(self, seq: int) -> None:
        """Raise BadBatch for a sequence that there is not."""
        if not 0 <= seq < self.sizes.n_seq_max:
            raise BadBatch(f"sequence {seq}: n_seq_max is {self.sizes.n_seq_max}")


def _find_cells(cache: KVCache, runs: list[TokenRun]) -> list[Cells]:
    """Cells for each run of a ubatch.

    In a shared stream for all runs at once: a window's cells are given away by where sequences are
    before the ubatch, so that none goes which a token of another run has yet to see.
    """
    lengths = [len(run.index) for run in runs]
    if cache.n_stream > 1:
        pairs = zip(runs, lengths, strict=True)
        return [cache.find_cells(n, cache.stream_of(run.seqs[0])) for run, n in pairs]
    return np.split(cache.find_cells(sum(lengths)), np.cumsum(lengths[:-1]))


def _cache_size(spec: AttentionLayers, sizes: Sizes) -> int:
    """Tokens that one stream of a cache must hold: with a window only what can still be seen."""
    n_tokens = sizes.n_ctx if sizes.unified else sizes.n_ctx_seq
    if spec.window is None:
        return n_tokens
    n_seqs = sizes.n_seq_max if sizes.unified else 1
    return min(n_tokens, padded(spec.window * n_seqs + sizes.n_ubatch))
