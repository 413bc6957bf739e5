"""Random sequences of operations on the memory and its model, in each layout of the cache.

The same ones every time, unless GGMLPY_TEST_HISTORIES says how many new ones each test runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ggmlpy.memory.batch import Batch
from ggmlpy.memory.layouts import KVLayout
from ggmlpy.memory.state import SequenceState, put_state, take_state
from ggmlpy.memory.state_file import from_bytes, to_bytes
from ggmlpy.runtime.context import Context
from tests.oracle.cache_model import MemoryModel, SavedModel
from tests.oracle.glass_model import N_NAMES, Glass
from tests.oracle.side import Side

N_NEW = int(os.environ.get("GGMLPY_TEST_HISTORIES", 0))
N_SEQ = 3
SEQS = st.integers(0, N_SEQ - 1)
STRANGERS = st.sampled_from([-2, -1, N_SEQ])
RARELY = st.integers(0, 5).map(lambda n: n == 0)
# Which tokens of a batch are outputs, and the part of a sequence that an operation applies to.
OUTPUTS = st.just(-1) | st.integers(0, 63)
PARTS = st.tuples(
    st.sampled_from(["all", "head", "head", "tail", "tail", "middle", "middle", "odd"]),
    st.integers(0, 10),
    st.integers(0, 5),
)


@dataclass(frozen=True)
class Kind:
    """A memory with so few cells that it becomes full."""

    windows: tuple[int | None, ...]
    recurrent: bool = False
    unified_cells: int = 20
    split_cells: int = 11  # of each sequence
    page_size: int = 4


KINDS = {
    "full": Kind((None,)),
    "full and window": Kind((None, 3), unified_cells=30, split_cells=22),
    "window": Kind((4,), unified_cells=40, split_cells=22),
    "window in a small cache": Kind((4,), unified_cells=10, split_cells=6),
    "windows of 1 and 2": Kind((1, 2), unified_cells=30, split_cells=20),
    "recurrent": Kind((None,), recurrent=True),
    "window and recurrent": Kind((3,), recurrent=True, unified_cells=40, split_cells=22),
}


class Histories(RuleBasedStateMachine):
    """Operations on one or two contexts and their models.

    With two, in different layouts, an operation that one of them must refuse is not applied to the
    other, so that their contents stay equal.
    """

    kind: Kind
    layouts: tuple[KVLayout, ...]

    @initialize()
    def start(self) -> None:
        glass = Glass(self.kind.windows, self.kind.recurrent)
        shared, split = self.kind.unified_cells, self.kind.split_cells * N_SEQ
        n_cells: dict[KVLayout, int] = {"unified": shared, "paged": shared, "split": split}
        self.sides = [Side(glass, N_SEQ, n_cells[layout], layout) for layout in self.layouts]
        self.saved: tuple[SequenceState, SavedModel] | None = None
        self.name = 0

    def do(
        self,
        real: Callable[[Context], object],
        operation: Callable[[MemoryModel], object],
        n_tokens: int = 0,
    ) -> None:
        """`n_tokens` is the most that the operation may need cells for."""
        errors = [side.expected(operation) for side in self.sides]
        for side, error in zip(self.sides, errors, strict=True):
            applies = error is not None or not any(errors)
            if applies and not side.do(real, operation, n_tokens):
                return

    def next_name(self) -> int:
        """A token that no sequence holds, if there is one, so that it identifies its entry."""
        held = set().union(*(side.model.tokens_held() for side in self.sides))
        for _ in range(N_NAMES):
            self.name = (self.name + 1) % N_NAMES
            if self.name not in held:
                break
        return self.name

    def part(self, seq: int, part: tuple[str, int, int]) -> tuple[int, int | None]:
        """`start` and `stop` of a part of a sequence."""
        which, tenths, length = part
        n_past = self.sides[0].model.seq_pos_max(seq) + 1
        at = n_past * tenths // 10
        return {
            "all": (0, None),
            "head": (0, at),
            "tail": (at, None),
            "middle": (at, at + length),
            "odd": (tenths - 2, length),
        }[which]

    def n_held(self, seq: int) -> int:
        """Tokens of a sequence, in the layers that hold the most."""
        layers = self.sides[0].model.layers
        return max((len(p.held[seq]) for p in layers), default=0) if 0 <= seq < N_SEQ else 0

    # --- decoding ---

    @rule(
        runs=st.lists(st.tuples(SEQS, st.integers(1, 6)), min_size=1, max_size=3),
        interleaved=st.booleans(),
        outputs=OUTPUTS,
    )
    def decode(self, runs: list[tuple[int, int]], interleaved: bool, outputs: int) -> None:
        order = [((seq,), i) for seq, n in runs for i in range(n)]
        if interleaved:
            order.sort(key=lambda entry: entry[1])
        self.decode_tokens([seqs for seqs, _ in order], outputs)

    @rule(order=st.permutations(range(N_SEQ)), n_seqs=st.integers(1, N_SEQ), outputs=OUTPUTS)
    def decode_one_each(self, order: list[int], n_seqs: int, outputs: int) -> None:
        self.decode_tokens([(seq,) for seq in order[:n_seqs]], outputs)

    @rule(seq=SEQS, n=st.integers(5, 14))
    def decode_a_prompt(self, seq: int, n: int) -> None:
        self.decode_tokens([(seq,)] * n, 0)

    @precondition(lambda self: "split" not in self.layouts or len(self.layouts) > 1)
    @rule(
        seq=SEQS,
        n_shared=st.integers(1, 4),
        apart=st.lists(SEQS, max_size=2),
        again=st.integers(0, 1),
        outputs=OUTPUTS,
    )
    def decode_shared(
        self, seq: int, n_shared: int, apart: list[int], again: int, outputs: int
    ) -> None:
        """Tokens of all sequences that hold the same as one does; then tokens of single ones."""
        layers = self.sides[0].model.layers
        alike = tuple(
            other
            for other in range(N_SEQ)
            if all(p.history(other) == p.history(seq) for p in layers)
        )
        self.decode_tokens([alike] * n_shared + [(s,) for s in apart] + [alike] * again, outputs)

    def decode_tokens(self, tokens: list[tuple[int, ...]], outputs: int) -> None:
        self.decode_batch(self.batch_of(tokens, outputs))

    def batch_of(self, tokens: list[tuple[int, ...]], outputs: int) -> Batch:
        """Tokens of these sequences, each at the next position of its sequences."""
        batch = Batch()
        past = {seq: self.sides[0].model.seq_pos_max(seq) + 1 for seq in range(N_SEQ)}
        for i, seqs in enumerate(tokens):
            position = max(past[seq] for seq in seqs)
            past |= dict.fromkeys(seqs, position + 1)
            batch.add(self.next_name(), position, seqs, bool(outputs >> i % 6 & 1))
        return batch

    @precondition(lambda self: "split" not in self.layouts)
    @rule(tokens=st.lists(st.sets(SEQS, min_size=1, max_size=N_SEQ), min_size=1, max_size=3))
    def decode_mixed(self, tokens: list[set[int]]) -> None:
        """Tokens that belong to any sequences, most of which hold different entries."""
        self.decode_tokens([tuple(seqs) for seqs in tokens], -1)

    @rule(
        token=st.sampled_from([-1, 5, N_NAMES * 2]),
        shift=st.integers(-2, 2),
        seqs=st.lists(SEQS | STRANGERS, max_size=2),
    )
    def decode_nonsense(self, token: int, shift: int, seqs: list[int]) -> None:
        """A valid token, and after it one that is invalid in most cases."""
        past = [self.sides[0].model.seq_pos_max(seq) + 1 for seq in range(N_SEQ)]
        batch = Batch()
        if shift % 2 == 0 or seqs:
            batch.add(self.next_name(), past[0], (0,), True)
            past[0] += 1
            batch.add(token, past[seqs[0] % N_SEQ] + shift if seqs else shift, seqs, True)
        self.decode_batch(batch)

    @rule(
        runs=st.lists(st.tuples(SEQS, st.integers(1, 9)), min_size=1, max_size=3),
        at=st.integers(0, 4),
        when=st.sampled_from(["before", "after"]),
    )
    def decode_cut_short(self, runs: list[tuple[int, int]], at: int, when: str) -> None:
        """A batch of which some ubatches run before one fails."""
        batch = self.batch_of([(seq,) for seq, n in runs for _ in range(n)], -1)
        for side in self.sides:
            side.cut_short(batch, at, when)

    def decode_batch(self, batch: Batch) -> None:
        errors = [side.expected(lambda model: model.decode(batch)) for side in self.sides]
        fits = {side.fits(batch) for side in self.sides if not any(errors)}
        if len(self.sides) > 1 and "maybe" in fits:
            return
        logits = []
        for side, error in zip(self.sides, errors, strict=True):
            refused = error is not None or (not any(errors) and side.fits(batch) == "no")
            if refused or not (any(errors) or "no" in fits):
                logits.append(side.decode(batch))
        if len(logits) == 2 and not any(errors) and fits == {"yes"}:
            assert logits[0] is not None
            assert logits[1] is not None
            self.compare(logits[0], logits[1])

    def compare(self, one: np.ndarray, other: np.ndarray) -> None:
        """Check that full attention has the same bits in both layouts."""
        if self.kind.windows[0] is None:
            np.testing.assert_array_equal(one[:, :N_NAMES], other[:, :N_NAMES])

    # --- sequences ---

    @rule(seq=SEQS, part=PARTS)
    def seq_rm(self, seq: int, part: tuple[str, int, int]) -> None:
        start, stop = self.part(seq, part)
        self.do(lambda c: c.memory.seq_rm(seq, start, stop), lambda m: m.seq_rm(seq, start, stop))

    @rule(part=PARTS, rarely=RARELY)
    def seq_rm_from_all(self, part: tuple[str, int, int], rarely: bool) -> None:
        start, stop = self.part(0, part)
        if rarely:
            self.do(lambda c: c.memory.seq_rm(-1, start, stop), lambda m: m.seq_rm(-1, start, stop))

    @rule(one=SEQS, other=SEQS, part=PARTS)
    def seq_cp(self, one: int, other: int, part: tuple[str, int, int]) -> None:
        start, stop = self.part(one, part)
        self.do(
            lambda c: c.memory.seq_cp(one, other, start, stop),
            lambda m: m.seq_cp(one, other, start, stop),
        )

    @rule(one=SEQS, other=SEQS)
    def seq_cp_all(self, one: int, other: int) -> None:
        self.do(lambda c: c.memory.seq_cp(one, other), lambda m: m.seq_cp(one, other))

    @rule(seq=SEQS, part=PARTS, delta=st.integers(-9, 9))
    def seq_add(self, seq: int, part: tuple[str, int, int], delta: int) -> None:
        start, stop = self.part(seq, part)
        self.do(
            lambda c: c.seq_add(seq, start, stop, delta),
            lambda m: m.seq_add(seq, start, stop, delta),
            self.n_held(seq),
        )

    @rule(seq=SEQS, part=PARTS)
    def context_shift(self, seq: int, part: tuple[str, int, int]) -> None:
        """Remove a part and shift the tokens behind it."""
        start, stop = self.part(seq, part)
        if stop is not None and 0 <= start < stop and not self.kind.recurrent:
            self.do(
                lambda c: c.memory.seq_rm(seq, start, stop), lambda m: m.seq_rm(seq, start, stop)
            )
            self.do(
                lambda c: c.seq_add(seq, stop, None, start - stop),
                lambda m: m.seq_add(seq, stop, None, start - stop),
                self.n_held(seq),
            )

    @rule(seq=SEQS, part=PARTS, divisor=st.integers(0, 3), rarely=RARELY)
    def seq_div(self, seq: int, part: tuple[str, int, int], divisor: int, rarely: bool) -> None:
        start, stop = self.part(seq, part)
        if rarely:
            self.do(
                lambda c: c.seq_div(seq, start, stop, divisor),
                lambda m: m.seq_div(seq, start, stop, divisor),
                self.n_held(seq),
            )

    @rule(seq=SEQS, everything=st.booleans(), rarely=RARELY)
    def seq_keep(self, seq: int, everything: bool, rarely: bool) -> None:
        if rarely and everything:
            self.do(lambda c: c.memory.clear(), lambda m: m.clear())
        elif rarely:
            self.do(lambda c: c.memory.seq_keep(seq), lambda m: m.seq_keep(seq))

    @rule(seq=STRANGERS, which=st.integers(0, 7))
    def sequences_that_there_are_not(self, seq: int, which: int) -> None:
        operations: list[tuple[Callable[[Context], object], Callable[[MemoryModel], object]]] = [
            (lambda c: c.memory.seq_cp(seq, 0), lambda m: m.seq_cp(seq, 0)),
            (lambda c: c.memory.seq_cp(0, seq), lambda m: m.seq_cp(0, seq)),
            (lambda c: c.memory.seq_keep(seq), lambda m: m.seq_keep(seq)),
            (lambda c: c.seq_add(seq, 0, None, 1), lambda m: m.seq_add(seq, 0, None, 1)),
            (lambda c: c.seq_div(seq, 0, None, 1), lambda m: m.seq_div(seq, 0, None, 1)),
            (lambda c: take_state(c.memory, seq), lambda m: m.take_state(seq)),
        ]
        if which < len(operations):
            self.do(*operations[which])
        elif self.saved is not None:
            self.load_into(seq)

    # --- states ---

    @rule(seq=SEQS, side=st.integers(0, 1))
    def save(self, seq: int, side: int) -> None:
        chosen = self.sides[side % len(self.sides)]
        data = to_bytes({7: take_state(chosen.memory, seq)})
        self.saved = from_bytes(data)[0][7], chosen.model.take_state(seq)

    @precondition(lambda self: self.saved is not None)
    @rule(seq=SEQS)
    def load(self, seq: int) -> None:
        self.load_into(seq)

    def load_into(self, seq: int) -> None:
        assert self.saved is not None
        state, model = self.saved
        self.do(
            lambda c: put_state(c.memory, seq, state),
            lambda m: m.put_state(seq, model),
            max(len(rows) for rows, _ in model.layers),
        )

    @invariant()
    def everything_is_as_the_model_has_it(self) -> None:
        for side in self.sides:
            side.check()


LAYOUTS: dict[str, tuple[KVLayout, ...]] = {
    "unified": ("unified",),
    "split": ("split",),
    "paged": ("paged",),
    "unified and split": ("unified", "split"),
    "paged and split": ("paged", "split"),
    "paged and unified": ("paged", "unified"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_history(kind: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ggmlpy.memory.cell_table.KV_PAD", 4
    )  # rings of a few cells, soon used again
    monkeypatch.setattr("ggmlpy.memory.pages.PAGE_SIZE", KINDS[kind].page_size)
    machine = type("H", (Histories,), {"kind": KINDS[kind], "layouts": LAYOUTS[layout]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=N_NEW or (10 if len(LAYOUTS[layout]) > 1 else 6),
            stateful_step_count=25,
            deadline=None,
            derandomize=not N_NEW,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
