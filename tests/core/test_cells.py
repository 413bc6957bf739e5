"""Cells in small memories: shared ones, the newest one, rows in order, slots that are undone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ggmlpy.graph.types import F32
from ggmlpy.memory.batch import Batch, split
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.layouts import LAYOUTS, KVLayout
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.sizes import decide_sizes
from ggmlpy.memory.state import put_state, take_state
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.models.memory import AttentionLayers, KVSizes, Window
from tests.seen import seen_cells

IN_ALL = pytest.mark.parametrize("layout", LAYOUTS)


class Interrupt(BaseException):
    pass


def make(layout: KVLayout, window: int | None = None, n_seq_max: int = 2) -> SequenceMemory:
    """Room for 16 tokens of each sequence; a cell of a layer stores one number for K, one for V."""
    sizes = decide_sizes(16 * n_seq_max, n_seq_max, layout, n_ubatch=4)
    layers = AttentionLayers(
        dict.fromkeys((0, 1), KVSizes(1, 1, 1)), None if window is None else Window(window)
    )
    return SequenceMemory((layers,), sizes, F32, F32)


def ubatches(memory: SequenceMemory, batch: Batch) -> list[UBatch]:
    runs = split(batch, memory.sizes.n_ubatch)
    return [UBatch.of(each, memory.n_stream == 1) for each in runs]


def batch_of(memory: SequenceMemory, *runs: tuple[int, int]) -> Batch:
    """The next tokens, so many of each sequence."""
    batch = Batch()
    for seq, n in runs:
        batch.add_sequence(seq, [0] * n, memory.next_positions()[seq])
    return batch


def take_in(memory: SequenceMemory, *runs: tuple[int, int]) -> None:
    """As a context does, with what tells a token from others for K and V: its cell and layer."""
    batch = batch_of(memory, *runs)
    with memory.transaction(batch) as change:
        for ubatch in ubatches(memory, batch):
            slot_info = memory.apply(batch, ubatch, change)
            for cache, cells in zip(memory.caches, slot_info.cells, strict=True):
                for seq, cell in zip(ubatch.seqs.tolist(), cells.tolist(), strict=True):
                    write(cache, cache.cells.stream_of(seq), cell)


def write(cache: KVCache, stream: int, cell: int) -> None:
    store = cache.store
    for i in store.k:
        for leaf, value in ((store.k[i], 100 * i + cell), (store.v[i], 100 * i + cell + 0.5)):
            row = np.array([[value]], np.float32).view(np.uint8)
            store.write_rows(leaf, stream, np.array([cell]), row)


def stored(cache: KVCache, seq: int, layer: int) -> dict[int, tuple[float, float]]:
    """K and V of a sequence by position."""
    found, store, stream = {}, cache.store, cache.cells.stream_of(seq)
    for cell in cache.cells.of(seq):
        rows = (store.read_rows(x[layer], stream, np.array([cell])) for x in (store.k, store.v))
        k, v = (float(row.view(np.float32)[0, 0]) for row in rows)
        found[int(cache.cells.positions_of(seq, cell))] = k, v
    return found


def everything(memory: SequenceMemory) -> list[Any]:
    """What cells hold, and what is kept beside them."""
    seqs = range(memory.sizes.n_seq_max)
    return [
        (
            [dict(sorted(stored(cache, s, 0).items())) for s in seqs],
            [cache.cells.of(s).tolist() for s in seqs],
            [cache.cells.n_used(cache.cells.stream_of(s)) for s in seqs],
            [seen_cells(cache.cells, s, cache.cells.pos_max(s) + 1)[0].tolist() for s in seqs],
            [cache.cells.find_slot(1, s).tolist() for s in seqs],
            [str(cache.cells.evicted(s)) for s in seqs],
            cache.cells.next_positions(),
        )
        for cache in memory.caches
    ]


@IN_ALL
def test_rows_of_a_state_are_in_the_order_of_positions(layout: KVLayout) -> None:
    memory = make(layout)
    take_in(memory, (0, 8))
    memory.seq_rm(0, 2)
    take_in(memory, (1, 3), (0, 6))
    memory.seq_rm(1)
    memory.seq_rm(0, 6)
    take_in(memory, (0, 4))  # into the holes before other cells, where there is one stream
    (cache,) = memory.caches
    positions = cache.cells.positions_of(0, cache.cells.of(0)).tolist()
    assert (positions == sorted(positions)) == (layout != "unified")
    state = take_state(memory, 0)
    for i, rows in state.layers.items():
        assert rows.positions.tolist() == list(range(10))
        want = stored(cache, 0, i)
        assert rows.k.view(np.float32)[:, 0].tolist() == [want[p][0] for p in range(10)]
        assert rows.v.view(np.float32)[:, 0].tolist() == [want[p][1] for p in range(10)]
    other = make("unified" if layout == "split" else "split")
    take_in(other, (0, 5), (1, 5))
    put_state(other, 1, state)
    for i in state.layers:
        assert stored(other.caches[0], 1, i) == stored(cache, 0, i)


@pytest.mark.parametrize("start", [0, 2])
def test_a_shared_cell_stays_until_the_last_sequence_leaves_it(start: int) -> None:
    memory = make("unified", n_seq_max=3)
    (cache,) = memory.caches
    take_in(memory, (0, 5))
    memory.seq_cp(0, 1)
    memory.seq_cp(0, 2, 0, 3)
    before, cells = stored(cache, 0, 1), cache.cells.of(0)
    memory.seq_rm(0, start)
    assert stored(cache, 1, 1) == before
    assert memory.n_used() == 5
    assert not set(cache.cells.find_slot(8).tolist()) & set(cells.tolist())
    memory.seq_rm(1)
    assert stored(cache, 2, 1) == {p: before[p] for p in range(3)}
    assert memory.n_used() == 3
    memory.seq_rm(2)
    memory.seq_rm(0)
    assert (memory.n_used(), cache.cells.find_slot(5).tolist()) == (0, cells.tolist())


@IN_ALL
@pytest.mark.parametrize("window", [None, 1, 3])
def test_a_token_sees_its_own_cell_and_none_that_is_newer(
    layout: KVLayout, window: int | None
) -> None:
    memory = make(layout, window)
    (cache,) = memory.caches
    # Many of two sequences, one of each, one alone: each way to write down where tokens are.
    for runs in (((0, 3), (1, 2)), ((0, 1), (1, 1)), ((1, 1),)):
        take_in(memory, *runs)
        for seq in (0, 1):
            last = cache.cells.pos_max(seq)
            for at in (last - 1, last):
                first = 0 if window is None else max(0, at - window + 1)
                cells, positions = seen_cells(cache.cells, seq, at)
                assert positions.tolist() == list(range(first, at + 1))
                assert np.array_equal(cache.cells.positions_of(seq, cells), positions)


@IN_ALL
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("n_placed", [0, 1, 2])
@pytest.mark.parametrize("holes", [False, True])
def test_slots_are_undone(layout: KVLayout, window: int | None, n_placed: int, holes: bool) -> None:
    """Those of a batch that ends early, and of a search whose ubatches build on each other."""
    memory = make(layout, window)
    take_in(memory, (0, 4))
    take_in(memory, (1, 2))
    if holes:
        memory.seq_rm(0, 0, 2)
    before = everything(memory)
    batch = batch_of(memory, (0, 3), (1, 4))
    with pytest.raises(Interrupt), memory.transaction(batch) as change:
        for ubatch in ubatches(memory, batch)[:n_placed]:
            memory.apply(batch, ubatch, change)
        raise Interrupt
    assert everything(memory) == before
    memory.check_slots(batch, ubatches(memory, batch))
    assert everything(memory) == before
    for _ in range(3):
        take_in(memory, (1, 3))  # into the cells that were given back
    assert memory.caches[0].cells.of(0).tolist() == before[0][1][0]


def test_a_search_for_slots_that_uses_cells_twice_changes_nothing() -> None:
    memory = make("split", window=3)
    take_in(memory, (0, 18))
    before = everything(memory)
    batch = batch_of(memory, (0, 22))  # its last ubatches take the cells of its first
    memory.check_slots(batch, ubatches(memory, batch))
    assert everything(memory) == before
