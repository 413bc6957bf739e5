"""KV shift: moves a sequence's tokens to other positions and rotates their keys to fit.

Rotary embedding composes: a key at position p rotated by d positions is the key at p + d (Su et
al., 2021). Only the keys that move are touched. Their magnitude is kept: with YaRN the factor that
RoPE puts on a key is already in it. Keys that are stored in blocks times a matrix (see
`ggmlpy.memory.rotation`) are multiplied by it before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.base import Backend
from ggmlpy.errors import ArgumentError, CacheFull, Unsupported
from ggmlpy.graph.buffer import HOST, Place
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import type_of
from ggmlpy.memory.cell_table import Index
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.spans import MAX_POSITION, Positions, Spans
from ggmlpy.memory.store import KVStore
from ggmlpy.memory.transaction import Transaction
from ggmlpy.models import Model
from ggmlpy.models.blocks.rotation import rotated
from ggmlpy.sched.executable import ArenaPool, Executable

_NOWHERE = -1  # where positions go that are removed


@dataclass(frozen=True, slots=True)
class Move:
    """Cells of a sequence, the positions that they hold, and those that they will hold."""

    cache: KVCache
    cells: Index
    positions: Positions
    to: NDArray[np.int64]
    evicted_rest: Spans  # evicted positions that do not move
    evicted_moved: Spans  # where the other evicted positions move to

    @property
    def dropped(self) -> NDArray[np.bool_]:
        """Which cells would hold a position below 0: they are removed."""
        return self.to < 0

    @property
    def changed(self) -> NDArray[np.bool_]:
        """Which cells will hold another position."""
        changed: NDArray[np.bool_] = (self.to >= 0) & (self.to != self.positions)
        return changed


def move_positions(
    model: Model,
    memory: SequenceMemory,
    backends: Sequence[Backend],
    arenas: ArenaPool,
    seq: int,
    start: int,
    stop: int | None,
    where: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    *,
    may_meet: bool = False,
    n_dropped: int = 0,
) -> None:
    """Move a sequence's positions `start` up to `stop` to where(positions).

    The first `n_dropped` of them are removed instead. Keys are rotated in `arenas`. What would
    be below 0 is removed. Cells that belong to other sequences too are copied first, so those
    keep their positions. Raises Unsupported for a model with recurrent layers or whose stored
    keys cannot be moved, and where the next token would see positions that a window has
    evicted; ArgumentError where a position is taken (unless they `may_meet`), CacheFull where
    there are no cells for the copies. Then, and when it is interrupted, nothing is changed.
    """
    memory.check_seq(seq)
    check_movable(model, memory)
    moves = [_plan(cache, seq, start, stop, n_dropped, where) for cache in memory.caches]
    asked = f"positions of sequence {seq} from {start} on cannot move"
    for move in moves:
        _check(move, seq, may_meet)
        rest = move.cache.cells.positions_besides(seq, start, stop)
        held = np.concatenate([rest, move.to]).astype(np.int32)
        evicted = move.evicted_rest.plus(move.evicted_moved)
        memory.check_missed(move.cache, held, evicted, seq, asked)
    with memory.change_of([seq]) as change:
        for move in moves:
            cells = _apply(move, seq, change)
            if cells.size:
                stream = move.cache.cells.stream_of(seq)
                rows = stream * move.cache.cells.kv_size + cells
                deltas = (move.to - move.positions)[move.changed]
                n_ctx_seq = memory.sizes.n_ctx_seq
                _rope_keys(model, move.cache.store, backends, arenas, rows, deltas, n_ctx_seq)


def check_movable(model: Model, memory: SequenceMemory) -> None:
    """Raise Unsupported if no position of the model can move."""
    if memory.recurrent is not None:
        raise Unsupported("positions cannot move: the model has recurrent layers")
    if model.fixed_by:
        raise Unsupported(f"positions cannot move: {model.fixed_by}")


def _plan(
    cache: KVCache,
    seq: int,
    start: int,
    stop: int | None,
    n_dropped: int,
    where: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> Move:
    cells = cache.cells.of(seq, start, stop)
    positions = cache.cells.positions_of(seq, cells)
    evicted = cache.cells.evicted(seq)
    to = where(positions.astype(np.int64))
    first = start + n_dropped  # that moves
    return Move(
        cache,
        cells,
        positions,
        np.where(positions < first, _NOWHERE, to) if n_dropped else to,
        evicted.without(start, stop),
        evicted.between(first, stop).moved(where),
    )


def _apply(move: Move, seq: int, change: Transaction) -> Index:
    """Give the sequence its new positions. Returns the cells whose keys must be rotated to fit.

    K and V of cells that are rotated, cleared or given to copies are saved in `change`.
    """
    cells, store = move.cache.cells, move.cache.store
    touched = move.cells[move.dropped | move.changed]
    saved = store.save_rows(cells.stream_of(seq), touched)
    change.on_failure(store.restore_rows, saved)
    cells.set_evicted(seq, move.evicted_rest.plus(move.evicted_moved))
    cells.release(seq, move.cells[move.dropped])
    own = _own_cells(move.cache, seq, move.cells[move.changed])
    if own.size:
        cells.move(seq, own, move.to[move.changed].astype(np.int32))
    return own


def _check(move: Move, seq: int, may_meet: bool) -> None:
    cells = move.cache.cells
    others = np.setdiff1d(cells.of(seq), move.cells)
    held = cells.positions_of(seq, others)
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
        raise ArgumentError(f"position {first} of sequence {seq} is taken by a token that stays")
    if (move.to > MAX_POSITION).any():
        raise ArgumentError(f"position {move.to.max()} of sequence {seq} is above {MAX_POSITION}")
    shared = cells.is_shared(seq, move.cells)
    n_shared = int((shared & move.changed).sum())
    n_given_up = int((~shared & move.dropped).sum())
    n_free = cells.n_free(seq) + n_given_up
    if n_shared > n_free:
        raise CacheFull(f"{n_shared} shared tokens must be copied, there is room for {n_free}")


def _own_cells(cache: KVCache, seq: int, ids: Index) -> Index:
    """The cells, with copies of the sequence's own in place of those that others have too."""
    cells = cache.cells
    shared = cells.is_shared(seq, ids)
    if not shared.any():
        return ids
    old = ids[shared]
    stream = cells.stream_of(seq)
    new = cells.find_slot(len(old), seq)
    positions = cells.positions_of(seq, old)
    cells.release(seq, old)
    cells.occupy(new, positions, (seq,))
    cache.store.copy_rows(stream, old, stream, new)
    own = ids.copy()
    own[shared] = new
    return own


def _rope_keys(
    model: Model,
    store: KVStore,
    backends: Sequence[Backend],
    arenas: ArenaPool,
    rows: Index,
    deltas: NDArray[np.int64],
    n_ctx_seq: int,
) -> None:
    """Rotate the keys in some rows of every layer, in place."""
    n, moved = len(rows), deltas.astype(np.int32)
    if model.n_pos_per_embd == 4:
        moved = np.concatenate([moved, moved, moved, np.zeros_like(moved)])
    write_ids, read_ids, delta_ids = _together(rows, rows.astype(np.int32), moved)
    writes = []
    for layer, leaf in store.k.items():
        rope = model.rope_of(layer)
        if rope is None:  # no positions, or ALiBi: K does not depend on them
            continue
        n_embd, kv_size, n_stream, _ = leaf.ne
        Hk = store.sizes[layer].n_head_kv
        k = ops.reshape_2d(leaf, n_embd, kv_size * n_stream)  # [D*Hk, all cells]
        x = ops.reshape_3d(ops.get_rows(k, read_ids), n_embd // Hk, Hk, n)  # [D, Hk, n]
        by, _ = store.matrices.get(layer, (None, None))
        x = rotated(x, by, "k_plain")  # the matrix is its own inverse
        x = rope.shift(x, delta_ids, n_ctx_seq)  # [D, Hk, n]
        x = rotated(x, by, "k_rotated")
        writes.append(ops.set_rows(k, ops.reshape_2d(x, n_embd, n), write_ids))
    if writes:
        Executable(Graph(*writes), backends, arenas=arenas).run()


def _together(*arrays: NDArray[Any]) -> list[Tensor]:
    """Leaves with the values of arrays, in one buffer: one copy takes them to a device."""
    leaves = [Tensor(Spec(array.shape, type_of(array.dtype))) for array in arrays]
    sizes = [HOST.tensor_bytes(leaf.spec) for leaf in leaves]
    buffer, offset = HOST.allocate(sum(sizes)), 0
    for leaf, array, n_bytes in zip(leaves, arrays, sizes, strict=True):
        leaf.place = Place(buffer, offset)
        buffer.write(offset, array.view(np.uint8))
        offset += n_bytes
    return leaves
