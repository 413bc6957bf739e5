"""A context and its oracle: every operation is applied to both, and the results are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.errors import CacheFull, GgmlpyError
from ggmlpy.graph.types import F32
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.layouts import KVLayout
from ggmlpy.memory.pages import PagedCells
from ggmlpy.models.memory import Window
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.plans import Plan
from ggmlpy.sched.compute import backends_for
from tests.oracle.cache_model import Entry, Fits, LayersModel, MemoryModel, Seen
from tests.oracle.glass_model import (
    KEYS,
    N_NAMES,
    TAPS,
    Glass,
    attention_weights,
    rotated,
)
from tests.seen import seen_cells

N_UBATCH = 4
Error = type[GgmlpyError]


class Side:
    """A context with a glass model, and its oracle."""

    def __init__(self, glass: Glass, n_seq_max: int, n_ctx: int, layout: KVLayout) -> None:
        self.layout = layout
        self.context = Context(
            glass,
            backends_for("reference"),
            n_ctx=n_ctx,
            n_ubatch=N_UBATCH,
            n_seq_max=n_seq_max,
            kv_layout=layout,
            type_k=F32,
            type_v=F32,
        )
        self.memory = self.context.memory
        layers = [
            LayersModel(
                cache.cells.n_ctx,
                _size_of(cache.cells.window),
                layout != "split",
                *_no_entries(n_seq_max),
            )
            for cache in self.memory.caches
        ]
        taken_in: list[tuple[int, ...]] | None = [()] * n_seq_max if glass.recurrent else None
        self.model = MemoryModel(glass.hparams.n_vocab, N_UBATCH, layers, taken_in)

    # --- operations ---

    def expected(self, operation: Callable[[MemoryModel], object]) -> Error | None:
        """The error that an operation must raise."""
        try:
            operation(self.model.copy())
        except GgmlpyError as error:
            return type(error)
        return None

    def do(
        self,
        real: Callable[[Context], object],
        operation: Callable[[MemoryModel], object],
        n_tokens: int = 0,
    ) -> bool:
        """Apply an operation to the context and to the model.

        False if it needs more pages than are free, and does nothing. `n_tokens` is the most that it
        may need cells for.
        """
        error = self.expected(operation)
        lacks_pages = any(_n_pages(cells, n_tokens) > _n_free(cells) for cells in self._paged())
        if error is not None:
            self.fails((error, CacheFull) if lacks_pages else error, real)
            return True
        before = self.picture()
        try:
            real(self.context)
        except CacheFull:
            assert lacks_pages
            assert self.picture() == before
            return False
        operation(self.model)
        self._adopt_evicted()
        return True

    def fails(self, error: Error | tuple[Error, ...], real: Callable[[Context], object]) -> None:
        """Check that the context raises the error, or one of several, and does not change."""
        before = self.picture()
        with pytest.raises(error):
            real(self.context)
        assert self.picture() == before

    def decode(self, batch: Batch) -> NDArray[np.float32] | None:
        """Decode, and check the logits of each output token; None if it must fail and did."""
        error = self.expected(lambda model: model.decode(batch))
        if error is not None:
            self.fails(error, lambda context: context.decode_batch(batch))
            return None
        after = self.model.copy()
        seen, fits = after.decode(batch)
        fits = self._fits_in_pages(batch, fits)
        before, cells = self.picture(), self._cells_in_pages()
        try:
            logits = self.context.decode_batch(batch).copy()
        except CacheFull:
            assert fits != "yes"
            assert self.picture() == before
            return None
        assert fits != "no"
        self.model = after
        self._check_copies(batch, cells)
        self._adopt_copies()
        self._check_logits(batch, seen, logits)
        self._adopt_evicted()
        return logits

    def cut_short(self, batch: Batch, at: int, when: str) -> None:
        """Decode a batch that fails at one of its ubatches, before or after that is run.

        All entries that are visible to later tokens must be restored.
        """
        n_ubatches = -(-len(batch) // N_UBATCH)
        calls = count()
        run = Plan.run

        def failing(plan: Plan) -> None:
            fails = next(calls) == at % n_ubatches
            if fails and when == "before":
                raise _CutShort
            run(plan)
            if fails:
                raise _CutShort

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Plan, "run", failing)
            with pytest.raises((_CutShort, CacheFull)):
                self.context.decode_batch(batch)
        self._evict()

    def fits(self, batch: Batch) -> Fits:
        return self._fits_in_pages(batch, self.model.copy().decode(batch)[1])

    def _paged(self) -> list[PagedCells]:
        """The cells of a paged memory."""
        return [c.cells for c in self.memory.caches if isinstance(c.cells, PagedCells)]

    def _fits_in_pages(self, batch: Batch, fits: Fits) -> Fits:
        """Whether a batch fits pages too: that it does is sure where each of its sequences can have
        free pages for all of its tokens and a copy of its last page. Without a window it is also
        sure for a sequence that is alone: it uses all that is empty in its pages."""
        if self.layout != "paged" or fits != "yes":
            return fits
        runs = Counter(batch.seq_ids)
        for cells in self._paged():
            n_pages = sum(1 + _n_pages(cells, n) for n in runs.values())
            others = [s for s in range(self.model.n_seq_max) if runs.keys() != {(s,)}]
            is_alone = len(runs) == 1 and all(cells.pos_max(seq) < 0 for seq in others)
            if n_pages > _n_free(cells) and not (is_alone and cells.window is None):
                return "maybe"
        return "yes"

    def _check_logits(
        self, batch: Batch, seen: list[list[Seen]], logits: NDArray[np.float32]
    ) -> None:
        rows = np.flatnonzero(batch.outputs)
        assert logits.shape == (len(rows), self.context.model.hparams.n_vocab)
        for i, row in zip(rows, logits, strict=True):
            token, position = batch.tokens[i], batch.positions[i]
            for part, got in zip(seen[i], np.split(row, len(seen[i])), strict=True):
                want = attention_weights(token, position, part.elements())
                names = {name for name, _ in part}
                assert set(np.flatnonzero(got).tolist()) == names, f"token {token}: {part}"
                np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)

    def _cells_in_pages(self) -> list[list[set[int]]]:
        """The cells of each sequence, of each paged cache without a window."""
        caches = [cells for cells in self._paged() if cells.window is None]
        seqs = range(self.model.n_seq_max)
        return [[set(cells.of(seq).tolist()) for seq in seqs] for cells in caches]

    def _check_copies(self, batch: Batch, before: list[list[set[int]]]) -> None:
        """A batch copies nothing but the last page of each sequence that writes, and that once."""
        written = {seq for seqs in batch.seq_ids for seq in seqs}
        (page_size, *_) = {cells.page_size for cells in self._paged()} or {1}
        for was, now in zip(before, self._cells_in_pages(), strict=True):
            for seq, (old, new) in enumerate(zip(was, now, strict=True)):
                left = old - new
                assert not left or seq in written
                assert len({cell // page_size for cell in left}) <= 1
                assert len(left) < page_size

    def _adopt_copies(self) -> None:
        """Let sequences of the model no longer share what the memory has copied: pages that several
        sequences shared, of which one has written."""
        for cache, part in zip(self.memory.caches, self.model.layers, strict=True):
            if not isinstance(cache.cells, PagedCells):
                continue
            cells = [_cells_of(cache, seq, held) for seq, held in enumerate(part.held)]
            first: dict[Entry, int | None] = {}
            copies: dict[tuple[Entry, int | None], Entry] = {}
            for seq, held in enumerate(part.held):
                for entry in list(held):
                    cell = cells[seq].get(entry)
                    if first.setdefault(entry, cell) != cell:
                        copy = copies.setdefault(
                            (entry, cell), Entry(entry.token, entry.copied or entry)
                        )
                        held[copy] = held.pop(entry)

    def _adopt_evicted(self) -> None:
        """Evict from the model what the memory has evicted.

        It may do so only for layers with a window whose stream is full.
        """
        for cache, seq, n_evicted in self._evict():
            cells = cache.cells
            if isinstance(cells, PagedCells):
                assert not n_evicted or _n_free(cells) == 0
            else:
                assert not n_evicted or cells.n_used(cells.stream_of(seq)) == cells.n_ctx

    def _evict(self) -> list[tuple[KVCache, int, int]]:
        """Evict from the model what the memory has evicted. Returns (cache, sequence, number)."""
        pairs = list(zip(self.memory.caches, self.model.layers, strict=True))
        return [
            (cache, seq, part.evict(seq, contents(cache, seq)))
            for seq in range(self.model.n_seq_max)
            for cache, part in pairs
        ]

    # --- comparing ---

    def check(self) -> None:
        """Compare all that the memory reports with the model."""
        memory, model = self.memory, self.model
        for cells in self._paged():
            check_pages(cells)
        for seq in range(model.n_seq_max):
            assert memory.seq_pos_max(seq) == model.seq_pos_max(seq)
            assert memory.seq_pos_min(seq) == model.seq_pos_min(seq)
            for cache, part in zip(memory.caches, model.layers, strict=True):
                assert contents(cache, seq) == part.contents(seq)
                evicted = {p for r in cache.cells.evicted(seq).ranges for p in r}
                assert evicted == set(part.evicted[seq].values())
                assert not part.missed(seq)
                assert cache.cells.n_used(cache.cells.stream_of(seq)) == part.n_used(seq)
                following = part.last(seq) + 1
                # With a window a list still has what only earlier tokens saw.
                for position in {following, following // 2} if part.window is None else {following}:
                    assert visible(cache, seq, position) == part.sees(seq, position)
        if memory.recurrent is not None:
            assert model.taken_in is not None
            for seq, tokens in enumerate(model.taken_in):
                (state,) = memory.recurrent.read(seq).values()
                names = state.reshape(TAPS - 1, N_NAMES)
                last = tokens[-(TAPS - 1) :]
                expected = np.zeros_like(names)
                expected[np.arange(TAPS - 1 - len(last), TAPS - 1), list(last)] = 1
                assert np.array_equal(names, expected)

    def picture(self) -> list[object]:
        """The contents of the memory, byte by byte."""
        held: list[object] = []
        for cache in self.memory.caches:
            held += [leaf.numpy().tobytes() for leaf in cache.store.leaves]
            for seq in range(self.model.n_seq_max):
                cells = cache.cells.of(seq)
                held.append((cells.tolist(), cache.cells.positions_of(seq, cells).tolist()))
        if self.memory.recurrent is not None:
            for seq in range(self.model.n_seq_max):
                held += [state.tobytes() for state in self.memory.recurrent.read(seq).values()]
        return held


def _no_entries(n_seq_max: int) -> list[list[dict[Entry, int]]]:
    return [[{} for _ in range(n_seq_max)] for _ in range(2)]


def check_pages(cells: PagedCells) -> None:
    """No page is lost or free twice: owners, counts and the cells of sequences agree."""
    size, owned = cells.page_size, [np.flatnonzero(mine).tolist() for mine in cells._owners]
    held = [{cell // size for cell in cells.of(seq).tolist()} for seq in range(cells.n_seq_max)]
    assert [set(pages) for pages in owned] == held
    counted = Counter(page for pages in owned for page in pages)
    refs = cells.references()
    assert {page: n for page, n in enumerate(refs.tolist()) if n} == counted
    assert refs.sum() == sum(len(pages) for pages in owned)
    free = cells.free_pages().tolist()
    assert sorted([*free, *counted]) == list(range(cells.n_pages))
    assert cells.n_pages_shared() == sum(n > 1 for n in counted.values())
    in_use = {cell for seq in range(cells.n_seq_max) for cell in cells.of(seq).tolist()}
    assert cells.n_used() == len(in_use)


def _n_pages(cells: PagedCells, n_tokens: int) -> int:
    return -(-n_tokens // cells.page_size)


def _n_free(cells: PagedCells) -> int:
    """Pages in which no sequence has a cell."""
    used = {c // cells.page_size for s in range(cells.n_seq_max) for c in cells.of(s).tolist()}
    return cells.n_pages - len(used)


class _CutShort(BaseException):
    """An exception that, like KeyboardInterrupt, is not an Exception."""


def contents(cache: KVCache, seq: int) -> Seen:
    """(token, position) of a sequence's cells; the token is read from the stored V."""
    cells = cache.cells.of(seq)
    positions = cache.cells.positions_of(seq, cells).tolist()
    names, keys = _stored(cache, seq)
    np.testing.assert_allclose(keys[cells], rotated(KEYS[names[cells]], positions), atol=1e-5)
    return Counter(zip(names[cells].tolist(), positions, strict=True))


def _cells_of(cache: KVCache, seq: int, held: dict[Entry, int]) -> dict[Entry, int]:
    """The cell of each entry of a sequence that is in the memory."""
    cells = cache.cells.of(seq)
    names, _ = _stored(cache, seq)
    positions = cache.cells.positions_of(seq, cells).tolist()
    there: dict[tuple[int, int], list[int]] = {}
    for cell, name, at in zip(cells.tolist(), names[cells].tolist(), positions, strict=True):
        there.setdefault((name, at), []).append(cell)
    found = {}
    for entry, at in held.items():
        if there.get((entry.token, at)):
            found[entry] = there[entry.token, at].pop(0)
    return found


def visible(cache: KVCache, seq: int, position: int) -> Seen:
    """(token, position) of the cells that a token of the sequence would see, by its list."""
    cells, positions = seen_cells(cache.cells, seq, position)
    names, _ = _stored(cache, seq)
    return Counter(zip(names[cells].tolist(), positions.tolist(), strict=True))


def _stored(cache: KVCache, seq: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The token (-1 if none was written) and the key of each cell of a stream."""
    (k,), (v,) = cache.store.k.values(), cache.store.v.values()
    stream, everything = cache.cells.stream_of(seq), np.arange(cache.cells.kv_size)
    rows = (cache.store.read_rows(leaf, stream, everything) for leaf in (k, v))
    keys, names = (raw.view(np.float32) for raw in rows)
    assert np.isin(names, [0, 1]).all()
    return np.where(names.any(axis=1), names.argmax(axis=1), -1), keys


def _size_of(window: Window | None) -> int | None:
    return None if window is None else window.size
