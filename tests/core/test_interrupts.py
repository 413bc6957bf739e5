"""An interrupt at any line of an operation on sequences: it is done, or nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ggmlpy.graph.types import F32
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.cell_table import CellTable
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.memory.pages import PagedCells
from ggmlpy.memory.recurrent_state import RecurrentState
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.shift import Move
from ggmlpy.memory.slots import Slot
from ggmlpy.memory.state import SequenceState, put_state, put_states, take_state
from ggmlpy.memory.store import KVStore
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.inputs import StepInputs
from ggmlpy.runtime.plans import Plan
from ggmlpy.sched.compute import backends_for
from ggmlpy.sched.executable import Executable
from tests.interrupts import interrupted_at
from tests.oracle.glass_model import Glass
from tests.oracle.side import check_pages

OWNERS = (SequenceMemory, Move, CellTable, KVCells, PagedCells, KVStore, RecurrentState)

OPERATIONS: dict[str, Callable[[Context], None]] = {
    "copy": lambda context: context.seq_cp(0, 1),
    "copy a part": lambda context: context.seq_cp(0, 1, 4, 7),
    "shift": lambda context: context.seq_add(0, 0, None, 3),
    "shift below 0": lambda context: context.seq_add(0, 0, None, -2),
    "remove": lambda context: context.seq_rm(0),
    "remove a part": lambda context: context.seq_rm(0, 5),
    "remove from all": lambda context: context.seq_rm(-1, 6),
    "keep": lambda context: context.seq_keep(1),
    "clear": lambda context: context.clear(),
}
WHOLE = ("remove", "keep", "clear")  # tried with recurrent states too


def make(layout: str, recurrent: bool) -> Context:
    """Two sequences that share their first four tokens, where streams are shared, and differ."""
    context = Context(
        Glass((None, 6), recurrent), backends_for("reference"), n_ctx=40, n_ubatch=8, n_seq_max=2,
        kv_layout=layout, type_k=F32, type_v=F32,
    )  # fmt: skip
    context.decode([1, 2, 3, 4])
    context.seq_cp(0, 1)
    context.decode([5, 6, 7])
    context.decode([8, 9, 10, 11], seq=1)
    return context


def contents(memory: SequenceMemory) -> list[Any]:
    """Positions of each sequence with K and V of each, what is evicted, recurrent states.

    The lists of cells must agree with this: they are in the order of positions.
    """
    found: list[Any] = []
    for seq in range(memory.sizes.n_seq_max):
        for cache in memory.caches:
            cells, stream = cache.cells.of(seq), cache.cells.stream_of(seq)
            rows = np.concatenate(cache.store.save_rows(stream, cells).rows, axis=1)
            positions = cache.cells.positions_of(seq, cells).tolist()
            stored = {at: row.tobytes() for at, row in zip(positions, rows, strict=True)}
            found.append((stored, cache.cells.evicted(seq)))
            found.append((cache.cells.pos_max(seq), cache.cells.n_used(stream)))
            check_list(cache.cells, seq, dict(zip(positions, cells.tolist(), strict=True)))
        if memory.recurrent is not None:
            found += [state.tobytes() for state in memory.recurrent.read(seq).values()]
    return found


def check_list(cells: KVCells, seq: int, cell_at: dict[int, int]) -> None:
    """A sequence's list has its cells in the order of positions.

    With a window, cells that no later token sees may come before them: those used again, and of
    the others any.
    """
    rows, at = cells.lists.rows_of(seq).tolist(), cells.lists.positions_of(seq).tolist()
    stream = cells.stream_of(seq)
    want = [stream * cells.kv_size + cell_at[position] for position in sorted(cell_at)]
    assert at == sorted(set(at))
    assert rows[len(rows) - len(want) :] == want
    assert at[len(rows) - len(want) :] == sorted(cell_at)
    assert cells.window is not None or len(rows) == len(want)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("operation", "recurrent"),
    [
        *((each, False) for each in OPERATIONS if each not in WHOLE),
        *((each, True) for each in ("copy", *WHOLE)),
    ],
)
def test_it_is_done_or_nothing_is_changed(operation: str, recurrent: bool, layout: str) -> None:
    context = make(layout, recurrent=recurrent)
    before = contents(context.memory)
    done = make(layout, recurrent=recurrent)
    OPERATIONS[operation](done)
    after = contents(done.memory)
    assert after != before
    undone: list[bool] = []
    for n in range(1, 2000):
        try:
            with interrupted_at(n, OWNERS):
                OPERATIONS[operation](context)
        except KeyboardInterrupt:
            now = contents(context.memory)
            assert now in (before, after), n
            undone.append(now == before)
            if now == after:
                context = make(layout, recurrent=recurrent)
        else:
            break
    assert contents(context.memory) == after
    assert sum(undone) > 30
    assert all(undone[: sum(undone)]), "undone by a later line than one where it was complete"


@pytest.mark.parametrize(
    ("all_at_once", "layout"), [(False, "split"), (True, "unified"), (True, "paged")]
)
def test_a_state_is_put_or_the_sequence_is_empty_or_unchanged(
    all_at_once: bool, layout: str
) -> None:
    """No cell is lost: those of tokens that were not put hold nothing."""
    context = make(layout, recurrent=True)
    memory, state = context.memory, take_state(context.memory, 0)
    before = contents(memory)
    emptied = make(layout, recurrent=True)
    seqs = {0: state} if not all_at_once else {0: state, 1: take_state(memory, 1)}
    for seq in seqs:
        emptied.seq_rm(seq)
    empty = contents(emptied.memory)
    for n in range(1, 3000):
        try:
            with interrupted_at(n, (*OWNERS, SequenceState)):
                put_states(memory, seqs) if all_at_once else put_state(memory, 0, state)
        except KeyboardInterrupt:
            now = contents(memory)
            assert now in (before, empty), n
            if now == empty:
                put_states(memory, seqs) if all_at_once else put_state(memory, 0, state)
                before = contents(memory)
        else:
            break
    assert n > 100


@pytest.mark.parametrize("n_tokens", [3, 12], ids=["one ubatch", "two"])
def test_a_batch_whose_logits_are_not_returned_is_undone(n_tokens: int) -> None:
    """Also where the interrupt comes last of all, when everything is computed."""
    context = make("unified", recurrent=True)
    n_past = context.n_past()
    for n in range(1, 200):
        try:
            with interrupted_at(n, (Context,)):
                context.decode(range(n_tokens))
        except KeyboardInterrupt:
            assert context.n_past() == n_past, n
        else:
            break
    assert n > 20
    assert context.n_past() == n_past + n_tokens


@pytest.mark.parametrize("n_next", [2, 3, 4])
def test_a_batch_after_an_interrupted_one_runs_with_its_own_counts(n_next: int) -> None:
    def made() -> Context:
        context = Context(
            Glass((None,)), backends_for("reference"), n_ctx=40, n_ubatch=8, n_seq_max=1,
            type_k=F32, type_v=F32,
        )  # fmt: skip
        context.decode([1, 2, 3, 4])
        return context

    following = list(range(10, 10 + n_next))
    want, context = made().decode(following).tobytes(), made()
    for n in range(1, 300):
        try:
            with interrupted_at(n, (Executable, Plan, StepInputs)):
                context.decode([5, 6, 7])
        except KeyboardInterrupt:
            assert context.decode(following).tobytes() == want, n
            context.seq_rm(0, 4)
        else:
            break
    assert n > 40


def test_a_batch_that_copies_a_page_is_done_or_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second ubatch writes to a cell that the first one has left: its K and V come back."""
    monkeypatch.setattr("ggmlpy.memory.pages.PAGE_SIZE", 8)

    def made() -> Context:
        context = Context(
            Glass((None,)), backends_for("reference"), n_ctx=40, n_ubatch=4, n_seq_max=2,
            kv_layout="paged", type_k=F32, type_v=F32,
        )  # fmt: skip
        context.decode([1, 2, 3, 4])
        context.seq_cp(0, 1, 0, 3)
        return context

    def extend(context: Context) -> None:
        batch = Batch()
        batch.add_sequence(0, [5, 6, 7, 8], 4)
        batch.add_sequence(1, [9, 10, 11, 12, 13], 3)
        context.decode_batch(batch)

    owners = (Slot, PagedCells, KVCells, CellTable, KVStore)
    context, done = made(), made()
    before = contents(context.memory)
    extend(done)
    after = contents(done.memory)
    n_undone = 0
    for n in range(1, 3000):
        try:
            with interrupted_at(n, owners):
                extend(context)
        except KeyboardInterrupt:
            assert contents(context.memory) == before, n
            cells = context.memory.caches[0].cells
            assert isinstance(cells, PagedCells)
            check_pages(cells)
            n_undone += 1
        else:
            break
    assert contents(context.memory) == after
    assert n_undone > 100


@pytest.mark.parametrize("n_runs", range(1, 5))
def test_of_a_page_that_two_owners_copy_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, n_runs: int
) -> None:
    """The third, which has its beginning only, then writes where they were; the batch fails."""
    context = Context(
        Glass((None,)), backends_for("reference"), n_ctx=128, n_ubatch=2, n_seq_max=3,
        kv_layout="paged", type_k=F32, type_v=F32,
    )  # fmt: skip
    context.decode([1, 2, 3, 4, 5, 6])
    context.seq_cp(0, 1)
    context.seq_cp(0, 2, 0, 3)
    before = contents(context.memory)
    batch = Batch()
    for token, position, seq in [(7, 6, 0), (8, 6, 1), *((9 + i, 3 + i, 2) for i in range(5))]:
        batch.add(token, position, (seq,), True)
    run, n_left = Plan.run, n_runs

    def fail(self: Plan) -> Any:
        nonlocal n_left
        n_left -= 1
        if n_left == 0:
            raise KeyboardInterrupt
        return run(self)

    monkeypatch.setattr(Plan, "run", fail)
    with pytest.raises(KeyboardInterrupt):
        context.decode_batch(batch)
    assert contents(context.memory) == before
