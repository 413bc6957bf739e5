"""The cells of a paged KV cache: one stream, cut into pages that belong to sequences.

A page has a count of references: how many sequences have cells in it. Those without any are free.
New tokens of a sequence go into its last page behind all cells there, if that is its own, else into
free pages, the lowest first. `seq_cp` shares pages. A shared last page with room behind the
sequence's last cell is copied when the sequence writes (copy on write), so that the other owners
keep it. With a window, pages of which no later token sees a cell are used again when none is free.
Cells that removals in the middle of a sequence have emptied stay in its pages; the sequence uses
them when there are no more pages.

What is written to a cell has a number, which copies of it have too. Sequences that hold the same
numbers hold the same tokens, and may take in a token together: in a last page whose cells they
share, else in a new page.

Pages follow from the cells' membership: whatever restores that restores owners and counts. Source:
Kwon et al., 2023 (PagedAttention).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ggmlpy.memory.cell_table import NO_CELLS, Appended, Found, Index, PageCopy, Snapshot, listed
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.page_search import PageSearch, n_copies
from ggmlpy.memory.spans import EMPTY, Positions
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.memory.window import FULL, Flags, Sight, firsts_kept

# Cells of a page. A sequence leaves half a page empty on average: with requests like those of
# benchmarks/mixture.py (about 170 tokens held by each that runs) 2 % of the cells, with pages of 16
# more than 4 %. Attention on the CPU prefetches rows by their numbers, so that it gains little from
# longer pages.
PAGE_SIZE = 8


class PagedCells(KVCells):
    """Cells in pages; `_owners` [n_seq_max, n_pages] tells which ones a sequence has cells in."""

    def __init__(
        self,
        n_ctx: int,
        n_seq_max: int = 1,
        sight: Sight = FULL,
        name: str = "attn_inp_cells",
    ) -> None:
        self.page_size = PAGE_SIZE
        self.n_pages = -(-n_ctx // PAGE_SIZE)
        super().__init__(self.n_pages * PAGE_SIZE, n_seq_max, True, sight, name)
        self._owners = np.zeros((n_seq_max, self.n_pages), np.bool_)
        self._refs: Index = np.zeros(self.n_pages, np.int64)  # owners of each page
        # Of each sequence: the cell behind all others in its last page, and how many from there on
        # are its own to use. No room is also what a sequence has whose tail is unknown.
        self._next: Index = np.zeros(n_seq_max, np.int64)
        self._room: Index = np.zeros(n_seq_max, np.int64)
        self._unknown = set(range(n_seq_max))
        # A number for what each cell holds, the same in copies of it.
        self._tokens: Index = np.zeros(self.kv_size, np.int64)
        self._n_written = 0

    # --- pages ---

    def n_pages_used(self) -> int:
        """Pages that belong to any sequence."""
        return int(np.count_nonzero(self._refs))

    def n_pages_shared(self) -> int:
        """Pages that belong to several sequences."""
        return int(np.count_nonzero(self._refs > 1))

    def n_pages_of(self, seqs: Sequence[int]) -> int:
        """Pages that belong to any of some sequences."""
        return int(np.count_nonzero(self._owners[list(seqs)].any(axis=0)))

    def references(self) -> Index:
        """How many sequences have cells in each page."""
        return self._refs.copy()

    def pages_for(self, n_tokens: int) -> int:
        """Pages that a number of tokens takes."""
        return -(-n_tokens // self.page_size)

    def n_taken(self, lengths: Sequence[int]) -> int:
        """Cells of the pages that sequences of these lengths take, if all were empty."""
        return self.page_size * sum(map(self.pages_for, lengths))

    def n_free(self, seq: int) -> int:
        """Tokens of a sequence that find empty cells, in free pages or in its own."""
        n_free = self.n_pages - self.n_pages_used()
        return n_free * self.page_size + int(self.holes((seq,), self._refs).size)

    def n_free_without(self, seq: int) -> int:
        """Tokens that find cells in free pages, whole ones, once a sequence has none itself."""
        kept = self._kept(0)
        kept[seq] = False
        kept_cells: Flags = np.asarray(kept.any(axis=0))
        n_kept = int(np.count_nonzero(self._by_page(kept_cells)))
        return (self.n_pages - n_kept) * self.page_size

    def has_room(self, lengths: Mapping[int, int], n_tokens: int, n_shared: int = 0) -> bool:
        """Whether there are pages for one more sequence; those that are shared count once, and
        their copies for all that will write there."""
        n_to_come = sum(
            max(0, self.pages_for(n) - self.n_pages_of([seq])) for seq, n in lengths.items()
        )
        n_to_come += n_copies(
            self, [seq for seq, n in lengths.items() if n > self.pos_max(seq) + 1]
        )
        n_held = self.n_pages_of(list(lengths))
        n_new = self.pages_for(n_tokens) - n_shared // self.page_size
        return bool(n_held + n_to_come + n_new <= self.n_pages)

    def n_freed_by(self, seq: int) -> int:
        """Cells of the pages that belong to a sequence alone."""
        return self.page_size * int(np.count_nonzero(self._owners[seq] & (self._refs == 1)))

    def held_by(self, stream: int = 0) -> str:
        """Which sequences have how many pages, those that have the most first."""
        n_pages = dict(enumerate(self._owners.sum(axis=1).tolist()))
        shared = self.n_pages_shared()
        return listed(n_pages, " pages") + (f", {shared} shared" if shared else "")

    def by_sequence(self, stream: int = 0) -> list[bytes]:
        """For each sequence, bytes that are equal for those that hold the same tokens, be it in
        the same cells or in copies of them."""
        return [self._tokens[self._in_order(seq)[0]].tobytes() for seq in range(self.n_seq_max)]

    # --- cells for tokens ---

    def find(self, ubatch: UBatch) -> Found:
        """Cells for the tokens of a ubatch. Raises CacheFull.

        Does not change what cells hold. Tails of sequences that were unknown are kept, and so are
        lists of cells that are made anew to find them.
        """
        appended = self.find_append(ubatch)
        if appended is not None:
            return Found(appended.cells, appended)
        search = PageSearch(self)
        cells = search.find_all(ubatch.runs)
        if ubatch.is_shared or search.uses_holes:
            return Found(cells, None, search.moves())
        return Found(cells, Appended(ubatch.streams, NO_CELLS, cells), search.moves())

    def find_slot(self, n_tokens: int, seq: int = 0) -> Index:
        """Empty cells for tokens of a sequence. Raises CacheFull.

        Does not change what cells hold, but may make the sequence's list of cells anew.
        """
        return PageSearch(self, copies=False, evicts=False).find((seq,), n_tokens)

    def claim(self, n_tokens: int, seq: int) -> Index:
        """Cells for tokens of a sequence, also in pages that no later token sees, emptied here.
        Raises CacheFull."""
        search = PageSearch(self, copies=False)
        cells = search.find((seq,), n_tokens)
        moves = search.moves()
        if moves is not None:
            self.make_room(moves)
        return cells

    def find_append(self, tokens: UBatch) -> Appended | None:
        """Cells for tokens in the last pages of their sequences, and in free pages behind.

        None where these do not suffice, where a page must be copied, and for tokens of several
        sequences. Does not change what cells hold; keeps tails that were unknown, as `find`.
        """
        if tokens.is_shared:
            return None
        short = tokens.run_lengths > self._room[tokens.run_seqs]
        cells = self._next[tokens.seqs] + tokens.steps
        if short.any() and not self._find_pages(tokens, np.flatnonzero(short).tolist(), cells):
            return None
        return Appended(tokens.streams, NO_CELLS, cells)

    def _find_pages(self, tokens: UBatch, runs: Iterable[int], cells: Index) -> bool:
        """Put the cells of some runs, with those of new pages, into `cells`. False if there are too
        few free pages, or one must be copied."""
        free, n_taken = np.flatnonzero(self._refs == 0), 0
        for run in runs:
            seq, n = tokens.run_seqs.item(run), tokens.run_lengths.item(run)
            if self._learn_tail(seq):
                return False
            room = self._room.item(seq)
            n_pages = self.pages_for(max(n - room, 0))
            pages = free[n_taken : n_taken + n_pages]
            if len(pages) < n_pages:
                return False
            n_taken += n_pages
            last = tokens.run_ends.item(run)
            if n == 1:  # in a decode step
                cells[last] = pages[0] * self.page_size if n_pages else self._next.item(seq)
                continue
            own = self._next.item(seq) + np.arange(min(n, room))
            cells[last + 1 - n : last + 1] = np.concatenate([own, self.cells_of(pages)])[:n]
        return True

    def append(self, at: Appended, tokens: UBatch, positions: Positions) -> None:
        """Let the cells found by `find_append`, or else `find`, hold the tokens."""
        if len(at.cells) == 1:
            self._append_one(at, tokens.seqs.item(), positions.item())
            return
        cells, seqs = at.cells, tokens.seqs
        self._number(cells)
        self._positions[0, cells] = positions
        self._members[0, seqs, cells] = True
        self._end[0] = max(self._end.item(0), int(cells.max()) + 1)
        self._n_used[0] += len(cells)
        self._pos_max[tokens.run_seqs] = positions[tokens.run_ends]
        pages = cells // self.page_size
        self._owners[seqs, pages] = True
        self._refs[pages] = 1
        self._next[tokens.run_seqs] = behind = cells[tokens.run_ends] + 1
        self._room[tokens.run_seqs] = -behind % self.page_size
        self._unknown.difference_update(tokens.all_seqs)
        self.lists.append(tokens, cells, positions)

    def _append_one(self, at: Appended, seq: int, position: int) -> None:
        cell = at.cells.item()
        page = cell // self.page_size
        self._n_written += 1
        self._tokens[cell] = self._n_written
        self._positions[0, cell] = position
        self._members[0, seq, cell] = True
        self._end[0] = max(self._end.item(0), cell + 1)
        self._n_used[0] += 1
        self._pos_max[seq] = position
        self._owners[seq, page] = True
        self._refs[page] = 1
        self._next[seq] = cell + 1
        self._room[seq] = -(cell + 1) % self.page_size
        self._unknown.discard(seq)
        self.lists.append_one(seq, cell, position)

    def occupy(self, cells: Index, positions: Positions, seqs: tuple[int, ...] = (0,)) -> None:
        """Let `cells` hold the tokens at `positions` of the sequences, and nothing else."""
        self._number(cells)
        super().occupy(cells, positions, seqs)
        pages = cells // self.page_size
        for seq in seqs:
            self._owners[seq, pages] = True
        self._refs[pages] = self._owners[:, pages].sum(axis=0)
        self._forget_tails()

    def move(self, seq: int, cells: Index, positions: Positions) -> None:
        """Let cells hold other positions. The caller rotates their K."""
        self._number(cells)
        super().move(seq, cells, positions)

    def snapshot(self, stream: int, cells: Index | None = None) -> Snapshot:
        """What some cells hold (all of them, unless told), as `restore` takes it."""
        held = super().snapshot(stream, cells)
        return replace(held, tokens=self._tokens[held.cells])

    def restore(self, before: Snapshot) -> None:
        """Let these cells hold what they held. The K and V that they stored are not restored."""
        assert before.tokens is not None
        self._tokens[before.cells] = before.tokens
        super().restore(before)

    # --- inside ---

    def _number(self, cells: Index) -> None:
        """Note that cells get other K and V than any cell has."""
        self._n_written += len(cells)
        self._tokens[cells] = self._n_written - np.arange(len(cells))

    def _relocate(self, copy: PageCopy) -> None:
        self._tokens[copy.target] = self._tokens[copy.source]
        super()._relocate(copy)

    def cells_of(self, pages: Index) -> Index:
        """The cells of some pages, in their order."""
        first: Index = pages * self.page_size
        return (first[:, None] + np.arange(self.page_size)).reshape(-1)

    def _by_page(self, cells: Flags) -> Flags:
        """Which pages have any of some cells, [..., cells] to [..., pages]."""
        n_given, n = cells.shape[-1], self.n_pages * self.page_size
        if n_given < n:
            cells = np.pad(cells, [(0, 0)] * (cells.ndim - 1) + [(0, n - n_given)])
        by_page = cells[..., :n].reshape(*cells.shape[:-1], self.n_pages, self.page_size)
        found: Flags = by_page[..., 0].copy()
        for i in range(1, self.page_size):  # `any` over so short an axis is slower
            found |= by_page[..., i]
        return found

    def _recount(self, stream: int, seqs: Iterable[int] | None = None) -> None:
        changed = list(range(self.n_seq_max) if seqs is None else seqs)
        super()._recount(stream, changed)
        self._owners[changed] = self._by_page(self._members[0, changed])
        self._refs[:] = self._owners.sum(axis=0)
        self._forget_tails()

    def _evict_unseen(self, cells: Index) -> None:
        room, unknown = self._room.copy(), set(self._unknown)
        super()._evict_unseen(cells)
        self._room, self._unknown = room, unknown  # a page without visible cells is no last page

    def _forget_tails(self) -> None:
        """Have the tail of each sequence found anew: its last page may be shared by now, or have
        other cells."""
        self._room[:] = 0
        self._unknown.update(range(self.n_seq_max))

    def _learn_tail(self, seq: int) -> bool:
        """Find a sequence's tail if it is unknown. Returns whether its last page must be copied
        before the sequence writes."""
        if seq not in self._unknown:
            return False
        page = self.last_page(seq)
        if page is not None and self.is_copied(page, seq):
            return True
        if page is not None and self._refs[page] == 1:
            self._next[seq] = self.first_behind(page)
            self._room[seq] = (page + 1) * self.page_size - self._next[seq]
        self._unknown.discard(seq)
        return False

    def room_of(self, ubatch: UBatch) -> int:
        """Tokens that each sequence of a ubatch can append to its page."""
        return int(self._room[ubatch.run_seqs].min())

    def tail(self, seq: int) -> Index | None:
        """The cells that a sequence may use in its last page, None where that is not known."""
        if seq in self._unknown:
            return None
        first = self._next.item(seq)
        return np.arange(first, first + self._room.item(seq))

    def last_page(self, seq: int) -> int | None:
        """The page of a sequence's highest position."""
        rows = self.lists.rows_of(seq)
        return int(rows[-1]) // self.page_size if rows.size else None

    def first_behind(self, page: int) -> int:
        """The cell behind all cells of a page that hold a token."""
        cells = page * self.page_size + np.arange(self.page_size)
        return int(cells[self._positions[0, cells] != EMPTY][-1]) + 1

    def room_behind(self, page: int, seq: int) -> int:
        """Cells of a page behind those of a sequence."""
        mine = self._members[0, seq, page * self.page_size : (page + 1) * self.page_size]
        return self.page_size - 1 - int(np.flatnonzero(mine)[-1])

    def is_copied(self, page: int, seq: int) -> bool:
        """Whether a sequence gets a copy of its last page before it writes there."""
        return int(self._refs[page]) > 1 and self.room_behind(page, seq) > 0

    def owned_by(self, seq: int, page: int) -> Index:
        """The cells of a page that belong to a sequence."""
        first = page * self.page_size
        mine = self._members[0, seq, first : first + self.page_size]
        return first + np.flatnonzero(mine)

    def is_alike(self, seqs: Sequence[int], page: int) -> bool:
        """Whether some sequences have the same cells of a page, which is the last one of each."""
        own = [self.owned_by(seq, page) for seq in seqs if self.last_page(seq) == page]
        return len(own) == len(seqs) and all(np.array_equal(own[0], each) for each in own)

    def holes(self, seqs: Sequence[int], refs: Index) -> Index:
        """Empty cells in pages that belong to some sequences and no others."""
        pages = self._owners[list(seqs)].all(axis=0) & (refs == len(seqs))
        cells = self.cells_of(np.flatnonzero(pages))
        holes: Index = cells[self._positions[0, cells] == EMPTY]
        return holes

    def free_pages(self) -> Index:
        """Pages without a cell of any sequence, the lowest first."""
        return np.flatnonzero(self._refs == 0)

    def unseen_pages(self) -> Index:
        """Pages in use of which no later token sees a cell, the lowest positions first."""
        if self.window is None:
            return NO_CELLS
        first = firsts_kept(self._pos_max + 1, self.window)  # of each sequence
        in_pages = self._positions[0, : self.n_pages * self.page_size]
        last = in_pages.reshape(self.n_pages, self.page_size).max(axis=1)
        seen = (self._owners & (last >= first[:, None])).any(axis=0)
        shared = np.flatnonzero(seen & (self._refs > 1))
        if shared.size:  # `last` may be of another owner
            cells = self.cells_of(shared)
            kept = self._members[0][:, cells] & (self._positions[0, cells] >= first[:, None])
            seen[shared] = kept.any(axis=0).reshape(len(shared), self.page_size).any(axis=1)
        pages = np.flatnonzero((self._refs > 0) & ~seen)
        return pages[np.argsort(last[pages], kind="stable")]


def cells_of_window(window: int) -> int:
    """Cells of the pages of a sequence behind which nothing is kept.

    The first and the last page of what its next token sees may be used in part, and so may one more
    for new tokens.
    """
    return window + 3 * PAGE_SIZE


def page_size() -> int:
    """Cells of a page."""
    return PAGE_SIZE
