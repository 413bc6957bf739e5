"""The memory of a sequence taken out of its caches: to set aside, to save, to load elsewhere.

A state is laid out by sequence and layer, a row a token in the order of positions. So it loads into
a unified or a split memory, with any K/V types, any n_ctx that has room, any backend.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import CacheFull, StateError
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import BF16, F16, F32, TensorType
from ggmlpy.memory.cache_types import CACHE_TYPES
from ggmlpy.memory.cells import Cells
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.spans import MAX_POSITION, NOTHING, Spans

Rows = NDArray[np.uint8]  # [n_tokens, bytes of a row]


@dataclass(frozen=True, slots=True)
class LayerRows:
    """K and V of one layer at some positions, as they are stored."""

    positions: NDArray[np.int32]
    k_type: TensorType
    k: Rows
    v_type: TensorType
    v: Rows
    evicted: Spans = NOTHING  # positions that the sequence had too, behind the window


@dataclass(frozen=True, slots=True)
class SequenceState:
    """Everything that a memory holds of one sequence, but for what is behind its windows."""

    tokens: list[int]
    layers: dict[int, LayerRows]
    recurrent: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        kept = sum(rows.k.nbytes + rows.v.nbytes for rows in self.layers.values())
        return kept + sum(row.nbytes for row in self.recurrent.values())


def take_state(memory: SequenceMemory, seq: int, tokens: list[int] | None = None) -> SequenceState:
    """A copy of what later tokens of a sequence see. `tokens` are kept with it.

    Raises ArgumentError for a sequence that does not exist.
    """
    memory.check_seq(seq)
    layers: dict[int, LayerRows] = {}
    for cache in memory.caches:
        cells = _by_position(cache, seq)
        stream = cache.stream_of(seq)
        positions = cache.positions_of(seq, cells).copy()
        behind = np.setdiff1d(cache.cells_of(seq), cells)
        evicted = cache.evicted(seq).plus(Spans.of(cache.positions_of(seq, behind)))
        for i in cache.k:
            k = cache.read_rows(cache.k[i], stream, cells)
            v = cache.read_rows(cache.v[i], stream, cells)
            layers[i] = LayerRows(positions, cache.type_k, k, cache.type_v, v, evicted)
    recurrent = {} if memory.recurrent is None else memory.recurrent.read(seq)
    return SequenceState(list(tokens or []), layers, recurrent)


def put_state(memory: SequenceMemory, seq: int, state: SequenceState) -> None:
    """Make a sequence hold what the state says, in place of what it held.

    K and V are converted where the memory stores them in another type. Raises StateError for a
    state of another model, ArgumentError for a sequence that does not exist, CacheFull where there
    is no room; then nothing is changed. What interrupts the copying leaves the sequence empty.
    """
    memory.check_seq(seq)
    check_fits(memory, state)
    for cache in memory.caches:
        n_needed = len(state.layers[next(iter(cache.k))].positions)
        n_free = cache.room_without(seq)
        if n_needed > n_free:
            raise CacheFull(
                f"a state of {n_needed} tokens does not fit: there is room for {n_free}"
            )
    memory.seq_rm(seq)
    try:
        for cache in memory.caches:
            _put_rows(cache, seq, state)
        _put_recurrent(memory, seq, state)
    except BaseException:
        memory.seq_rm(seq)
        raise


def put_states(memory: SequenceMemory, states: dict[int, SequenceState]) -> None:
    """Make the memory hold these sequences, and nothing else.

    What is alike in several of them shares cells in a shared stream, as it may have done where it
    was saved. Raises as `put_state` does; nothing is changed then.
    """
    for seq, state in states.items():
        memory.check_seq(seq)
        check_fits(memory, state)
    twins = [_find_twins(cache, states) for cache in memory.caches]
    for cache, found in zip(memory.caches, twins, strict=True):
        n_needed = [int(np.count_nonzero(seqs < 0)) for seqs, _ in found.values()]
        most = sum(n_needed) if cache.n_stream == 1 else max(n_needed, default=0)
        if most > cache.n_ctx:
            raise CacheFull(f"states of {most} tokens do not fit: there is room for {cache.n_ctx}")
    memory.clear()
    try:
        for cache, found in zip(memory.caches, twins, strict=True):
            _put_all_rows(cache, states, found)
        for seq, state in states.items():
            _put_recurrent(memory, seq, state)
    except BaseException:
        memory.clear()
        raise


# For each sequence and row: the sequence before it that has the same (-1: none), and its row there.
_Twins = dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]


def _find_twins(cache: KVCache, states: dict[int, SequenceState]) -> _Twins:
    """Rows of one cache's layers that may share a cell with those of a sequence before."""
    found: _Twins = {}
    for seq, state in states.items():
        n_rows = len(state.layers[next(iter(cache.k))].positions)
        seqs, rows = np.full(n_rows, -1), np.full(n_rows, -1)
        for other in found if cache.n_stream == 1 else ():
            theirs, own = _alike([(states[other].layers[i], state.layers[i]) for i in cache.k])
            seqs[own], rows[own] = other, theirs
        found[seq] = seqs, rows
    return found


def _alike(pairs: list[tuple[LayerRows, LayerRows]]) -> tuple[Cells, Cells]:
    """Rows that are at one position and the same in every layer, of either sequence."""
    first, second = pairs[0]
    _, a, b = np.intersect1d(first.positions, second.positions, return_indices=True)
    for x, y in pairs:
        if x.k_type is not y.k_type or x.v_type is not y.v_type:
            return a[:0], b[:0]
        same = (x.k[a] == y.k[b]).all(axis=1) & (x.v[a] == y.v[b]).all(axis=1)
        a, b = a[same], b[same]
    return a, b


def _put_all_rows(cache: KVCache, states: dict[int, SequenceState], twins: _Twins) -> None:
    """The rows of one cache's layers, into cells of their own or of their twins."""
    cells: dict[int, Cells] = {}
    for seq, (twin_seqs, twin_rows) in twins.items():
        own = np.flatnonzero(twin_seqs < 0)
        cells[seq] = np.empty(len(twin_seqs), np.int64)
        cells[seq][own] = _put_rows(cache, seq, states[seq], own)
        for other in np.unique(twin_seqs[twin_seqs >= 0]).tolist():
            at = np.flatnonzero(twin_seqs == other)
            cells[seq][at] = cells[other][twin_rows[at]]
            cache.share(seq, cells[seq][at])


def _put_rows(
    cache: KVCache, seq: int, state: SequenceState, only: NDArray[np.int64] | None = None
) -> Cells:
    """A sequence's rows (all, or some) of the layers of one cache; the cells that they got."""
    first = state.layers[next(iter(cache.k))]
    cache.set_evicted(seq, first.evicted)
    rows = np.arange(len(first.positions)) if only is None else only
    stream = cache.stream_of(seq)
    cells = cache.find_slot(len(rows), stream)
    if len(rows):
        cache.occupy(cells, first.positions[rows], (seq,))
        for i in cache.k:
            kept = state.layers[i]
            _write(cache, cache.k[i], stream, cells, kept.k[rows], kept.k_type)
            _write(cache, cache.v[i], stream, cells, kept.v[rows], kept.v_type)
    return cells


def _put_recurrent(memory: SequenceMemory, seq: int, state: SequenceState) -> None:
    if memory.recurrent is not None:
        memory.recurrent.write(seq, state.recurrent)


def _by_position(cache: KVCache, seq: int) -> Cells:
    """The cells that the sequence needs to go on."""
    cells = cache.cells_of(seq, cache.first_kept(cache.seq_pos_max(seq) + 1))
    return cells[np.argsort(cache.positions_of(seq, cells), kind="stable")]


def _write(
    cache: KVCache, leaf: Tensor, stream: int, cells: Cells, rows: Rows, type: TensorType
) -> None:
    if type is not leaf.type:
        rows = from_float(to_float(rows, type), leaf.type)
    cache.write_rows(leaf, stream, cells, rows)


def check_fits(memory: SequenceMemory, state: SequenceState) -> None:
    """Raise StateError unless layers, positions and sizes are what this memory can hold."""
    here = {i: cache for cache in memory.caches for i in cache.k}
    if set(state.layers) != set(here):
        raise StateError(
            f"the state has K and V of {len(state.layers)} layers, the model of {len(here)}"
        )
    for i, cache in here.items():
        rows = state.layers[i]
        _check_positions(rows, state.layers[next(iter(cache.k))], i)
        missed = cache.missed(rows.positions, rows.evicted)
        if missed:
            raise StateError(
                f"the state's layer {i} lacks positions {missed}: the model's window is"
                f" {cache.window}"
            )
        for name, kept, type, leaf in (
            ("K", rows.k, rows.k_type, cache.k[i]),
            ("V", rows.v, rows.v_type, cache.v[i]),
        ):
            if str(type) not in CACHE_TYPES:
                raise StateError(f"the state's {name} of layer {i} is {type}: no cache is")
            n_blocks, rest = divmod(kept.shape[1], type.type_size)
            n_embd = n_blocks * type.block_size
            if rest or n_embd != leaf.ne[0]:
                raise StateError(
                    f"the state's {name} of layer {i} has {kept.shape[1]} bytes of {type} a token"
                    f" ({n_embd} elements), the model's has {leaf.ne[0]} elements"
                )
    ends = {
        int(rows.positions[-1]) if len(rows.positions) else -1 for rows in state.layers.values()
    }
    if len(ends) > 1:
        raise StateError(f"the state's layers end at different positions: {sorted(ends)}")
    states = {} if memory.recurrent is None else memory.recurrent.states
    saved = {i: len(row) for i, row in state.recurrent.items()}
    wanted = {i: leaf.ne[0] for i, leaf in states.items()}
    if saved != wanted:
        raise StateError(f"the state's recurrent layers are {saved}, the model's are {wanted}")


def check_converted(memory: SequenceMemory, state: SequenceState) -> None:
    """Raise StateError for values that overflow in another type, that of a memory which it fits."""
    for cache in memory.caches:
        for i in cache.k:
            rows = state.layers[i]
            _check_within(cache.k[i].type, i, "K", rows.k, rows.k_type)
            _check_within(cache.v[i].type, i, "V", rows.v, rows.v_type)


def check_finite(state: SequenceState) -> None:
    """Raise StateError for values that are not finite, which a stranger's file may hold.

    Attention step by step multiplies those of other sequences in a shared stream by 0: NaN.
    """
    for i, rows in state.layers.items():
        if not _all_within(_LARGEST[F32], rows.k, rows.k_type):
            raise StateError(f"the state's K of layer {i} has values that are not finite")
        if not _all_within(_LARGEST[F32], rows.v, rows.v_type):
            raise StateError(f"the state's V of layer {i} has values that are not finite")
    for i, row in state.recurrent.items():
        if not np.isfinite(row).all():
            raise StateError(f"the state's recurrent layer {i} has values that are not finite")


# What rows can hold; those of quantised types have their scales in f16.
_LARGEST = {F32: 3.4028234e38, BF16: 3.38e38, F16: 65504.0}


def _check_within(type: TensorType, layer: int, name: str, rows: Rows, own: TensorType) -> None:
    if own is not type and not _all_within(_LARGEST.get(type, _LARGEST[F16]), rows, own):
        raise StateError(f"the state's {name} of layer {layer} has values too large for {type}")


def _all_within(largest: float, rows: Rows, type: TensorType) -> bool:
    with np.errstate(all="ignore"):
        blocks = (to_float(rows[at : at + 512], type) for at in range(0, len(rows), 512))
        return all(bool(np.abs(block).max() <= largest) for block in blocks)


def _check_positions(rows: LayerRows, others: LayerRows, layer: int) -> None:
    """Raise StateError unless they rise from 0 or above, as those of the layers beside it."""
    positions = rows.positions.astype(np.int64)
    if len(positions) and (
        positions[0] < 0 or positions[-1] > MAX_POSITION or (np.diff(positions) < 0).any()
    ):
        raise StateError(
            f"the state's positions of layer {layer} are not in order from 0 to {MAX_POSITION}"
        )
    if not np.array_equal(positions, others.positions) or rows.evicted != others.evicted:
        raise StateError(f"the state's positions of layer {layer} are not those of its neighbours")
