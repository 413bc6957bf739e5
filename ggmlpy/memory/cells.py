"""The cells of a KV cache: which one holds which position of which sequence."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ggmlpy.memory.cell_table import Appended, CellTable, Index, Moves, PageCopy, Snapshot
from ggmlpy.memory.lists import CellLists
from ggmlpy.memory.spans import EMPTY, Positions, Spans
from ggmlpy.memory.transaction import Transaction
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.memory.window import FULL, Flags, Sight


class KVCells(CellTable):
    """A table of cells, what changes it, and the lists of cells that attention takes, whose leaf
    is called `name`."""

    def __init__(
        self,
        n_ctx: int,
        n_seq_max: int = 1,
        unified: bool = True,
        sight: Sight = FULL,
        name: str = "attn_inp_cells",
    ) -> None:
        super().__init__(n_ctx, n_seq_max, unified, sight.window)
        self.needs_positions = sight.needs_positions
        self.buckets = sight.buckets
        self.n_changes = 0  # of what cells hold, except by `append`
        self.lists = CellLists(self.kv_size, n_seq_max, sight, self._in_order, name)

    # --- tokens ---

    def occupy(self, cells: Index, positions: Positions, seqs: tuple[int, ...] = (0,)) -> None:
        """Let `cells` hold the tokens at `positions` of the sequences, and nothing else."""
        self.n_changes += 1
        stream = self.stream_of(seqs[0])
        members = self._members[stream]
        n_held = 0 if self.window is None else self._note_evicted(stream, cells)
        self._n_used[stream] += len(cells) - n_held
        self._positions[stream, cells] = positions
        members[:, cells] = False
        for seq in seqs:
            members[self._member(seq), cells] = True
            self.lists.add(seq, stream * self.kv_size + cells, positions, self._pos_max.item(seq))
            self._pos_max[seq] = max(self._pos_max[seq], int(positions.max()))
        self._end[stream] = max(self._end[stream], int(cells.max()) + 1)

    def append(self, at: Appended, tokens: UBatch, positions: Positions) -> None:
        """Let the cells found hold the tokens."""
        if len(at.cells) == 1:
            self._append_one(at, tokens.seqs.item(), positions.item())
            return
        streams, members = self._where(tokens.seqs)
        self._positions[streams, at.cells] = positions
        self._members[streams, members, at.cells] = True
        if at.ends.size:
            self._end[at.streams] = self._n_used[at.streams] = at.ends + tokens.n_new
        else:
            self._end[0] = max(self._end.item(0), int(at.cells.max()) + 1)
            self._n_used[0] += len(at.cells)
        self._pos_max[tokens.run_seqs] = positions[tokens.run_ends]
        self.lists.append(tokens, self.rows_at(tokens.seqs, at.cells), positions)

    def _append_one(self, at: Appended, seq: int, position: int) -> None:
        """`append` of one token, without indexing by arrays: 4 us less of a step."""
        cell, stream = at.cells.item(), at.streams.item()
        self._positions[stream, cell] = position
        self._members[stream, seq if self.n_stream == 1 else 0, cell] = True
        self._end[stream] = max(self._end.item(stream), cell + 1)
        self._n_used[stream] += 1
        self._pos_max[seq] = position
        self.lists.append_one(seq, stream * self.kv_size + cell, position)

    def undo_append(self, appended: Appended) -> None:
        """Empty the cells that `append` put tokens into, or was about to."""
        if not appended.ends.size:
            self._positions[0, appended.cells] = EMPTY
            self._members[0][:, appended.cells] = False
            self.lists.make_stale(range(self.n_seq_max))
            self._recount(0)
            return
        for stream, end in zip(appended.streams.tolist(), appended.ends.tolist(), strict=True):
            self._positions[stream, end:] = EMPTY
            self._members[stream, :, end:] = False
            self.lists.make_stale(self.seqs_of(stream))
            self._recount(stream)

    def claim(self, n_tokens: int, seq: int) -> Index:
        """`find_slot`, for tokens that `occupy` brings next: cells that are used again may be
        emptied by now."""
        return self.find_slot(n_tokens, seq)

    def make_room(self, moves: Moves) -> None:
        """Empty cells and give copies of cells to sequences, before tokens get cells."""
        if moves.evicted.size:
            self._evict_unseen(moves.evicted)
        for copy in moves.copies:
            self._relocate(copy)

    def _evict_unseen(self, cells: Index) -> None:
        """`evict` cells of a shared stream that no later token sees: those may stay in lists."""
        holders = np.flatnonzero(self._members[0][:, cells].any(axis=1))
        self._note_evicted(0, cells)
        self._positions[0, cells] = EMPTY
        self._members[0][:, cells] = False
        self._recount(0, holders.tolist())

    def _relocate(self, copy: PageCopy) -> None:
        """Let some sequences hold the copies instead of what was copied. K and V are copied by the
        caller."""
        self._positions[0, copy.target] = self._positions[0, copy.source]
        for seq in copy.seqs:
            self._members[0, seq, copy.target] = True
            self._members[0, seq, copy.source] = False
        left = copy.source[~self._members[0][:, copy.source].any(axis=0)]
        self._positions[0, left] = EMPTY
        self.lists.make_stale(copy.seqs)
        self._recount(0, copy.seqs)

    # --- what cells belong to ---

    def restore(self, before: Snapshot) -> None:
        """Let these cells hold what they held. The K and V that they stored are not restored."""
        self._positions[before.stream, before.cells] = before.positions
        self._members[before.stream][:, before.cells] = before.members
        self._evicted = list(before.evicted)
        self.lists.make_stale(self.seqs_of(before.stream))
        self._recount(before.stream)

    def remove(
        self, seq: int, start: int = 0, stop: int | None = None, change: Transaction | None = None
    ) -> None:
        """Remove positions `start` up to `stop` of a sequence, held or evicted."""
        cells, evicted = self.of(seq, start, stop), self._evicted[seq]
        if change is not None:
            change.on_failure(self._give_back, seq, cells, self.positions_of(seq, cells), evicted)
        self._evicted[seq] = evicted.without(start, stop)
        self.release(seq, cells)

    def _give_back(self, seq: int, cells: Index, positions: Positions, evicted: Spans) -> None:
        """Undo `remove`."""
        stream = self.stream_of(seq)
        self._positions[stream, cells] = positions
        self._members[stream, self._member(seq), cells] = True
        self._evicted[seq] = evicted
        self.lists.make_stale((seq,))
        self._recount(stream, (seq,))

    def release(self, seq: int, cells: Index) -> None:
        """Take cells from a sequence; those that then belong to none become empty."""
        stream = self.stream_of(seq)
        self._members[stream, self._member(seq), cells] = False
        self.lists.make_stale((seq,))
        free: Index = cells[~self._members[stream][:, cells].any(axis=0)]
        self._positions[stream, free] = EMPTY
        self._recount(stream, (seq,))

    def evict(self, stream: int, cells: Index) -> None:
        """Empty some cells; the positions that they held are evicted."""
        self._note_evicted(stream, cells)
        self._positions[stream, cells] = EMPTY
        self._members[stream][:, cells] = False
        self.lists.make_stale(self.seqs_of(stream))
        self._recount(stream)

    def set_evicted(self, seq: int, evicted: Spans) -> None:
        """Replace the evicted positions of a sequence."""
        self._evicted[seq] = evicted

    def share(self, seq: int, cells: Index) -> None:
        """Let cells of its stream belong to a sequence, beside those they belong to."""
        self._members[self.stream_of(seq), self._member(seq), cells] = True
        self.lists.make_stale((seq,))
        self._recount(self.stream_of(seq), (seq,))

    def move(self, seq: int, cells: Index, positions: Positions) -> None:
        """Let cells hold other positions. The caller rotates their K."""
        self._positions[self.stream_of(seq), cells] = positions
        self.lists.make_stale((seq,))
        self._recount(self.stream_of(seq), (seq,))

    def clear(self, change: Transaction) -> None:
        """Empty every cell."""
        end = self.highest_end()
        positions, members = self._positions[:, :end].copy(), self._members[:, :, :end].copy()
        change.on_failure(self._fill, end, positions, members, self._evicted)
        self._fill(end, EMPTY, False, [Spans()] * self.n_seq_max)

    def _fill(
        self, end: int, positions: Positions | int, members: Flags | bool, evicted: list[Spans]
    ) -> None:
        """Let the cells before `end` of every stream hold this."""
        self._positions[:, :end] = positions
        self._members[:, :, :end] = members
        self._evicted = evicted
        self.lists.make_stale(range(self.n_seq_max))
        for stream in range(self.n_stream):
            self._recount(stream)

    def _note_evicted(self, stream: int, cells: Index) -> int:
        """Record what some cells hold as evicted. Returns how many of them hold anything."""
        positions = self._positions[stream, cells]
        n_held = int(np.count_nonzero(positions != EMPTY))
        if n_held == 0:
            return 0
        for member, mine in enumerate(self._members[stream][:, cells]):
            gone = positions[mine]
            if gone.size:
                seq = stream if self.n_stream > 1 else member
                self._evicted[seq] = self._evicted[seq].plus(Spans.of(gone))
        return n_held

    def _recount(self, stream: int, seqs: Iterable[int] | None = None) -> None:
        """Bring the counts up to date after a change of what some sequences hold; None: all."""
        self.n_changes += 1
        used = np.flatnonzero(self._positions[stream] != EMPTY)
        end = self._end[stream] = int(used[-1]) + 1 if used.size else 0
        self._n_used[stream] = int(used.size)
        held = self._positions[stream, :end]
        for seq in self.seqs_of(stream) if seqs is None else seqs:
            mine = self._members[stream, self._member(seq), :end]
            self._pos_max[seq] = held[mine].max(initial=EMPTY)
