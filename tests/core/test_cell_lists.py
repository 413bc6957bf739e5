"""What tokens see, as the lists of cells tell it, against a search of the table."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.types import F32
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.cell_table import Index
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.memory.lists import CellLists
from ggmlpy.memory.slots import SlotInfo
from ggmlpy.memory.spans import Positions
from ggmlpy.models.memory import Window
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.oracle.glass_model import Glass
from tests.seen import first_seen

N_SEQ = 3


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggmlpy.memory.cell_table.KV_PAD", 4)
    monkeypatch.setattr("ggmlpy.memory.pages.PAGE_SIZE", 4)
    monkeypatch.setattr("ggmlpy.memory.lists.CHUNK", 8)


def make(layout: str, window: int | Window) -> Context:
    return Context(
        Glass((None, window)), backends_for("reference"), n_ctx=240 * N_SEQ, n_ubatch=16,
        n_seq_max=N_SEQ, kv_layout=layout, type_k=F32, type_v=F32,
    )  # fmt: skip


def next_batch(context: Context, random: Random) -> Batch:
    """One or several tokens of each of some sequences; of two at once where they may share."""
    batch, n = Batch(), random.choice((1, 1, 1, 4))
    after = context.memory.next_positions()
    same: list[tuple[int, int]] = []
    if context.memory.n_stream == 1:
        held = context.memory.histories()
        same = [(a, b) for a, b in [(0, 1), (0, 2), (1, 2)] if held[a] == held[b]]
    if same and random.random() < 0.5:
        pair = random.choice(same)
        for i in range(n):
            batch.add(1, after[pair[0]] + i, pair)
        return batch
    for seq in random.sample(range(N_SEQ), random.randint(1, N_SEQ)):
        n = random.choice((1, 1, n))
        batch.add_sequence(seq, [1] * n, after[seq])
    return batch


def take_in(context: Context, batch: Batch, is_undone: bool) -> None:
    """As a context does before it runs a graph."""
    memory = context.memory
    (ubatch,) = context._ubatches_of(batch)
    change = memory.transaction(batch)
    try:
        slot_info = memory.apply(batch, ubatch, change)
        if not is_undone:
            for cache in memory.caches:
                check_seen(cache.cells, slot_info)
            return
    except BaseException:
        change.undo()
        raise
    change.undo()


def check_seen(cells: KVCells, slot_info: SlotInfo) -> None:
    """Each token's entries are the cells that the table holds for it, lowest position first."""
    ubatch, positions = slot_info.ubatch, slot_info.positions
    out = np.full((len(positions), 3), -9, np.int32)
    cells.lists.seen(ubatch, positions, out)
    lists = cells.lists.leaf.array().reshape(N_SEQ, -1)
    for run, at in ubatch.by_run():
        for (i_list, first, n), position in zip(out[at], positions[at].tolist(), strict=True):
            assert i_list == run.seqs[0]
            seen = lists[i_list, first : first + n] - cells.stream_of(i_list) * cells.kv_size
            start = first_seen(position, cells.window)
            assert sorted(seen) == cells.of(i_list, start, position + 1).tolist()
            held = cells.positions_of(i_list, seen)
            assert (held[1:] >= held[:-1]).all()
            for seq in run.seqs:  # all of them see the same, in these cells or in copies
                own = cells.of(seq, start, position + 1)
                assert sorted(cells.positions_of(seq, own)) == held.tolist()


def operate(context: Context, random: Random) -> None:
    """Remove, copy or move positions of a sequence."""
    seq, other = random.sample(range(N_SEQ), 2)
    last = context.memory.seq_pos_max(seq)
    match random.choice(("remove", "remove a part", "copy", "copy a part", "add", "divide")):
        case "remove":
            context.seq_rm(seq)
        case "remove a part":
            start = random.randint(0, max(last, 0))
            context.seq_rm(seq, start, random.choice((None, start + 2)))
        case "copy":
            context.seq_cp(seq, other)
        case "copy a part":
            context.seq_cp(seq, other, 0, max(1, last - 2))
        case "add":
            start = random.choice((0, max(0, last - 3)))
            context.seq_add(seq, start, None, random.choice((-3, 2, 5)))
        case "divide":
            context.seq_div(seq, 0, None, 2)


@pytest.mark.parametrize("window", [3, 6, 20, Window(1, "chunked"), Window(6, "chunked")], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_tokens_see_is_what_the_table_holds(
    layout: str, window: int | Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_full = 0  # times that a list had no room for a sequence's next tokens
    add = CellLists.add

    def watched(lists: CellLists, seq: int, rows: Index, positions: Positions, last: int) -> None:
        nonlocal n_full
        n_full += positions[0] > last and lists.n[seq] + len(rows) > lists._n_max
        add(lists, seq, rows, positions, last)

    monkeypatch.setattr(CellLists, "add", watched)
    n_batches = n_operations = 0
    for seed, rate in enumerate((0.15, 0.15, 0.0)):  # of operations, and of undone batches
        random, context = Random(seed), make(layout, window)
        for _ in range(150):
            is_batch, is_undone = random.random() > rate, random.random() < rate
            try:
                if is_batch:
                    take_in(context, next_batch(context, random), is_undone)
                else:
                    operate(context, random)
            except GgmlpyError:  # no room, or a window has evicted what would be seen
                continue
            n_batches += is_batch
            n_operations += not is_batch
    assert n_batches > 300
    assert n_operations > 10
    assert n_full > 0 or window == 20 or layout == "paged"  # whose caches are larger


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "split"])
@pytest.mark.parametrize("flash_attn", [True, False])
def test_tokens_of_several_sequences_see_their_window(layout: str, flash_attn: bool) -> None:
    """Two tokens whose first sequence is the same, one behind the other, have one list."""

    def context(n_seq_max: int) -> Context:
        return Context(
            Glass((None, 4)), backends_for("reference"), n_ctx=96, n_ubatch=16,
            n_seq_max=n_seq_max, kv_layout=layout, type_k=F32, type_v=F32, flash_attn=flash_attn,
        )  # fmt: skip

    alone, others = context(1), context(3)
    alone.decode(list(range(1, 11)))
    want = [alone.decode([token])[0].copy() for token in (20, 21)]
    batch = Batch()
    for i in range(10):
        batch.add(1 + i, i, (0, 1, 2), i == 9)
    others.decode_batch(batch)
    batch = Batch()
    batch.add(20, 10, (0, 1, 2), True)
    batch.add(21, 11, (0, 2), True)
    np.testing.assert_allclose(others.decode_batch(batch), np.stack(want), atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_position_has_the_same_place_in_its_chunk_in_every_list(layout: str) -> None:
    """However often the list was made anew: kernels add up by chunks of places."""
    context = make(layout, 6)
    cells = next(c.cells for c in context.memory.caches if c.cells.window is not None)
    made_anew = 0
    for position in range(0, 200, 2):
        batch = Batch()
        batch.add_sequence(1, [1, 1], position)
        (ubatch,) = context._ubatches_of(batch)
        slot_info = context.memory.apply(batch, ubatch, context.memory.transaction(batch))
        if position % 14 == 0:
            cells.lists.make_stale([1])
            made_anew += 1
        out = np.full((2, 3), -9, np.int32)
        cells.lists.seen(ubatch, slot_info.positions, out)
        assert (out[:, 1] % 8).tolist() == [max(0, position + i - 5) % 8 for i in range(2)]
    assert made_anew > 10
