"""The search for cells in pages: what each of several runs of tokens gets, and what comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ggmlpy.errors import CacheFull
from ggmlpy.memory.cell_table import NO_CELLS, Index, Moves, PageCopy

if TYPE_CHECKING:
    from ggmlpy.memory.batch import TokenRun
    from ggmlpy.memory.pages import PagedCells


class PageSearch:
    """Looks for cells of several runs of tokens, one after another.

    Does not change what cells hold; stale lists of cells are made anew to find last pages.
    """

    def __init__(self, cells: PagedCells, *, copies: bool = True, evicts: bool = True) -> None:
        self.uses_holes = False
        self._cells = cells
        self._may_copy = copies
        self._refs = cells.references()
        self._pages = cells.free_pages()  # not yet taken
        self._may_evict = evicts
        self._unseen: Index | None = None  # likewise, once they are needed
        self._evicted: list[Index] = []
        self._copies: list[PageCopy] = []
        self._found: list[Index] = []
        self._left: list[Index] = []  # cells of pages that were copied: others own those
        self._done: set[int] = set()  # sequences that were looked for

    def moves(self) -> Moves | None:
        """What must be done first."""
        evicted = [self._cells.cells_of(pages) for pages in self._evicted]
        moves = Moves(np.concatenate([NO_CELLS, *evicted]), self._copies)
        return moves or None

    def find_all(self, runs: Sequence[TokenRun]) -> Index:
        """Cells for the tokens of all runs, in their order. Raises CacheFull."""
        found: list[Index] = [NO_CELLS] * len(runs)
        # Those of the most sequences first: once one of them has a copy of a page, they share none.
        for i in sorted(range(len(runs)), key=lambda i: -len(runs[i].seqs)):
            found[i] = self.find(runs[i].seqs, len(runs[i].index))
        return np.concatenate(found)

    def find(self, seqs: tuple[int, ...], n_tokens: int) -> Index:
        """Cells for tokens of some sequences together. Raises CacheFull."""
        cells = NO_CELLS
        if self._done.isdisjoint(seqs):  # else their last page may have changed in this search
            cells = self._in_last_page(seqs)[:n_tokens]
        self._done.update(seqs)
        if len(cells) < n_tokens:
            n_pages = self._cells.pages_for(n_tokens - len(cells))
            more = self._cells.cells_of(self._take(n_pages))
            cells = np.concatenate([cells, more])[:n_tokens]
        if len(cells) < n_tokens:
            holes = self._cells.holes(seqs, self._refs)
            holes = np.setdiff1d(holes, np.concatenate([cells, *self._found, *self._left]))
            cells = np.concatenate([cells, holes[: n_tokens - len(cells)]])
            self.uses_holes = True
        if len(cells) < n_tokens:
            raise self._full(seqs, n_tokens)
        self._found.append(cells)
        return cells

    def _in_last_page(self, seqs: tuple[int, ...]) -> Index:
        """The cells that follow those of some sequences in their last page, or in a copy of it."""
        cells, seq = self._cells, seqs[0]
        known = cells.tail(seq) if len(seqs) == 1 else None
        if known is not None:
            return known
        page = cells.last_page(seq)
        if page is None or (len(seqs) > 1 and not cells.is_alike(seqs, page)):
            return NO_CELLS  # where some have a copy, new tokens go into a page of all of them
        if self._refs[page] == len(seqs):
            return np.arange(cells.first_behind(page), (page + 1) * cells.page_size)
        if not self._may_copy or not cells.room_behind(page, seq):
            return NO_CELLS
        target = cells.cells_of(self._take(1))
        if not target.size:
            return NO_CELLS
        source = cells.owned_by(seq, page)
        self._copies.append(PageCopy(seqs, source, target[: len(source)]))
        self._left.append(cells.cells_of(np.array([page])))
        self._refs[page] -= len(seqs)  # the last owner need not copy
        return target[len(source) :]

    def _take(self, n_pages: int) -> Index:
        """Free pages, then those that no later token sees; fewer if there are too few."""
        taken, self._pages = self._pages[:n_pages], self._pages[n_pages:]
        n_more = n_pages - len(taken)
        if n_more == 0 or not self._may_evict:
            return taken
        if self._unseen is None:
            self._unseen = self._cells.unseen_pages()
        again, self._unseen = self._unseen[:n_more], self._unseen[n_more:]
        self._evicted.append(again)
        self._refs[again] = 0
        return np.concatenate([taken, again])

    def _full(self, seqs: tuple[int, ...], n_tokens: int) -> CacheFull:
        cells = self._cells
        return CacheFull(
            f"{n_tokens} more tokens of sequence {seqs[0]} do not fit: {cells.n_pages_used()} of"
            f" {cells.n_pages} pages of {cells.page_size} cells are in use, {cells.held_by()}"
        )


def n_copies(cells: PagedCells, seqs: Sequence[int]) -> int:
    """How many copies of shared last pages some sequences get that go on writing."""
    writers: Counter[int] = Counter()
    for seq in seqs:
        page = None if cells.tail(seq) is not None else cells.last_page(seq)
        if page is not None and cells.is_copied(page, seq):
            writers[page] += 1
    refs = cells.references()
    return sum(min(n, refs.item(page) - 1) for page, n in writers.items())
