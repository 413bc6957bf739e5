"""Moving a sequence's tokens to other positions: its keys are turned by how far they moved.

Source of the idea: rotary embedding composes, so a key at position p turned by d is the key at
p + d (Su et al., 2021). Only the cells that move are touched, and their length is kept: with YaRN
the factor that RoPE puts on a key is already in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ggmlpy import ops
from ggmlpy.backends.base import Backend
from ggmlpy.errors import BadBatch, CacheFull, Unsupported
from ggmlpy.executable import Executable
from ggmlpy.graph import Graph
from ggmlpy.kv_cache import Cells, KVCache, Positions
from ggmlpy.memory import SequenceMemory
from ggmlpy.models import Model
from ggmlpy.tensor import from_numpy


@dataclass(frozen=True, slots=True)
class Move:
    """Cells of a sequence that go to other positions."""

    cache: KVCache
    cells: Cells
    positions: Positions

    def select(self, which: np.ndarray) -> Move:
        return Move(self.cache, self.cells[which], self.positions[which])


def move_positions(
    model: Model,
    memory: SequenceMemory,
    backends: Sequence[Backend],
    seq: int,
    start: int,
    stop: int | None,
    where: Callable[[Positions], Positions],
    *,
    may_meet: bool = False,
) -> None:
    """Move a sequence's positions `start` up to `stop` to where(positions).

    What would be below 0 is forgotten. Cells that other sequences have too are copied first, so
    those keep theirs. Raises Unsupported for a model with recurrent layers, BadBatch where a
    position is taken (unless they `may_meet`), CacheFull where copies find no room; nothing is
    changed then.
    """
    if memory.recurrent is not None:
        raise Unsupported("positions cannot move: the model has recurrent layers")
    moves = []
    for cache in memory.caches:
        cells = cache.cells_of(seq, start, stop)
        moves.append(Move(cache, cells, where(cache.positions_of(seq, cells))))
    for move in moves:
        _check(move, seq, may_meet)
    for move in moves:
        cache = move.cache
        below = move.positions < 0
        cache.release(seq, move.cells[below])
        kept = _detached(move.select(~below), seq)
        deltas = kept.positions - cache.positions_of(seq, kept.cells)
        cache.move(seq, kept.cells, kept.positions)
        moved = deltas != 0
        if moved.any():
            rows = cache.stream_of(seq) * cache.kv_size + kept.cells[moved]
            _turn_keys(model, cache, backends, rows, deltas[moved])


def _check(move: Move, seq: int, may_meet: bool) -> None:
    cache = move.cache
    others = np.setdiff1d(cache.cells_of(seq), move.cells)
    taken = np.intersect1d(cache.positions_of(seq, others), move.positions)
    if taken.size and not may_meet:
        raise BadBatch(f"position {taken[0]} of sequence {seq} is taken by a token that stays")
    stays = move.positions >= 0
    n_shared = int(cache.shared(seq, move.cells[stays]).sum())
    n_free = cache.n_ctx - cache.n_used(cache.stream_of(seq))
    if n_shared > n_free:
        raise CacheFull(f"{n_shared} shared tokens must be copied, there is room for {n_free}")


def _detached(move: Move, seq: int) -> Move:
    """The move with cells of the sequence's own in place of those that others have too."""
    cache = move.cache
    shared = cache.shared(seq, move.cells)
    if not shared.any():
        return move
    old = move.cells[shared]
    stream = cache.stream_of(seq)
    new = cache.find_cells(len(old), stream)
    positions = cache.positions_of(seq, old).copy()
    cache.release(seq, old)
    cache.occupy(new, positions, (seq,))
    cache.copy_cells(stream, old, stream, new)
    cells = move.cells.copy()
    cells[shared] = new
    return Move(cache, cells, move.positions)


def _turn_keys(
    model: Model,
    cache: KVCache,
    backends: Sequence[Backend],
    rows: Cells,
    deltas: Positions,
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
        x = model.rotation_of(layer).turn(x, by)  # [D, Hk, n]
        writes.append(ops.set_rows(k, ops.reshape_2d(x, n_embd, n), write_ids))
    Executable(Graph(*writes), backends).run()
