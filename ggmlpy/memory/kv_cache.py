"""The KV cache: what layers keep of past tokens, and which cell holds which position of whom.

`n_stream` streams of `kv_size` cells. Unified, one stream holds the cells of all sequences; else
each sequence has a stream of its own. A token's K and V go to one cell by `set_rows`; the cell's
number is an input of the graph, so where a token lands never changes the graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import CacheFull
from ggmlpy.graph.buffer import HOST, BufferType, Bytes
from ggmlpy.graph.tensor import Flag, Tensor, stored_rows, zeros
from ggmlpy.graph.types import TensorType
from ggmlpy.memory.cache_types import check_cache_type
from ggmlpy.memory.cells import EMPTY, Appended, Cells, Positions, SavedRows, Snapshot
from ggmlpy.memory.spans import Spans
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.models.memory import AttentionLayers

KV_PAD = 256  # cells in view are a multiple of this, so that few different graphs are needed
BufferTypes = Mapping[int, BufferType]  # by layer; the host for those that are not named
_MINUS_INF = np.float16(-np.inf).view(np.uint16)


class KVCache:
    """K and V leaves, `[n_embd_gqa, kv_size, n_stream]` a layer, and their cells.

    `n_ctx` cells a stream may be used. With a window cells whose position no later token can see
    are used again when there is no empty one: those positions are evicted. Which they are is
    kept, so that nothing is done by which a token would come to miss one of them. Raises
    Unsupported for a type that rows cannot be written in.
    """

    def __init__(
        self,
        spec: AttentionLayers,
        n_ctx: int,
        type_k: TensorType,
        type_v: TensorType,
        n_seq_max: int = 1,
        unified: bool = True,
        buffer_types: BufferTypes = {},  # noqa: B006  (never written to)
    ) -> None:
        self.n_ctx = n_ctx
        self.kv_size = padded(n_ctx)
        self.n_seq_max = n_seq_max
        self.n_stream = 1 if unified else n_seq_max
        self.n_head_kv = spec.n_head_kv
        self.window = spec.window
        self.type_k, self.type_v = type_k, type_v
        # Attention step by step multiplies a masked cell's V by 0: it must be no NaN that a
        # sequence has left there. Flash attention does not read such cells.
        self.scrubs = False
        self.n_bytes = cache_bytes(spec, n_ctx, self.n_stream, type_k, type_v)
        n_embd_k = spec.n_embd_head_k * spec.n_head_kv
        n_embd_v = spec.n_embd_head_v * spec.n_head_kv
        types = {i: buffer_types.get(i, HOST) for i in spec.layers}
        self.k = {i: self._leaf(f"cache_k_l{i}", type_k, n_embd_k, at) for i, at in types.items()}
        self.v = {i: self._leaf(f"cache_v_l{i}", type_v, n_embd_v, at) for i, at in types.items()}
        self._positions = np.full((self.n_stream, self.kv_size), EMPTY, np.int32)
        # Which sequences of its stream a cell belongs to.
        members = (self.n_stream, n_seq_max // self.n_stream, self.kv_size)
        self._members = np.zeros(members, np.bool_)
        self._evicted = [Spans()] * n_seq_max
        # Kept beside the cells, so that a decode step need not scan them:
        self._end = np.zeros(self.n_stream, np.int64)  # one past the highest cell in use
        self._n_used = np.zeros(self.n_stream, np.int64)
        self._pos_max = np.full(n_seq_max, EMPTY, np.int64)
        self.n_changes = 0  # of what cells hold, but for those that `append` fills

    def _leaf(self, name: str, type: TensorType, n_embd: int, at: BufferType) -> Tensor:
        ne = (n_embd, self.kv_size, self.n_stream)
        return zeros(type, ne, name=name, flags=Flag.STATE, buffer_type=at)

    @property
    def _leafs(self) -> tuple[Tensor, ...]:
        return (*self.k.values(), *self.v.values())

    # --- what is where ---

    def stream_of(self, seq: int) -> int:
        """The stream that holds a sequence's cells."""
        return seq if self.n_stream > 1 else 0

    def _member(self, seq: int) -> int:
        return 0 if self.n_stream > 1 else seq

    def _view(self, seq: int) -> tuple[Positions, NDArray[np.bool_]]:
        """Positions and membership of the cells that may hold the sequence."""
        stream = self.stream_of(seq)
        end = self._end[stream]
        return self._positions[stream, :end], self._members[stream, self._member(seq), :end]

    def cells_of(self, seq: int, start: int = 0, stop: int | None = None) -> Cells:
        """The cells that hold positions `start` up to `stop` of a sequence, lowest first."""
        positions, mine = self._view(seq)
        wanted = mine & (positions >= start)
        if stop is not None:
            wanted &= positions < stop
        return np.flatnonzero(wanted)

    def positions_of(self, seq: int, cells: Cells) -> Positions:
        held: Positions = self._positions[self.stream_of(seq), cells]
        return held

    def held_besides(self, seq: int, start: int, stop: int | None) -> Positions:
        """The positions held of a sequence that are not `start` up to `stop`."""
        positions, mine = self._view(seq)
        within = positions >= start
        if stop is not None:
            within &= positions < stop
        rest: Positions = positions[mine & ~within]
        return rest

    def shared(self, seq: int, cells: Cells) -> NDArray[np.bool_]:
        """Which of the cells belong to other sequences too."""
        members = self._members[self.stream_of(seq)][:, cells]
        shared: NDArray[np.bool_] = members.sum(axis=0) > 1
        return shared

    def first_kept(self, position: int) -> int:
        """The lowest position that must be held when the next token's is `position`.

        What that token sees, and the position before it, by which a sequence's place is known.
        """
        if self.window is None:
            return 0
        return max(0, position + 1 - max(self.window, 2))

    def evicted(self, seq: int) -> Spans:
        """Positions of a sequence whose cells were used again."""
        return self._evicted[seq]

    def sees_all(self, seq: int, position: int) -> bool:
        """Whether nothing is evicted of what a token at `position` sees before it."""
        return not self._evicted[seq].between(self.first_kept(position), position)

    def missed(self, held: Positions, evicted: Spans) -> Spans:
        """Of positions evicted those that must be held, for a sequence that holds `held`."""
        if not evicted:
            return evicted
        position = max(int(held.max(initial=EMPTY)) + 1, evicted.end)
        return evicted.between(self.first_kept(position))

    def cells_by_sequence(self, stream: int = 0) -> list[bytes]:
        """For each sequence of a stream bytes that are equal for those that hold the same cells."""
        return [mine.tobytes() for mine in self._members[stream, :, : self._end[stream]]]

    def n_used(self, stream: int = 0) -> int:
        """Cells of the stream that hold a token."""
        return int(self._n_used[stream])

    def n_used_in_all(self) -> int:
        """The same of all streams."""
        return sum(self._n_used.tolist())  # for a few streams a third of numpy's time

    def next_positions(self) -> list[int]:
        """Where the next token of each sequence belongs."""
        following: list[int] = (self._pos_max + 1).tolist()
        return following

    def seq_pos_min(self, seq: int) -> int:
        """The lowest position held of a sequence, -1 if none is."""
        positions, mine = self._view(seq)
        held = positions[mine]
        return int(held.min()) if held.size else EMPTY

    def seq_pos_max(self, seq: int) -> int:
        """The highest position held of a sequence, -1 if none is."""
        return int(self._pos_max[seq])

    # --- placing tokens ---

    def find_slot(self, n_tokens: int, stream: int = 0) -> Cells:
        """Cells for `n_tokens`: the lowest empty ones, then those that no later token can see.

        Raises CacheFull; changes nothing.
        """
        end = int(self._end[stream])
        cells = np.arange(end, min(end + n_tokens, self.n_ctx))
        if self._n_used[stream] < end:
            holes = np.flatnonzero(self._positions[stream, :end] == EMPTY)
            cells = np.concatenate([holes, cells])[:n_tokens]
        if len(cells) < n_tokens and self.window is not None:
            cells = np.concatenate([cells, self._invisible(stream)[: n_tokens - len(cells)]])
        if len(cells) < n_tokens:
            raise CacheFull(
                f"{n_tokens} more tokens do not fit: {self.n_used(stream)} of {self.n_ctx} cells"
                f"{f' of stream {stream}' if self.n_stream > 1 else ''} are in use"
            )
        return cells

    def _visible(self, stream: int) -> NDArray[np.bool_]:
        """Which cells the next token of each of the stream's sequences sees, [sequences, cells]."""
        end = self._end[stream]
        members = self._members[stream, :, :end]
        if self.window is None:
            return members.copy()
        positions = self._positions[stream, :end]
        last = np.where(members, positions, EMPTY).max(axis=1, initial=EMPTY)
        first = last + 2 - max(self.window, 2)  # as in first_kept
        seen: NDArray[np.bool_] = members & (positions >= first[:, None])
        return seen

    def visible(self, stream: int) -> NDArray[np.bool_]:
        """Which cells must be held for what the stream's sequences go on with, [kv_size]."""
        kept = np.zeros(self.kv_size, np.bool_)
        kept[: self._end[stream]] = self._visible(stream).any(axis=0)
        return kept

    def _invisible(self, stream: int) -> Cells:
        """Cells that no later token of any sequence sees, the oldest positions first."""
        positions = self._positions[stream, : self._end[stream]]
        seen = self._visible(stream).any(axis=0)
        cells = np.flatnonzero((positions != EMPTY) & ~seen)
        return cells[np.argsort(positions[cells], kind="stable")]

    def room_without(self, seq: int) -> int:
        """For how many tokens there are cells in a sequence's stream once it has none itself."""
        seen = self._visible(self.stream_of(seq))
        seen[self._member(seq)] = False
        return self.n_ctx - int(np.count_nonzero(seen.any(axis=0)))

    def occupy(self, cells: Cells, positions: Positions, seqs: tuple[int, ...] = (0,)) -> None:
        """Say that `cells` hold the tokens at `positions` of the sequences, and nothing else."""
        self.n_changes += 1
        stream = self.stream_of(seqs[0])
        members = self._members[stream]
        n_held = 0 if self.window is None else self._note_evicted(stream, cells)
        self._n_used[stream] += len(cells) - n_held
        self._positions[stream, cells] = positions
        members[:, cells] = False
        for seq in seqs:
            members[self._member(seq), cells] = True
            self._pos_max[seq] = max(self._pos_max[seq], int(positions.max()))
        self._end[stream] = max(self._end[stream], int(cells.max()) + 1)

    def forget(self, stream: int, cells: Cells) -> None:
        """Empty some cells, as if they were used again."""
        self._note_evicted(stream, cells)
        self._positions[stream, cells] = EMPTY
        self._members[stream][:, cells] = False
        self._scrub(stream, cells)
        self._recount(stream)

    def _note_evicted(self, stream: int, cells: Cells) -> int:
        """What cells hold now will be evicted: how many of them hold anything."""
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

    def find_append(self, tokens: UBatch) -> Appended | None:
        """Where tokens go that are put behind all others of their streams; changes nothing.

        None where that is not possible (too few cells are left), not what `find_slot` would do (an
        empty cell lies before others), or for tokens of several sequences.
        """
        ends = self._end[tokens.streams]
        is_packed = (self._n_used[tokens.streams] == ends).all()
        if tokens.is_shared or not is_packed or (ends + tokens.n_new > self.n_ctx).any():
            return None
        streams, _ = self._where(tokens.seqs)
        return Appended(tokens.streams, ends, self._end[streams] + tokens.offsets)

    def append(self, at: Appended, tokens: UBatch, positions: Positions) -> None:
        """Say that the cells found by `find_append` hold the tokens."""
        if len(at.cells) == 1:
            self._append_one(at, int(tokens.seqs[0]), int(positions[0]))
            return
        streams, members = self._where(tokens.seqs)
        self._positions[streams, at.cells] = positions
        self._members[streams, members, at.cells] = True
        self._end[at.streams] = self._n_used[at.streams] = at.ends + tokens.n_new
        self._pos_max[tokens.run_seqs] = positions[tokens.run_ends]

    def _append_one(self, at: Appended, seq: int, position: int) -> None:
        """The same of one token, without indexing by arrays: 4 us less of a step."""
        cell, end, stream = int(at.cells[0]), int(at.ends[0]) + 1, int(at.streams[0])
        self._positions[stream, cell] = position
        self._members[stream, seq if self.n_stream == 1 else 0, cell] = True
        self._end[stream] = self._n_used[stream] = end
        self._pos_max[seq] = position

    def undo_append(self, appended: Appended) -> None:
        """Make cells empty again that `append` put tokens into, or was about to."""
        for stream, end in zip(appended.streams.tolist(), appended.ends.tolist(), strict=True):
            cells = np.arange(end, self._end[stream])
            self._positions[stream, end:] = EMPTY
            self._members[stream, :, end:] = False
            self._scrub(stream, cells)
            self._recount(stream)

    def rows_at(self, seqs: Cells, cells: Cells) -> Cells:
        """The rows of all streams' cells, one after another, that are these of the sequences."""
        return cells if self.n_stream == 1 else seqs * self.kv_size + cells

    def _where(self, seqs: Cells) -> tuple[Cells | int, Cells | int]:
        """Streams and members of sequences, as indices."""
        return (0, seqs) if self.n_stream == 1 else (seqs, 0)

    def highest_end(self) -> int:
        """One past the highest cell in use, of all streams."""
        return int(self._end.max())

    def n_kv(self, streams: Cells | tuple[int] = (0,)) -> int:
        """Cells in view: enough for the highest in use of these streams, padded."""
        highest = int(self._end[streams].max() if len(streams) > 1 else self._end[streams[0]])
        return min(self.kv_size, padded(max(1, highest)))

    def fill_mask(self, mask: NDArray[np.float16], positions: Positions, seqs: Cells) -> None:
        """Write mask `[n_seqs * n, n_kv]` for `n` tokens of each sequence at `positions`.

        0 for the cells that a token sees, else -inf.
        """
        n_seqs, n_kv = len(seqs), mask.shape[1]
        streams, members = self._where(seqs)
        held = self._positions[streams, :n_kv].reshape(-1, 1, n_kv)
        mine = self._members[streams, members, :n_kv].reshape(n_seqs, 1, n_kv)
        at = positions.reshape(n_seqs, -1, 1)
        hidden = (held > at) | ~mine
        if self.window is not None:
            hidden |= held <= at - self.window
        bits = mask.view(np.uint16).reshape(hidden.shape)
        np.multiply(hidden, _MINUS_INF, out=bits)

    # --- changing what cells belong to ---

    def snapshot(self, stream: int, cells: Cells | None = None) -> Snapshot:
        """What some of a stream's cells hold (all, unless told), to go back to."""
        if cells is None:
            cells = np.arange(self.kv_size)
        return Snapshot(
            stream,
            cells,
            self._positions[stream, cells],
            self._members[stream][:, cells],
            tuple(self._evicted),
        )

    def restore(self, before: Snapshot) -> None:
        """Make these cells hold what they held. What they store is not brought back."""
        self._positions[before.stream, before.cells] = before.positions
        self._members[before.stream][:, before.cells] = before.members
        self._evicted = list(before.evicted)
        self._scrub(before.stream, before.cells[before.positions == EMPTY])
        self._recount(before.stream)

    def save_rows(self, stream: int, cells: Cells) -> SavedRows:
        """What cells store, in every layer."""
        return SavedRows(stream, cells, [self.read_rows(x, stream, cells) for x in self._leafs])

    def restore_rows(self, saved: SavedRows) -> None:
        """Write back what `save_rows` gave."""
        for leaf, rows in zip(self._leafs, saved.rows, strict=True):
            self.write_rows(leaf, saved.stream, saved.cells, rows)

    def remove(self, seq: int, start: int = 0, stop: int | None = None) -> None:
        """Let a sequence have no positions `start` up to `stop`, held or evicted."""
        self._evicted[seq] = self._evicted[seq].without(start, stop)
        self.release(seq, self.cells_of(seq, start, stop))

    def set_evicted(self, seq: int, evicted: Spans) -> None:
        """Say which positions of a sequence are evicted."""
        self._evicted[seq] = evicted

    def _scrub(self, stream: int, cells: Cells) -> None:
        """Zeros where nothing is held any more, if `scrubs`."""
        if self.scrubs and len(cells):
            for leaf in self._leafs:
                buffer, rows = stored_rows(leaf)
                buffer.clear_rows(rows, self._index(stream, cells))

    def release(self, seq: int, cells: Cells) -> None:
        """Take cells from a sequence; those that then belong to none become empty."""
        stream = self.stream_of(seq)
        self._members[stream, self._member(seq), cells] = False
        free = cells[~self._members[stream][:, cells].any(axis=0)]
        self._positions[stream, free] = EMPTY
        self._scrub(stream, free)
        self._recount(stream)

    def share(self, seq: int, cells: Cells) -> None:
        """Make cells of the stream belong to a further sequence."""
        self._members[self.stream_of(seq), self._member(seq), cells] = True
        self._recount(self.stream_of(seq))

    def move(self, seq: int, cells: Cells, positions: Positions) -> None:
        """Give cells other positions (their K must be turned to fit)."""
        self._positions[self.stream_of(seq), cells] = positions
        self._recount(self.stream_of(seq))

    def copy_cells(self, from_stream: int, source: Cells, to_stream: int, target: Cells) -> None:
        """Copy K and V from cell to cell, in every layer."""
        at, to = self._index(from_stream, source), self._index(to_stream, target)
        for leaf in self._leafs:
            buffer, rows = stored_rows(leaf)
            buffer.copy_rows(rows, at, to)

    def read_rows(self, leaf: Tensor, stream: int, cells: Cells) -> Bytes:
        """What some cells of a layer store, [cells, bytes of a row]; `leaf` is its K or V."""
        buffer, rows = stored_rows(leaf)
        return buffer.read_rows(rows, self._index(stream, cells))

    def write_rows(self, leaf: Tensor, stream: int, cells: Cells, values: Bytes) -> None:
        """Let some cells of a layer store [cells, bytes of a row]."""
        buffer, rows = stored_rows(leaf)
        buffer.write_rows(rows, self._index(stream, cells), values)

    def _index(self, stream: int, cells: Cells) -> Cells:
        """The rows of a stream's cells among those of all streams."""
        return stream * self.kv_size + cells

    def clear(self) -> None:
        """Empty every cell."""
        for stream in range(self.n_stream):
            self._scrub(stream, np.flatnonzero(self._positions[stream] != EMPTY))
        self._positions.fill(EMPTY)
        self._members.fill(False)
        self._evicted = [Spans()] * self.n_seq_max
        for stream in range(self.n_stream):
            self._recount(stream)

    def _recount(self, stream: int) -> None:
        """Bring what is kept beside the cells up to date after a change."""
        self.n_changes += 1
        used = np.flatnonzero(self._positions[stream] != EMPTY)
        end = self._end[stream] = int(used[-1]) + 1 if used.size else 0
        self._n_used[stream] = int(used.size)
        held = np.where(self._members[stream, :, :end], self._positions[stream, :end], EMPTY)
        last = held.max(axis=1, initial=EMPTY)
        if self.n_stream > 1:
            self._pos_max[stream] = last[0]
        else:
            self._pos_max[:] = last


def cache_bytes(
    spec: AttentionLayers, n_ctx: int, n_stream: int, type_k: TensorType, type_v: TensorType
) -> int:
    """Bytes of K and V in all layers of a cache. Raises Unsupported for types it cannot have."""
    check_cache_type("type_k", type_k, spec.n_embd_head_k)
    check_cache_type("type_v", type_v, spec.n_embd_head_v)
    k_bytes = type_k.row_bytes(spec.n_embd_head_k * spec.n_head_kv)
    v_bytes = type_v.row_bytes(spec.n_embd_head_v * spec.n_head_kv)
    return len(spec.layers) * n_stream * padded(n_ctx) * (k_bytes + v_bytes)


def padded(n: int) -> int:
    """`n` cells, up to a multiple of KV_PAD."""
    return -(-n // KV_PAD) * KV_PAD
