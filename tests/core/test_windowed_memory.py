"""What a memory with windows evicts, what it refuses because of that, and what failures leave."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.errors import ArgumentError, CacheFull, StateError, Unsupported
from ggmlpy.graph.types import F32
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.memory.spans import Spans
from ggmlpy.memory.state import put_state, take_state
from ggmlpy.memory.state_file import from_bytes, to_bytes
from ggmlpy.memory.store import KVStore
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.plans import Plan
from ggmlpy.sched.compute import backends_for
from ggmlpy.sched.executable import Executable
from tests.oracle.glass_model import Glass

Windows = tuple[int | None, ...]


class Interrupt(BaseException):
    pass


@pytest.fixture(autouse=True)
def small_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggmlpy.memory.cell_table.KV_PAD", 4)
    monkeypatch.setattr("ggmlpy.memory.pages.PAGE_SIZE", 2)


def make(
    windows: Windows = (None, 4), n_tokens: int = 0, *, n_seq_max: int = 1, layout: str = "split"
) -> Context:
    """A context with rings of 8 cells a sequence that has taken in `n_tokens`."""
    context = Context(
        Glass(windows), backends_for("reference"), n_ctx=40 * n_seq_max, n_ubatch=4,
        n_seq_max=n_seq_max, kv_layout=layout, type_k=F32, type_v=F32,
    )  # fmt: skip
    if n_tokens:
        context.decode(range(n_tokens))
    return context


def fail_after(patch: pytest.MonkeyPatch, owner: type, name: str, n: int) -> None:
    """Let the n-th call of a method do its work and then be interrupted."""
    original, calls = getattr(owner, name), count(1)

    def interrupted(*args: Any) -> Any:
        result = original(*args)
        if next(calls) == n:
            raise Interrupt
        return result

    patch.setattr(owner, name, interrupted)


def held(context: Context, seq: int = 0) -> list[list[int]]:
    """The positions held of a sequence, by cache."""
    caches = context.memory.caches
    return [sorted(c.cells.positions_of(seq, c.cells.of(seq)).tolist()) for c in caches]


def next_logits(context: Context, seq: int = 0) -> NDArray[np.float32]:
    return context.decode([63], seq=seq).copy()


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n_run", [1, 2, 3, 4])
def test_a_batch_that_fails_leaves_all_that_a_later_token_sees(
    n_run: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make((None, 4), 10, n_seq_max=2, layout=layout)
    with monkeypatch.context() as patch:
        fail_after(patch, Plan, "run", n_run)
        with pytest.raises(Interrupt):  # 16 tokens go twice round the ring
            context.decode(range(20, 36))
    full, window = held(context)
    assert full == list(range(10))
    assert window[-3:] == [7, 8, 9]
    want = next_logits(make((None, 4), 10, n_seq_max=2, layout=layout))
    np.testing.assert_array_equal(next_logits(context), want)


def test_a_cell_whose_keys_are_overwritten_holds_nothing_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = make((4,), 8)
    assert held(context) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    with monkeypatch.context() as patch:
        fail_after(patch, Plan, "run", 1)
        with pytest.raises(Interrupt):
            context.decode([50, 51, 52])
    assert held(context) == [[3, 4, 5, 6, 7]]
    assert context.memory.caches[0].cells.evicted(0) == Spans((range(3),))
    assert context.memory.n_used() == 5


def test_a_batch_that_finds_no_slot_loses_nothing_at_all() -> None:
    context = make((None, 4), 38)
    before = held(context)
    for n_tokens in (3, 9):  # one ubatch, and several
        with pytest.raises(CacheFull):
            context.decode([50] * n_tokens)
        assert held(context) == before
        assert context.memory.caches[1].cells.evicted(0) == Spans((range(before[1][0]),))


def test_a_search_for_slots_leaves_nothing_behind() -> None:
    context = make((4,), 5)
    batch = Batch()
    batch.add_sequence(0, range(10), 5)
    context.memory.check_slots(batch, context._ubatches_of(batch))
    assert held(context) == [list(range(5))]
    context.decode(range(10))
    want = make((4,), 5)
    want.decode(range(10))
    np.testing.assert_array_equal(next_logits(context), next_logits(want))


@pytest.mark.parametrize(
    ("name", "n_calls"),
    [("append", 1), ("append", 2), ("occupy", 1), ("occupy", 2), ("occupy", 3), ("occupy", 4)],
)
def test_an_interrupt_while_cells_are_given_to_tokens_is_undone(
    name: str, n_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make((None, 4), 9)
    with monkeypatch.context() as patch:
        fail_after(patch, KVCells, name, n_calls)
        with pytest.raises(Interrupt):
            context.decode(range(20, 27))
    assert context.n_past() == 9
    np.testing.assert_array_equal(next_logits(context), next_logits(make((None, 4), 9)))


@pytest.mark.parametrize("n_calls", [1, 2])
def test_an_interrupted_copy_leaves_the_target_as_it_was(
    n_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, other = (make((None, 4), 9, n_seq_max=2) for _ in range(2))
    for each in (context, other):
        each.decode(range(30, 36), seq=1)
    with monkeypatch.context() as patch:
        fail_after(patch, KVStore, "copy_rows", n_calls)
        with pytest.raises(Interrupt):
            context.memory.seq_cp(0, 1)
    assert held(context, 1)[0] == list(range(6))
    for seq in range(2):
        np.testing.assert_array_equal(next_logits(context, seq), next_logits(other, seq))


@pytest.mark.parametrize("n_calls", [1, 2])
def test_an_interrupted_shift_rotates_no_keys(
    n_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make((None, 4), 9)
    with monkeypatch.context() as patch:
        fail_after(patch, Executable, "run", n_calls)
        with pytest.raises(Interrupt):
            context.seq_add(0, 0, None, 5)
    assert context.n_past() == 9
    np.testing.assert_array_equal(next_logits(context), next_logits(make((None, 4), 9)))


def test_an_interrupted_load_leaves_the_sequence_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    context = make((None, 4), 9)
    state = take_state(context.memory, 0)
    with monkeypatch.context() as patch:
        fail_after(patch, KVCells, "occupy", 2)
        with pytest.raises(Interrupt):
            put_state(context.memory, 0, state)
    assert held(context) == [[], []]
    put_state(context.memory, 0, state)
    np.testing.assert_array_equal(next_logits(context), next_logits(make((None, 4), 9)))


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [(4,), (None, 4), (4, None)])
def test_a_cut_below_what_the_window_holds_is_refused(windows: Windows) -> None:
    context = make(windows, 14)
    before = held(context)
    ring = before[windows.index(4)]
    assert ring == list(range(6, 14))
    for start in range(1, 9):
        with pytest.raises(Unsupported, match="would see"):
            context.memory.seq_rm(0, start)
        assert held(context) == before
    context.memory.seq_rm(0, 9)  # 9 sees 6 to 8, which are held
    assert context.n_past() == 9
    np.testing.assert_array_equal(next_logits(context), next_logits(make(windows, 9)))


def test_the_refusal_says_what_is_held_and_what_to_do() -> None:
    context = make((None, 4), 14)
    message = (
        "positions 7 to the end of sequence 0 cannot be removed: the next token, at 7, would see"
        " 4 to 5, which layers with a window of 4 have evicted; of sequence 0 they still hold 6"
        " to 13. Remove the sequence as a whole and decode its tokens again"
    )
    with pytest.raises(Unsupported) as caught:
        context.memory.seq_rm(0, 7)
    assert str(caught.value) == message


def test_every_sequence_or_none_is_cut() -> None:
    context = make((4,), 14, n_seq_max=2)
    context.decode(range(5), seq=1)
    with pytest.raises(Unsupported, match="of sequence 0 cannot"):
        context.memory.seq_rm(-1, 3)
    assert held(context, 1) == [list(range(5))]
    context.memory.seq_rm(-1)
    assert held(context, 0) == held(context, 1) == [[]]
    context.decode(range(3))  # nothing is remembered of what was evicted
    context.memory.seq_rm(0, 1)
    assert context.n_past() == 1


def test_what_a_user_removed_is_not_missed() -> None:
    context = make((4,), 7)
    context.memory.seq_rm(0, 3, 5)
    context.memory.seq_rm(0, 6)  # 6 sees 3 and 4, but those are gone by wish
    assert held(context) == [[0, 1, 2, 5]]
    context = make((None, 4), 14)
    context.memory.seq_rm(0, 0, 8)  # of these the window had evicted some
    context.memory.seq_rm(0, 9)
    assert held(context) == [[8], [8]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_that_cannot_go_on_is_not_copied(layout: str) -> None:
    context = make((None, 4), 34, n_seq_max=2, layout=layout)
    context.decode([40, 41], seq=1)
    n_lost = held(context)[1][0]
    before = held(context, 1)
    for stop in range(1, n_lost + 3):
        with pytest.raises(Unsupported, match=f"positions 0 to {stop - 1} of sequence 0 cannot be"):
            context.memory.seq_cp(0, 1, 0, stop)
        assert held(context, 1) == before
    context.memory.seq_cp(0, 1, 0, n_lost + 3)
    want = next_logits(make((None, 4), n_lost + 3))
    np.testing.assert_allclose(next_logits(context, 1), want, rtol=0, atol=1e-6)


def test_positions_move_only_where_the_window_goes_with_them() -> None:
    context = make((None, 4), 14)
    before = held(context)
    with pytest.raises(Unsupported, match="positions of sequence 0 from 0 on cannot move"):
        context.seq_add(0, 0, 3, 30)
    only_window = make((4,), 14)
    # by an evicted token
    with pytest.raises(ArgumentError, match="position 3 of sequence 0 is taken"):
        only_window.seq_add(0, 12, None, -9)
    assert held(context) == before
    context.seq_add(0, 0, None, -8)
    assert held(context)[1] == list(range(6))
    context.memory.seq_rm(0, 1)  # what was evicted moved below 0
    assert context.n_past() == 1


def test_a_loaded_state_knows_what_it_left_behind() -> None:
    source = make((None, 4), 14)
    state = from_bytes(to_bytes({0: take_state(source.memory, 0)}))[0][0]
    target = make((None, 4))
    put_state(target.memory, 0, state)
    assert held(target) == [list(range(14)), [11, 12, 13]]
    with pytest.raises(Unsupported, match="at 13, would see 10, which"):
        target.memory.seq_rm(0, 13)
    np.testing.assert_array_equal(next_logits(target), next_logits(source))


def test_a_state_that_lacks_what_the_window_sees_is_refused() -> None:
    state = take_state(make((None, 4), 14).memory, 0)
    wider = make((None, 6), 3)
    with pytest.raises(
        StateError, match="layer 1 lacks positions 9 to 10: the model's window is 6"
    ):
        put_state(wider.memory, 0, state)
    shorter = take_state(make((None, 4), 12).memory, 0)
    mixed = replace(state, layers={0: state.layers[0], 1: shorter.layers[1]})
    with pytest.raises(StateError, match=r"end at different positions: \[11, 13\]"):
        put_state(make((None, 4)).memory, 0, mixed)
    assert held(wider) == [[0, 1, 2], [0, 1, 2]]


def test_a_prefix_is_reused_where_its_window_is_there() -> None:
    memory = make((None, 4), 14).memory
    assert [n for n in range(15) if memory.reusable(0, n) == n] == [0, *range(9, 15)]
    for n in range(15):
        memory = make((None, 4), 14).memory
        memory.seq_rm(0, memory.reusable(0, n))  # never refused
        assert memory.can_copy(0, n) or n not in (0, *range(9, 15))
