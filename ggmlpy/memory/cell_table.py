"""What is known of the cells of a KV cache: the state of KVCells, and its queries.

There are `n_stream` streams of `kv_size` cells. Split, each sequence has a stream of its own; in
the other layouts one stream holds the cells of all sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import CacheFull
from ggmlpy.memory.spans import EMPTY, Positions, Spans
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.memory.window import Flags, first_kept, kept_cells
from ggmlpy.models.memory import Window

KV_PAD = 256  # the cells of a stream are a multiple of this, as llama.cpp's are

_N_LISTED = 4  # sequences that a message names

Index = NDArray[np.int64]  # numbers of cells in their stream, or of sequences

NO_CELLS: Index = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What some cells of a stream held, and what was evicted of every sequence."""

    stream: int
    cells: Index
    positions: Positions
    members: Flags
    evicted: tuple[Spans, ...]
    tokens: Index | None = None  # paged: a number for what each cell has


@dataclass(frozen=True, slots=True)
class Appended:
    """Empty cells, one for each of a ubatch's tokens, of which none has several sequences.

    They lie behind all others of their streams, or with `ends` = NO_CELLS anywhere in a stream that
    all sequences share; paged: in pages of the token's sequence, behind all others there.
    """

    streams: Index  # each once
    ends: Index  # of these streams before
    cells: Index


@dataclass(frozen=True, slots=True)
class PageCopy:
    """A page that is copied because some of its owners write: their cells, and those they get."""

    seqs: tuple[int, ...]
    source: Index
    target: Index


@dataclass(frozen=True, slots=True)
class Moves:
    """What is done before a ubatch's tokens get cells in new pages."""

    evicted: Index  # cells of pages that no later token sees, which are used again
    copies: list[PageCopy]

    def __bool__(self) -> bool:
        return bool(self.evicted.size or self.copies)

    @property
    def cells(self) -> Index:
        """Every cell that is changed."""
        parts = [part for copy in self.copies for part in (copy.source, copy.target)]
        return np.concatenate([self.evicted, *parts])

    def leaving(self, copy: PageCopy) -> list[int]:
        """The sequences that get a copy of the same page."""
        cells = set(copy.source.tolist())
        same = (other for other in self.copies if not cells.isdisjoint(other.source.tolist()))
        return [seq for other in same for seq in other.seqs]


@dataclass(frozen=True, slots=True)
class Found:
    """Cells for the tokens of a ubatch."""

    cells: Index
    appended: Appended | None = None  # where tokens can be appended
    moves: Moves | None = None


class CellTable:
    """Positions and sequences of cells, as KVCells changes them. Nothing here changes anything.

    `n_ctx` cells of a stream may be used. With a window, cells whose position no later token sees
    are used again when no cell is empty. The positions that they held are evicted; which these are
    is recorded, so that an operation that would make one visible again can be refused.
    """

    def __init__(self, n_ctx: int, n_seq_max: int, unified: bool, window: Window | None) -> None:
        self.n_ctx = n_ctx
        self.kv_size = padded(n_ctx)
        self.n_seq_max = n_seq_max
        self.n_stream = 1 if unified else n_seq_max
        self.window = window
        self._positions = np.full((self.n_stream, self.kv_size), EMPTY, np.int32)
        # Which sequences of its stream a cell belongs to.
        members = (self.n_stream, n_seq_max // self.n_stream, self.kv_size)
        self._members = np.zeros(members, np.bool_)
        self._evicted = [Spans()] * n_seq_max
        # These follow from the arrays above; kept so that a decode step need not scan them.
        self._end = np.zeros(self.n_stream, np.int64)  # one past the highest cell in use
        self._n_used = np.zeros(self.n_stream, np.int64)
        self._pos_max = np.full(n_seq_max, EMPTY, np.int64)

    # --- sequences and streams ---

    def stream_of(self, seq: int) -> int:
        """The stream that holds a sequence's cells."""
        return seq if self.n_stream > 1 else 0

    def seqs_of(self, stream: int) -> range:
        """The sequences whose cells a stream holds."""
        return range(stream, stream + 1) if self.n_stream > 1 else range(self.n_seq_max)

    def of(self, seq: int, start: int = 0, stop: int | None = None) -> Index:
        """The cells that hold positions `start` up to `stop` of a sequence, lowest first."""
        positions, mine = self._view(seq)
        return np.flatnonzero(mine & _within(positions, start, stop))

    def positions_of(self, seq: int, cells: Index) -> Positions:
        """The positions that some cells of the sequence hold."""
        held: Positions = self._positions[self.stream_of(seq), cells]
        return held

    def positions_besides(self, seq: int, start: int, stop: int | None) -> Positions:
        """The positions held of a sequence that are not `start` up to `stop`."""
        positions, mine = self._view(seq)
        rest: Positions = positions[mine & ~_within(positions, start, stop)]
        return rest

    def is_shared(self, seq: int, cells: Index) -> Flags:
        """Which of the cells belong to other sequences too."""
        members = self._members[self.stream_of(seq)][:, cells]
        shared: Flags = members.sum(axis=0) > 1
        return shared

    def is_held_besides(self, seqs: Sequence[int], cells: Index) -> Flags:
        """Which cells of a shared stream belong to other sequences than some."""
        members = self._members[0][:, cells]
        members[list(seqs)] = False
        held: Flags = members.any(axis=0)
        return held

    def evicted(self, seq: int) -> Spans:
        """Positions of a sequence whose cells were used again."""
        return self._evicted[seq]

    def sees_all(self, seq: int, position: int) -> bool:
        """Whether nothing is evicted of what a token at `position` sees before it."""
        first = first_kept(position, self.window)
        return not self._evicted[seq].between(first, position)

    def by_sequence(self, stream: int = 0) -> list[bytes]:
        """For each sequence of a stream, bytes that are equal for those that hold the same."""
        return [mine.tobytes() for mine in self._members[stream, :, : self._end[stream]]]

    def members(self, stream: int) -> Flags:
        """Which sequences hold which cells of a stream, [sequences, cells]: a copy that ends with
        the highest cell in use."""
        return self._members[stream, :, : self._end[stream]].copy()

    def n_used(self, stream: int = 0) -> int:
        """Cells of the stream that hold a token."""
        return int(self._n_used[stream])

    def n_used_in_all(self) -> int:
        """Cells of all streams that hold a token."""
        return sum(self._n_used.tolist())  # for a few streams a third of numpy's time

    def highest_end(self) -> int:
        """One past the highest cell in use, of all streams."""
        return int(self._end.max())

    def rows_at(self, seqs: Index, cells: Index) -> Index:
        """The numbers that cells of the sequences have among those of all streams."""
        return cells if self.n_stream == 1 else seqs * self.kv_size + cells

    def next_positions(self) -> list[int]:
        """The position of the next token of each sequence."""
        following: list[int] = (self._pos_max + 1).tolist()
        return following

    def pos_min(self, seq: int) -> int:
        """The lowest position held of a sequence, -1 if none is."""
        positions, mine = self._view(seq)
        held = positions[mine]
        return int(held.min()) if held.size else EMPTY

    def pos_max(self, seq: int) -> int:
        """The highest position held of a sequence, -1 if none is."""
        return int(self._pos_max[seq])

    def kept(self, stream: int) -> Flags:
        """Which cells must be held for the next tokens of the stream's sequences, [kv_size]."""
        kept = np.zeros(self.kv_size, np.bool_)
        kept[: self._end[stream]] = self._kept(stream).any(axis=0)
        return kept

    def n_free(self, seq: int) -> int:
        """Tokens that find empty cells in a sequence's stream."""
        return self.n_ctx - self.n_used(self.stream_of(seq))

    def n_free_without(self, seq: int) -> int:
        """Tokens that find cells in a sequence's stream once the sequence has none itself."""
        kept = self._kept(self.stream_of(seq))
        kept[self._member(seq)] = False
        return self.n_ctx - int(np.count_nonzero(kept.any(axis=0)))

    def n_taken(self, lengths: Sequence[int]) -> int:
        """Cells that sequences of these lengths take, if all were empty, in the fullest stream."""
        return sum(lengths) if self.n_stream == 1 else max(lengths, default=0)

    def has_room(self, lengths: Mapping[int, int], n_tokens: int, n_shared: int = 0) -> bool:
        """Whether there are cells for one more sequence of `n_tokens`, of which it shares
        `n_shared`, when sequences have grown to these `lengths` and all others are removed."""
        n_new = n_tokens - n_shared
        if self.n_stream > 1 or sum(lengths.values()) + n_new <= self.n_ctx:
            return True
        seqs = list(lengths)
        members = self._members[0, seqs, : self._end[0]]
        n_to_come = np.maximum(list(lengths.values()) - members.sum(axis=1), 0).sum()
        return bool(members.any(axis=0).sum() + n_to_come + n_new <= self.n_ctx)

    def n_freed_by(self, seq: int) -> int:
        """Cells that removing a sequence frees: those that belong to no other one."""
        members = self._members[self.stream_of(seq), :, : self._end[self.stream_of(seq)]]
        mine = members[:, members[self._member(seq)]]
        return int(np.count_nonzero(mine.sum(axis=0) == 1))

    def held_by(self, stream: int = 0) -> str:
        """Which sequences hold how many cells of a stream, those that hold the most first."""
        n_cells = self._members[stream, :, : self._end[stream]].sum(axis=1)
        return listed(dict(zip(self.seqs_of(stream), n_cells.tolist(), strict=True)))

    # --- cells for tokens ---

    def find(self, ubatch: UBatch) -> Found:
        """Cells for the tokens of a ubatch. Raises CacheFull; changes nothing.

        In a shared stream for all runs at once: which cells of a window are used again depends on
        where sequences are before the ubatch, so a token of another run still sees what it must.
        """
        appended = self.find_append(ubatch)
        if appended is not None:  # what most steps do
            return Found(appended.cells, appended)
        if self.n_stream == 1:
            cells = self.find_slot(len(ubatch.index))
            if ubatch.is_shared or self.window is not None:
                return Found(cells)
            return Found(cells, Appended(ubatch.streams, NO_CELLS, cells))
        runs = zip(ubatch.run_lengths.tolist(), ubatch.run_seqs.tolist(), strict=True)
        return Found(np.concatenate([self.find_slot(n, seq) for n, seq in runs]))

    def find_slot(self, n_tokens: int, seq: int = 0) -> Index:
        """Cells for `n_tokens` of a sequence: the lowest empty ones of its stream, then those that
        no later token sees.

        Raises CacheFull; changes nothing.
        """
        stream = self.stream_of(seq)
        end = int(self._end[stream])
        cells = np.arange(end, min(end + n_tokens, self.n_ctx))
        if self._n_used[stream] < end:
            holes = np.flatnonzero(self._positions[stream, :end] == EMPTY)
            cells = np.concatenate([holes, cells])[:n_tokens]
        if len(cells) < n_tokens and self.window is not None:
            cells = np.concatenate([cells, self._not_kept(stream)[: n_tokens - len(cells)]])
        if len(cells) < n_tokens:
            raise CacheFull(
                f"{n_tokens} more tokens do not fit: {self.n_used(stream)} of {self.n_ctx} cells"
                f"{f' of stream {stream}' if self.n_stream > 1 else ''} are in use,"
                f" {self.held_by(stream)}"
            )
        return cells

    def find_append(self, tokens: UBatch) -> Appended | None:
        """Cells for tokens behind all others of their streams; changes nothing.

        None where too few cells are left there, where `find_slot` would choose others (an empty
        cell lies before others), and for tokens of several sequences.
        """
        ends = self._end[tokens.streams]
        is_packed = (self._n_used[tokens.streams] == ends).all()
        if tokens.is_shared or not is_packed or (ends + tokens.n_new > self.n_ctx).any():
            return None
        streams, _ = self._where(tokens.seqs)
        return Appended(tokens.streams, ends, self._end[streams] + tokens.offsets)

    def snapshot(self, stream: int, cells: Index | None = None) -> Snapshot:
        """What some cells of a stream hold (all of them, unless told), as `restore` takes it."""
        if cells is None:
            cells = np.arange(self.kv_size)
            positions, members = self._positions[stream].copy(), self._members[stream].copy()
        else:
            positions, members = self._positions[stream, cells], self._members[stream][:, cells]
        return Snapshot(stream, cells, positions, members, tuple(self._evicted))

    # --- inside ---

    def _member(self, seq: int) -> int:
        """The number of a sequence in its stream."""
        return 0 if self.n_stream > 1 else seq

    def _where(self, seqs: Index) -> tuple[Index | int, Index | int]:
        """Streams of sequences and their numbers there, as indices."""
        return (0, seqs) if self.n_stream == 1 else (seqs, 0)

    def _view(self, seq: int) -> tuple[Positions, Flags]:
        """Positions and membership of the cells that may hold the sequence."""
        stream = self.stream_of(seq)
        end = self._end[stream]
        return self._positions[stream, :end], self._members[stream, self._member(seq), :end]

    def _in_order(self, seq: int) -> tuple[Index, Positions]:
        """The rows of a sequence's cells among those of all streams, and their positions, in the
        order of positions."""
        positions, mine = self._view(seq)
        cells = np.flatnonzero(mine)
        held = positions[cells]
        if held.size and (held[1:] < held[:-1]).any():
            order = np.argsort(held, kind="stable")
            cells, held = cells[order], held[order]
        return self.stream_of(seq) * self.kv_size + cells, held

    def _kept(self, stream: int) -> Flags:
        """Which cells must be held for the next token of each sequence, [sequences, cells]."""
        end = self._end[stream]
        return kept_cells(
            self._positions[stream, :end], self._members[stream, :, :end], self.window
        )

    def _not_kept(self, stream: int) -> Index:
        """Cells that no later token of any sequence sees, the lowest positions first."""
        positions = self._positions[stream, : self._end[stream]]
        cells = np.flatnonzero((positions != EMPTY) & ~self._kept(stream).any(axis=0))
        return cells[np.argsort(positions[cells], kind="stable")]


def listed(held: Mapping[int, int], what: str = "") -> str:
    """Sequences with the number that each holds, the largest first, those that hold any."""
    holding = sorted(((n, -seq) for seq, n in held.items() if n), reverse=True)
    first = [f"{n}{what} by sequence {-seq}" for n, seq in holding[:_N_LISTED]]
    n_more = len(holding) - len(first)
    return ", ".join([*first, *([f"others by {n_more} more"] if n_more else [])]) or "none held"


def padded(n: int) -> int:
    """`n` cells, up to a multiple of KV_PAD."""
    return -(-n // KV_PAD) * KV_PAD


def _within(positions: Positions, start: int, stop: int | None) -> Flags:
    within: Flags = positions >= start
    if stop is not None:
        within &= positions < stop
    return within
