"""The state of a sequence, copied out of a memory: to preempt it, to save it, to load it elsewhere.

A state has one row a token for each layer, in the order of positions. So it can be loaded into a
memory of any layout, with any K/V types, any n_ctx that is large enough, on any backend.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import CacheFull, StateError
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.types import BF16, F16, F32, TensorType
from ggmlpy.memory.cache_types import CACHE_TYPES
from ggmlpy.memory.cell_table import Index
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.recurrent_state import States
from ggmlpy.memory.rotation import NO_ROTATION, Rotation, rotate_rows
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.spans import MAX_POSITION, NOTHING, Spans
from ggmlpy.memory.transaction import Transaction
from ggmlpy.memory.window import first_kept, missed

Rows = NDArray[np.uint8]  # [n_tokens, bytes of a row]

# What changed the model while K and V were computed: the digests of LoRA adapters and control
# vectors, each with its scale. K and V are of use only where the same does.
Changes = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class _Form:
    """What rows are stored in: a type, and the elements of the blocks that are rotated, or 0."""

    type: TensorType
    n_rotated: int

    def values(self, rows: Rows, n_rotated: int) -> NDArray[np.float32]:
        """The elements of rows, in blocks that are rotated as `n_rotated` says."""
        values = to_float(rows, self.type)
        if n_rotated == self.n_rotated:
            return values
        return rotate_rows(rotate_rows(values, self.n_rotated), n_rotated)

    def converted(self, rows: Rows, to: _Form) -> Rows:
        """Rows of this form in another one."""
        return rows if to == self else from_float(self.values(rows, to.n_rotated), to.type)


@dataclass(frozen=True, slots=True)
class LayerRows:
    """K and V of one layer at some positions, as they are stored. V has no bytes where it is a part
    of K, both have none in a model without attention."""

    positions: NDArray[np.int32]
    k_type: TensorType
    k: Rows
    v_type: TensorType
    v: Rows
    evicted: Spans = NOTHING  # positions of the sequence that are not kept, behind the window
    rotation: Rotation = NO_ROTATION

    @property
    def k_form(self) -> _Form:
        return _Form(self.k_type, self.rotation.k)

    @property
    def v_form(self) -> _Form:
        return _Form(self.v_type, self.rotation.v)


@dataclass(frozen=True, slots=True)
class SequenceState:
    """All that a memory holds of one sequence, except what no later token sees."""

    tokens: list[int]
    layers: dict[int, LayerRows]
    recurrent: States = field(default_factory=dict)
    changes: Changes = ()

    @property
    def n_bytes(self) -> int:
        """Bytes of K, V and recurrent states."""
        kept = sum(rows.k.nbytes + rows.v.nbytes for rows in self.layers.values())
        return kept + sum(row.nbytes for row in self.recurrent.values())


def take_state(
    memory: SequenceMemory, seq: int, tokens: list[int] | None = None, changes: Changes = ()
) -> SequenceState:
    """A copy of what later tokens of a sequence see, with its `tokens`.

    Raises ArgumentError for a sequence that does not exist, Unsupported for a memory with sources.
    """
    memory.check_seq(seq)
    memory.check_saves()
    layers: dict[int, LayerRows] = {}
    for cache in memory.caches:
        cells, store, stream = cache.cells, cache.store, cache.cells.stream_of(seq)
        kept = _by_position(cache, seq)
        positions = cells.positions_of(seq, kept).copy()
        behind = cells.of(seq, stop=first_kept(cells.pos_max(seq) + 1, cells.window))
        evicted = cells.evicted(seq).plus(Spans.of(cells.positions_of(seq, behind)))
        for i in store.sizes:
            k, v = (
                store.read_rows(leaves[i], stream, kept)
                if i in leaves
                else np.empty((len(kept), 0), np.uint8)
                for leaves in (store.k, store.v)
            )
            layers[i] = LayerRows(
                positions, store.type_k, k, store.type_v, v, evicted, store.rotations[i]
            )
    recurrent = {} if memory.recurrent is None else memory.recurrent.read(seq)
    return SequenceState(list(tokens or []), layers, recurrent, changes)


def n_bytes_of(memory: SequenceMemory, seq: int) -> int:
    """Bytes of the state that `take_state` would copy."""
    n_bytes = 0 if memory.recurrent is None else memory.recurrent.n_bytes_seq
    for cache in memory.caches:
        leaves = (*cache.store.k.values(), *cache.store.v.values())
        n_bytes += len(_by_position(cache, seq)) * sum(leaf.nb[1] for leaf in leaves)
    return n_bytes


def put_state(memory: SequenceMemory, seq: int, state: SequenceState) -> None:
    """Replace what a sequence holds by a state.

    K and V are converted where the memory stores them in another type or rotation. Raises
    StateError for a state of another model, ArgumentError for a sequence that does not exist,
    CacheFull where there are too few cells; then nothing is changed. What the sequence held is
    removed before copying begins, because undoing that would take a second copy of it: an interrupt
    of the copying leaves the sequence empty. Positions of other sequences that no later token sees
    may be evicted then.
    """
    memory.check_seq(seq)
    check_fits(memory, state)
    for cache in memory.caches:
        n_needed = len(state.layers[cache.store.first_layer].positions)
        n_free = cache.cells.n_free_without(seq)
        if n_needed > n_free:
            raise CacheFull(
                f"a state of {n_needed} tokens does not fit: the KV cache has room for {n_free};"
                " remove other sequences, or use a larger n_ctx"
            )
    memory.seq_rm(seq)
    with memory.change_of([seq]) as change:
        for cache in memory.caches:
            _put_rows(cache, seq, state, change)
        _put_recurrent(memory, seq, state)


def put_rest(memory: SequenceMemory, seq: int, state: SequenceState) -> None:
    """Add what a state holds behind the tokens that a sequence holds, which are its first ones.

    The state must have all positions from 0 on, and no recurrent layers. Raises what `put_state`
    does; then nothing is changed, nor after an interrupt.
    """
    memory.check_seq(seq)
    check_fits(memory, state)
    n_held = memory.seq_pos_max(seq) + 1
    with memory.change_of([seq]) as change:
        for cache in memory.caches:
            positions = state.layers[cache.store.first_layer].positions
            _put_rows(cache, seq, state, change, np.flatnonzero(positions >= n_held))


def put_states(memory: SequenceMemory, states: dict[int, SequenceState]) -> None:
    """Replace all that a memory holds by the states of some sequences.

    In a shared stream, tokens that are the same in several sequences share cells, as they may have
    done where they were saved. Raises as `put_state` does; nothing is changed then. An interrupt
    of the copying leaves the memory empty.
    """
    for seq, state in states.items():
        memory.check_seq(seq)
        check_fits(memory, state)
    twins = [_find_twins(cache, states) for cache in memory.caches]
    for cache, found in zip(memory.caches, twins, strict=True):
        n_needed = [int(np.count_nonzero(seqs < 0)) for seqs, _ in found.values()]
        cells = cache.cells
        most = cells.n_taken(n_needed)
        if most > cells.n_ctx:
            raise CacheFull(
                f"the states take {most} cells of the KV cache, which has {cells.n_ctx}:"
                " use a larger n_ctx"
            )
    memory.clear()
    with memory.change_of(states) as change:
        for cache, found in zip(memory.caches, twins, strict=True):
            _put_all_rows(cache, states, found, change)
        for seq, state in states.items():
            _put_recurrent(memory, seq, state)


# For each sequence and row: the sequence before it that has the same (-1: none), and its row there.
_Twins = dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]


def _find_twins(cache: KVCache, states: dict[int, SequenceState]) -> _Twins:
    """Rows of one cache's layers that may share cells with rows of an earlier sequence."""
    found: _Twins = {}
    for seq, state in states.items():
        n_rows = len(state.layers[cache.store.first_layer].positions)
        seqs, rows = np.full(n_rows, -1), np.full(n_rows, -1)
        for other in found if cache.cells.n_stream == 1 else ():
            pairs = [(states[other].layers[i], state.layers[i]) for i in cache.store.sizes]
            theirs, own = _alike(pairs)
            seqs[own], rows[own] = other, theirs
        found[seq] = seqs, rows
    return found


def _alike(pairs: list[tuple[LayerRows, LayerRows]]) -> tuple[Index, Index]:
    """Rows of two sequences with equal positions, and equal K and V in every layer."""
    first, second = pairs[0]
    _, a, b = np.intersect1d(first.positions, second.positions, return_indices=True)
    for x, y in pairs:
        if (x.k_form, x.v_form) != (y.k_form, y.v_form):
            return a[:0], b[:0]
        same = (x.k[a] == y.k[b]).all(axis=1) & (x.v[a] == y.v[b]).all(axis=1)
        a, b = a[same], b[same]
    return a, b


def _put_all_rows(
    cache: KVCache, states: dict[int, SequenceState], twins: _Twins, change: Transaction
) -> None:
    """Put the rows of one cache's layers into cells of their own, or share those of their twins."""
    cells: dict[int, Index] = {}
    for seq, (twin_seqs, twin_rows) in twins.items():
        own = np.flatnonzero(twin_seqs < 0)
        cells[seq] = np.empty(len(twin_seqs), np.int64)
        cells[seq][own] = _put_rows(cache, seq, states[seq], change, own)
        for other in np.unique(twin_seqs[twin_seqs >= 0]).tolist():
            at = np.flatnonzero(twin_seqs == other)
            cells[seq][at] = cells[other][twin_rows[at]]
            cache.cells.share(seq, cells[seq][at])


def _put_rows(
    cache: KVCache,
    seq: int,
    state: SequenceState,
    change: Transaction,
    only: NDArray[np.int64] | None = None,
) -> Index:
    """Put rows of a sequence (all, or `only` some) into one cache. Returns the cells they got.

    Positions of other sequences whose cells are used again remain evicted if `change` is undone.
    """
    cells, store, stream = cache.cells, cache.store, cache.cells.stream_of(seq)
    first = state.layers[store.first_layer]
    cells.set_evicted(seq, cells.evicted(seq).plus(first.evicted))
    rows = np.arange(len(first.positions)) if only is None else only
    to = cells.claim(len(rows), seq)
    change.after_undo(cells.evict, stream, to)
    if len(rows):
        cells.occupy(to, first.positions[rows], (seq,))
        for i in store.sizes:
            kept, by = state.layers[i], store.rotations[i]
            if i in store.k:
                k_form = _Form(store.type_k, by.k)
                k = kept.k_form.converted(kept.k[rows], k_form)
                store.write_rows(store.k[i], stream, to, k)
            if i in store.v:
                v_form = _Form(store.type_v, by.v)
                v = kept.v_form.converted(kept.v[rows], v_form)
                store.write_rows(store.v[i], stream, to, v)
    return to


def _put_recurrent(memory: SequenceMemory, seq: int, state: SequenceState) -> None:
    if memory.recurrent is not None:
        memory.recurrent.write(seq, state.recurrent)


def _by_position(cache: KVCache, seq: int) -> Index:
    """The cells that must be held for the next token of a sequence, lowest positions first."""
    cells = cache.cells
    kept = cells.of(seq, first_kept(cells.pos_max(seq) + 1, cells.window))
    return kept[np.argsort(cells.positions_of(seq, kept), kind="stable")]


def check_fits(memory: SequenceMemory, state: SequenceState) -> None:
    """Raise StateError unless layers, positions and sizes are what this memory can hold."""
    memory.check_saves()
    here = {i: cache for cache in memory.caches for i in cache.store.sizes}
    if set(state.layers) != set(here):
        raise StateError(
            f"the state has K and V of {len(state.layers)} layers, the model of {len(here)}"
        )
    for i, cache in here.items():
        rows = state.layers[i]
        _check_positions(rows, state.layers[cache.store.first_layer], i)
        lost = missed(rows.positions, rows.evicted, cache.cells.window)
        if lost:
            raise StateError(
                f"the state's layer {i} lacks positions {lost}: the model's window is"
                f" {cache.cells.window}"
            )
        size = cache.store.sizes[i]
        for name, kept, form, n_wanted, n_head in (
            ("K", rows.k, rows.k_form, size.n_embd_k, size.n_embd_head_k),
            ("V", rows.v, rows.v_form, size.n_embd_v, size.n_embd_head_v),
        ):
            type, n_rotated = form.type, form.n_rotated
            if str(type) not in CACHE_TYPES:
                raise StateError(f"the state's {name} of layer {i} is {type}: no cache is")
            n_blocks, rest = divmod(kept.shape[1], type.type_size)
            n_embd = n_blocks * type.block_size
            if rest or n_embd != n_wanted:
                raise StateError(
                    f"the state's {name} of layer {i} has {kept.shape[1]} bytes of {type} a token"
                    f" ({n_embd} elements), the model's has {n_wanted} elements"
                )
            if n_rotated and (n_rotated & (n_rotated - 1) or n_head % n_rotated):
                raise StateError(
                    f"the state's {name} of layer {i} is rotated in blocks of {n_rotated}: must be"
                    f" a power of two that divides {n_head}, the size of a head"
                )
    ends = {
        int(rows.positions[-1]) if len(rows.positions) else -1 for rows in state.layers.values()
    }
    if len(ends) > 1:
        raise StateError(f"the state's layers end at different positions: {sorted(ends)}")
    leaves = {} if memory.recurrent is None else memory.recurrent.leaves
    saved = _by_layer({key: len(row) for key, row in state.recurrent.items()})
    sizes = _by_layer({key: leaf.ne[0] for key, leaf in leaves.items()})
    if saved != sizes:
        raise StateError(f"the state's recurrent layers are {saved}, the model's are {sizes}")


def _by_layer(sizes: dict[tuple[int, int], int]) -> dict[int, dict[int, int]]:
    """The size of each state tensor, by layer and number."""
    found: dict[int, dict[int, int]] = {}
    for (layer, i), size in sorted(sizes.items()):
        found.setdefault(layer, {})[i] = size
    return found


def check_converted(memory: SequenceMemory, state: SequenceState) -> None:
    """Raise StateError for values that overflow in the types of a memory that the state fits."""
    for cache in memory.caches:
        for i in cache.store.sizes:
            rows, by = state.layers[i], cache.store.rotations[i]
            k, v = _Form(cache.store.type_k, by.k), _Form(cache.store.type_v, by.v)
            _check_within(k, i, "K", rows.k, rows.k_form)
            _check_within(v, i, "V", rows.v, rows.v_form)


def check_finite(state: SequenceState) -> None:
    """Raise StateError for values that are not finite, which a file from elsewhere may hold.

    Attention without the fused op multiplies those of other sequences in a shared stream by 0,
    which gives NaN.
    """
    for i, rows in state.layers.items():
        if not _all_within(_LARGEST[F32], rows.k, rows.k_form):
            raise StateError(f"the state's K of layer {i} has values that are not finite")
        if not _all_within(_LARGEST[F32], rows.v, rows.v_form):
            raise StateError(f"the state's V of layer {i} has values that are not finite")
    for (i, _), row in state.recurrent.items():
        if not np.isfinite(row).all():
            raise StateError(f"the state's recurrent layer {i} has values that are not finite")


# The largest value of a type; quantised types have their scales in f16.
_LARGEST = {F32: 3.4028234e38, BF16: 3.38e38, F16: 65504.0}


def _check_within(form: _Form, layer: int, name: str, rows: Rows, own: _Form) -> None:
    largest = _LARGEST.get(form.type, _LARGEST[F16])
    if own != form and not _all_within(largest, rows, own, form.n_rotated):
        raise StateError(
            f"the state's {name} of layer {layer} has values too large for {form.type}"
        )


def _all_within(largest: float, rows: Rows, own: _Form, n_rotated: int | None = None) -> bool:
    """Whether all values are at most this large, rotated in another way if `n_rotated` says so."""
    if not rows.size:
        return True
    n = own.n_rotated if n_rotated is None else n_rotated
    with np.errstate(all="ignore"):
        blocks = (own.values(rows[at : at + 512], n) for at in range(0, len(rows), 512))
        return all(bool(np.abs(block).max() <= largest) for block in blocks)


def _check_positions(rows: LayerRows, others: LayerRows, layer: int) -> None:
    """Raise StateError unless positions are in order, the same in all layers of a cache."""
    positions = rows.positions.astype(np.int64)
    if len(positions) and (
        positions[0] < 0 or positions[-1] > MAX_POSITION or (np.diff(positions) < 0).any()
    ):
        raise StateError(
            f"the state's positions of layer {layer} are not in order from 0 to {MAX_POSITION}"
        )
    if not np.array_equal(positions, others.positions) or rows.evicted != others.evicted:
        raise StateError(f"the state's positions of layer {layer} are not those of its neighbours")
