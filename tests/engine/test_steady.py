"""Steps that go on from the one before: the same bits and cells as steps that take nothing for
granted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggmlpy.errors import BadBatch
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.cell_table import CellTable
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.memory.recurrent_state import RecurrentState
from ggmlpy.memory.slots import Slot
from ggmlpy.memory.transaction import Transaction
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.inputs import StepInputs
from ggmlpy.runtime.plans import Plan
from ggmlpy.runtime.steady import SteadyStep
from tests.engine.test_streams import make
from tests.interrupts import interrupted_at
from tests.models.tiny import Tiny

N_SEQ = 4
N_CTX_SEQ = 300


def tokens_of(*pairs: tuple[int, int, int]) -> Batch:
    """(token, position, sequence), all output."""
    batch = Batch()
    for token, position, seq in pairs:
        batch.add(token, position, (seq,), output=True)
    return batch


def cells(context: Context) -> list[Any]:
    return [
        (c._positions.tolist(), c._members.tolist(), c._end.tolist(), c._n_used.tolist(),
         c._pos_max.tolist())
        for c in (cache.cells for cache in context.memory.caches)
    ]  # fmt: skip


@dataclass
class Counter:
    """How many steps of a context went on from the one before."""

    n: int = 0


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counter, run = Counter(), SteadyStep.run

    def counted(self: SteadyStep, batch: Batch, read: bool) -> Any:
        logits = run(self, batch, read)
        counter.n += logits is not None
        return logits

    monkeypatch.setattr(SteadyStep, "run", counted)
    return counter


class Pair:
    """Two contexts that do the same; one of them takes every step like any other."""

    def __init__(self, folder: Path, **options: Any) -> None:
        options = {"n_seq_max": N_SEQ, "n_ctx_seq": N_CTX_SEQ, **options}
        self.quick, self.careful = make(folder, **options), make(folder, **options)

    def decode(self, batch: Batch) -> None:
        self.careful._steady = None
        got, want = self.quick.decode_batch(batch), self.careful.decode_batch(batch)
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
        self.check_cells()

    def check_cells(self) -> None:
        assert cells(self.quick) == cells(self.careful)

    def next(self, seqs: list[int], token: int) -> Batch:
        return tokens_of(*(((token + 7 * s) % 288, self.quick.n_past(s), s) for s in seqs))

    def prompt(self, seq: int, n: int) -> None:
        batch = Batch()
        batch.add_sequence(seq, list(range(3, 3 + n)), self.quick.n_past(seq))
        self.decode(batch)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
@pytest.mark.parametrize("seqs", [[0], [2], [0, 1, 2, 3], [3, 0, 2], [1, 3]], ids=str)
def test_writing_on_is_bitwise_the_same(
    tmp_path: Path, steady: Counter, layout: str, flash_attn: bool, seqs: list[int]
) -> None:
    """Past 256 cells. In separate ops each step gathers cells anew."""
    pair = Pair(tmp_path, layout=layout, flash_attn=flash_attn)
    for seq in seqs:
        pair.prompt(seq, 240 // (len(seqs) if layout != "split" else 1) + seq)
    for i in range(30):
        pair.decode(pair.next(seqs, i))
    assert steady.n == (29 if flash_attn else 0)  # all but the first


# Few, so that what comes between is often the only difference.
orders = st.sampled_from([[0, 1, 2, 3], [3, 1, 0, 2], [1, 2]])
actions = st.one_of(
    st.tuples(st.just("write"), orders, st.integers(1, 3)),
    st.tuples(st.just("prompt"), st.integers(0, N_SEQ - 1), st.integers(1, 5)),
    st.tuples(st.just("rm"), st.integers(0, N_SEQ - 1), st.integers(0, 3)),
    st.tuples(st.just("hole"), st.integers(0, N_SEQ - 1), st.integers(0, 3)),
    st.tuples(st.just("cp"), st.integers(0, N_SEQ - 1), st.integers(0, N_SEQ - 1)),
    st.tuples(st.just("add"), st.integers(0, N_SEQ - 1), st.integers(1, 4)),
    st.tuples(st.just("bad"), st.integers(0, N_SEQ - 1), st.integers(0, 3)),
    st.tuples(st.just("stopped"), orders, st.just(0)),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(layout=st.sampled_from(LAYOUTS), plan=st.lists(actions, min_size=3, max_size=14))
def test_whatever_comes_between(
    tmp_path: Path, steady: Counter, layout: str, plan: list[Any]
) -> None:
    pair = Pair(tmp_path, layout=layout, n_ctx_seq=64)
    for seq in range(N_SEQ):
        pair.prompt(seq, 3 + seq)
    pair.decode(pair.next([0, 1, 2, 3], 1))
    for what, which, n in plan:
        if what == "write":
            for i in range(n):
                pair.decode(pair.next(which, i))
        elif what == "prompt":
            pair.prompt(which, n)
        elif what == "bad":
            check_refused(pair, which, n)
        elif what == "stopped":
            check_stopped(pair, which)
        else:
            change(pair, what, which, n)
    pair.decode(pair.next([0, 1, 2, 3], 5))


def change(pair: Pair, what: str, seq: int, n: int) -> None:
    last = pair.quick.n_past(seq)
    for context in (pair.quick, pair.careful):
        if what == "rm":
            context.seq_rm(seq, max(1, last - n))
        elif what == "hole":
            context.seq_rm(seq, n, n + 1)
        elif what == "cp":
            context.seq_cp(seq, n)
        elif last + n < 60:
            context.seq_add(seq, last // 2, None, n)
    pair.check_cells()


def check_refused(pair: Pair, seq: int, how: int) -> None:
    """A step of all that is wrong in one place changes nothing."""
    batch = pair.next([0, 1, 2, 3], 2)
    if how == 0:
        batch.tokens[seq] = 288
    elif how == 1:
        batch.tokens[seq] = -1
    elif how == 2:
        batch.positions[seq] += 1
    else:
        batch.seq_ids[seq] = (N_SEQ,)
    for context in (pair.quick, pair.careful):
        with pytest.raises(BadBatch, match=f"index {seq}"):
            context.decode_batch(batch)
    pair.check_cells()


def check_stopped(pair: Pair, seqs: list[int]) -> None:
    """An interrupt in the middle of the plan."""

    def interrupted(self: Plan) -> Any:
        raise KeyboardInterrupt

    batch = pair.next(seqs, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "run", interrupted)
        for context in (pair.quick, pair.careful):
            with pytest.raises(KeyboardInterrupt):
                context.decode_batch(batch)
    pair.check_cells()
    pair.decode(batch)


# The code that decodes a steady step.
OWNERS = (
    SteadyStep, StepInputs, KVCache, KVCells, CellTable, Slot, Transaction, RecurrentState, Plan,
)  # fmt: skip

MODELS = {
    "full": Tiny(),
    "window": Tiny("gemma3", head_size=32, n_rot=32, window=4, windowed=(0,), neox=True,
                   qk_norm=True, post_norms=True),
    "recurrent": Tiny("lfm2", convolutions=(0,), qk_norm=True, neox=True),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seqs", [[2], [3, 0, 2]], ids=str)
def test_empty_cells_before_others_are_filled(
    tmp_path: Path, steady: Counter, layout: str, seqs: list[int]
) -> None:
    """Those of a sequence that has ended, or of a part that was removed; then come cells behind."""
    pair = Pair(tmp_path, layout=layout)
    for seq in (1, *seqs):
        pair.prompt(seq, 8)
    for context in (pair.quick, pair.careful):
        context.seq_rm(1)
        context.seq_rm(2, 1, 5)
    for i in range(14):
        pair.decode(pair.next(seqs, i))
    assert steady.n == 13


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_an_interrupt_at_any_line_leaves_the_memory_as_it_was(
    tmp_path: Path, steady: Counter, monkeypatch: pytest.MonkeyPatch, layout: str, model: Tiny
) -> None:
    """With a window of which cells are used again: what they held is evicted, not wrong."""
    monkeypatch.setattr("ggmlpy.memory.cell_table.KV_PAD", 16)
    monkeypatch.setattr("ggmlpy.memory.pages.PAGE_SIZE", 4)
    pair = Pair(tmp_path, model=model, layout=layout, n_ctx_seq=64, n_ubatch=8)
    for n in range(1, 1000):
        for seq in (0, 1):
            pair.prompt(seq, 3)
        pair.decode(pair.next([0, 1], n))
        pair.decode(pair.next([0, 1], n))  # a step that goes on, as the one that is stopped
        try:
            with interrupted_at(n, OWNERS):
                pair.quick.decode_batch(pair.next([0, 1], 3))
        except KeyboardInterrupt:
            pair.check_cells()
            pair.decode(pair.next([0, 1], 4))
        else:
            break
        for each in (pair.quick, pair.careful):
            each.seq_rm(-1)
    assert 30 < n < 999
    assert steady.n >= n


def test_a_batch_of_lists_of_several_lengths_is_refused(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for seq in (0, 1):
        pair.prompt(seq, 3)
    pair.decode(pair.next([0, 1], 1))
    batch = pair.next([0, 1], 2)
    del batch.tokens[1]
    for each in (pair.quick, pair.careful):
        with pytest.raises(BadBatch, match="1 tokens, 2 positions, 2 seq_ids and 2 outputs"):
            each.decode_batch(batch)
    pair.check_cells()


def test_tokens_that_are_no_ints_are_taken_as_ever(tmp_path: Path, steady: Counter) -> None:
    pair = Pair(tmp_path)
    pair.prompt(0, 3)
    pair.decode(pair.next([0], 1))
    batch = pair.next([0], 2)
    batch.tokens[0] = np.int64(batch.tokens[0])  # type: ignore[call-overload]
    pair.decode(batch)
    assert steady.n == 0
    batch = pair.next([0], 2)
    batch.tokens[0] = 1.5  # type: ignore[call-overload]
    with pytest.raises(BadBatch, match=r"token 1\.5"):
        pair.quick.decode_batch(batch)


def test_fewer_logits_than_tokens_are_a_step_of_its_own(tmp_path: Path, steady: Counter) -> None:
    pair = Pair(tmp_path)
    for seq in (0, 1):
        pair.prompt(seq, 3)
    pair.decode(pair.next([0, 1], 1))
    batch = pair.next([0, 1], 2)
    batch.outputs[0] = False
    pair.decode(batch)
    pair.decode(pair.next([0, 1], 3))
    assert steady.n == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["window", "recurrent"])
def test_windows_and_recurrent_states_go_on_too(
    tmp_path: Path, steady: Counter, monkeypatch: pytest.MonkeyPatch, layout: str, model: str
) -> None:
    """Through more tokens than a window has cells."""
    monkeypatch.setattr("ggmlpy.memory.cell_table.KV_PAD", 16)
    monkeypatch.setattr("ggmlpy.memory.pages.PAGE_SIZE", 4)
    pair = Pair(tmp_path, model=MODELS[model], layout=layout, n_ctx_seq=64, n_ubatch=8)
    for seq, n in ((0, 3), (2, 5), (1, 2)):
        pair.prompt(seq, n)
    for i in range(40):
        pair.decode(pair.next([2, 0, 1], i))
    assert steady.n == 39  # all but the first
