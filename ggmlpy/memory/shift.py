"""Moving a sequence's tokens to other positions: its keys are turned by how far they moved.

Source of the idea: rotary embedding composes, so a key at position p turned by d is the key at
p + d (Su et al., 2021). Only the cells that move are touched, and their length is kept: with YaRN
the factor that RoPE puts on a key is already in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.base import Backend
from ggmlpy.errors import BadBatch, CacheFull, Unsupported
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import from_numpy
from ggmlpy.memory.cells import Cells, Positions
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.spans import MAX_POSITION, Spans
from ggmlpy.models import Model
from ggmlpy.sched.executable import Executable


@dataclass(frozen=True, slots=True)
class Move:
    """Cells of a sequence, the positions that they hold, and those that they shall hold."""

    cache: KVCache
    cells: Cells
    positions: Positions
    to: NDArray[np.int64]
    evicted_rest: Spans  # positions evicted that do not move
    evicted_moved: Spans  # where the others come to be

    @property
    def dropped(self) -> NDArray[np.bool_]:
        return self.to < 0

    @property
    def changed(self) -> NDArray[np.bool_]:
        changed: NDArray[np.bool_] = (self.to >= 0) & (self.to != self.positions)
        return changed


def move_positions(
    model: Model,
    memory: SequenceMemory,
    backends: Sequence[Backend],
    seq: int,
    start: int,
    stop: int | None,
    where: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    *,
    may_meet: bool = False,
) -> None:
    """Move a sequence's positions `start` up to `stop` to where(positions).

    What would be below 0 is evicted. Cells that other sequences have too are copied first, so
    those keep theirs. Raises Unsupported for a model with recurrent layers, or where the sequence
    would go on at a position that sees some which a window has evicted; BadBatch where a position
    is taken (unless they `may_meet`), CacheFull where copies find no room. Nothing is changed then,
    nor by what interrupts it.
    """
    memory.check_seq(seq)
    if memory.recurrent is not None:
        raise Unsupported("positions cannot move: the model has recurrent layers")
    moves = [_plan(cache, seq, start, stop, where) for cache in memory.caches]
    asked = f"positions of sequence {seq} from {start} on cannot move"
    for move in moves:
        _check(move, seq, may_meet)
        rest = move.cache.held_besides(seq, start, stop)
        held = np.concatenate([rest, move.to]).astype(np.int32)
        evicted = move.evicted_rest.plus(move.evicted_moved)
        memory.check_missed(move.cache, held, evicted, seq, asked)
    with memory.unchanged_on_failure(seq) as undo:
        for move in moves:
            cache = move.cache
            cells = _place(move, seq)
            if cells.size:
                stream = cache.stream_of(seq)
                undo.append(partial(cache.restore_rows, cache.save_rows(stream, cells)))
                rows = stream * cache.kv_size + cells
                _rope_keys(model, cache, backends, rows, (move.to - move.positions)[move.changed])


def _plan(
    cache: KVCache,
    seq: int,
    start: int,
    stop: int | None,
    where: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> Move:
    cells = cache.cells_of(seq, start, stop)
    positions = cache.positions_of(seq, cells)
    evicted = cache.evicted(seq)
    return Move(
        cache,
        cells,
        positions,
        where(positions.astype(np.int64)),
        evicted.without(start, stop),
        evicted.between(start, stop).moved(where),
    )


def _place(move: Move, seq: int) -> Cells:
    """Give the sequence its new positions; the cells whose keys must be turned to fit."""
    cache = move.cache
    cache.set_evicted(seq, move.evicted_rest.plus(move.evicted_moved))
    cache.release(seq, move.cells[move.dropped])
    cells = _own_cells(cache, seq, move.cells[move.changed])
    if cells.size:
        cache.move(seq, cells, move.to[move.changed].astype(np.int32))
    return cells


def _check(move: Move, seq: int, may_meet: bool) -> None:
    cache = move.cache
    others = np.setdiff1d(cache.cells_of(seq), move.cells)
    held = cache.positions_of(seq, others)
    taken = np.concatenate(
        [
            np.intersect1d(held, move.to),
            move.to[move.evicted_rest.contains(move.to)],
            held[move.evicted_moved.contains(held)],
        ]
    )
    both = move.evicted_rest.overlap(move.evicted_moved)
    if (taken.size or both) and not may_meet:
        first = taken.min() if taken.size else both
        raise BadBatch(f"position {first} of sequence {seq} is taken by a token that stays")
    if (move.to > MAX_POSITION).any():
        raise BadBatch(f"position {move.to.max()} of sequence {seq} is above {MAX_POSITION}")
    shared = cache.shared(seq, move.cells)
    n_shared = int((shared & move.changed).sum())
    n_given_up = int((~shared & move.dropped).sum())
    n_free = cache.n_ctx - cache.n_used(cache.stream_of(seq)) + n_given_up
    if n_shared > n_free:
        raise CacheFull(f"{n_shared} shared tokens must be copied, there is room for {n_free}")


def _own_cells(cache: KVCache, seq: int, cells: Cells) -> Cells:
    """The cells, with copies of the sequence's own in place of those that others have too."""
    shared = cache.shared(seq, cells)
    if not shared.any():
        return cells
    old = cells[shared]
    stream = cache.stream_of(seq)
    new = cache.find_slot(len(old), stream)
    positions = cache.positions_of(seq, old)
    cache.release(seq, old)
    cache.occupy(new, positions, (seq,))
    cache.copy_cells(stream, old, stream, new)
    own = cells.copy()
    own[shared] = new
    return own


def _rope_keys(
    model: Model,
    cache: KVCache,
    backends: Sequence[Backend],
    rows: Cells,
    deltas: NDArray[np.int64],
) -> None:
    """Turn the keys in some rows of every layer, in place."""
    n = len(rows)
    read_ids = from_numpy(rows.astype(np.int32))  # [n]
    write_ids = from_numpy(rows.astype(np.int64))  # [n]
    by = from_numpy(deltas.astype(np.int32))  # [n]
    writes = []
    for layer, leaf in cache.k.items():
        n_embd, kv_size, n_stream, _ = leaf.ne
        D = n_embd // cache.n_head_kv
        k = ops.reshape_2d(leaf, n_embd, kv_size * n_stream)  # [D*Hk, all cells]
        x = ops.reshape_3d(ops.get_rows(k, read_ids), D, n_embd // D, n)  # [D, Hk, n]
        x = model.rope_of(layer).shift(x, by)  # [D, Hk, n]
        writes.append(ops.set_rows(k, ops.reshape_2d(x, n_embd, n), write_ids))
    Executable(Graph(*writes), backends).run()
