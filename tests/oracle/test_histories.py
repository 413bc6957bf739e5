"""Random histories of operations: the memory against its model, unified and split side by side."""

from __future__ import annotations

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

from ggmlpy.batch import Batch
from ggmlpy.context import Context
from ggmlpy.state import SequenceState, from_bytes, put_state, take_state, to_bytes
from tests.oracle.cache_model import MemoryModel, SavedModel
from tests.oracle.glass_model import N_NAMES, Glass
from tests.oracle.side import Side

N_SEQ = 3
SEQS = st.integers(0, N_SEQ - 1)
ANY_SEQ = st.integers(-2, N_SEQ)  # some of these there are not
STARTS = st.integers(-1, 12)
STOPS = st.none() | st.integers(0, 16)


@dataclass(frozen=True)
class Kind:
    """A memory small enough that its cells run out."""

    windows: tuple[int | None, ...]
    recurrent: bool = False
    unified_cells: int = 20
    split_cells: int = 11  # of each sequence


KINDS = {
    "full": Kind((None,)),
    "full and window": Kind((None, 3), unified_cells=30, split_cells=22),
    "window": Kind((4,), unified_cells=40, split_cells=22),
    "window in a small cache": Kind((4,), unified_cells=10, split_cells=6),
    "recurrent": Kind((None,), recurrent=True),
    "window and recurrent": Kind((3,), recurrent=True, unified_cells=40, split_cells=22),
}


class Histories(RuleBasedStateMachine):
    """Operations done to one or two contexts and to their models.

    With two, unified and split, what one of them must refuse is not done to the other, so that both
    go on holding the same and can be compared.
    """

    kind: Kind
    layouts: tuple[bool, ...]  # unified?

    @initialize()
    def start(self) -> None:
        glass = Glass(self.kind.windows, self.kind.recurrent)
        n_cells = {True: self.kind.unified_cells, False: self.kind.split_cells * N_SEQ}
        self.sides = [Side(glass, N_SEQ, n_cells[unified], unified) for unified in self.layouts]
        self.saved: tuple[SequenceState, SavedModel] | None = None
        self.name = 0

    def do(
        self, real: Callable[[Context], object], operation: Callable[[MemoryModel], object]
    ) -> None:
        errors = [side.expected(operation) for side in self.sides]
        for side, error in zip(self.sides, errors, strict=True):
            if error is not None or not any(errors):
                side.do(real, operation)

    def next_name(self) -> int:
        """A token that nothing holds, while there is one: an entry is known by it."""
        held = set().union(*(side.model.tokens_held() for side in self.sides))
        for _ in range(N_NAMES):
            self.name = (self.name + 1) % N_NAMES
            if self.name not in held:
                break
        return self.name

    # --- decoding ---

    @rule(
        runs=st.lists(st.tuples(SEQS, st.integers(1, 6)), min_size=1, max_size=3),
        interleaved=st.booleans(),
        wanted=st.integers(0, 63),
    )
    def decode(self, runs: list[tuple[int, int]], interleaved: bool, wanted: int) -> None:
        order = [((seq,), i) for seq, n in runs for i in range(n)]
        if interleaved:
            order.sort(key=lambda entry: entry[1])
        self.decode_tokens([seqs for seqs, _ in order], wanted)

    @rule(
        tokens=st.lists(st.sets(SEQS, min_size=1, max_size=N_SEQ), min_size=1, max_size=6),
        wanted=st.integers(0, 63),
    )
    def decode_shared(self, tokens: list[set[int]], wanted: int) -> None:
        """Tokens of several sequences, most of which have gone different ways."""
        self.decode_tokens([tuple(seqs) for seqs in tokens], wanted)

    def decode_tokens(self, tokens: list[tuple[int, ...]], wanted: int) -> None:
        batch = Batch()
        past = {seq: self.sides[0].model.seq_pos_max(seq) + 1 for seq in range(N_SEQ)}
        for i, seqs in enumerate(tokens):
            position = max(past[seq] for seq in seqs)
            past |= dict.fromkeys(seqs, position + 1)
            batch.add(self.next_name(), position, seqs, bool(wanted >> i % 6 & 1))
        self.decode_batch(batch)

    @rule(
        token=st.sampled_from([-1, 5, N_NAMES * 2]),
        shift=st.integers(-2, 2),
        seqs=st.lists(ANY_SEQ, max_size=2),
    )
    def decode_nonsense(self, token: int, shift: int, seqs: list[int]) -> None:
        """Behind a good token, one that mostly is not."""
        past = [self.sides[0].model.seq_pos_max(seq) + 1 for seq in range(N_SEQ)]
        batch = Batch()
        batch.add(self.next_name(), past[0], (0,), True)
        past[0] += 1
        batch.add(token, past[seqs[0] % N_SEQ] + shift if seqs else shift, seqs, True)
        self.decode_batch(batch)

    @rule()
    def decode_nothing(self) -> None:
        self.decode_batch(Batch())

    def decode_batch(self, batch: Batch) -> None:
        errors = [side.expected(lambda model: model.decode(batch)) for side in self.sides]
        fits = {side.room_for(batch) for side in self.sides if not any(errors)}
        if len(self.sides) > 1 and "maybe" in fits:
            return
        logits = []
        for side, error in zip(self.sides, errors, strict=True):
            refused = error is not None or (not any(errors) and side.room_for(batch) == "no")
            if refused or not (any(errors) or "no" in fits):
                logits.append(side.decode(batch))
        if len(logits) == 2 and not any(errors) and fits == {"yes"}:
            assert logits[0] is not None
            assert logits[1] is not None
            self.compare(logits[0], logits[1])

    def compare(self, one: np.ndarray, other: np.ndarray) -> None:
        """Full attention sees the same in both layouts."""
        if self.kind.windows[0] is None:
            np.testing.assert_allclose(one[:, :N_NAMES], other[:, :N_NAMES], rtol=0, atol=1e-6)

    # --- sequences ---

    @rule(seq=ANY_SEQ, start=STARTS, stop=STOPS)
    def seq_rm(self, seq: int, start: int, stop: int | None) -> None:
        self.do(lambda c: c.memory.seq_rm(seq, start, stop), lambda m: m.seq_rm(seq, start, stop))

    @rule(one=ANY_SEQ, other=ANY_SEQ, start=STARTS, stop=STOPS)
    def seq_cp(self, one: int, other: int, start: int, stop: int | None) -> None:
        self.do(
            lambda c: c.memory.seq_cp(one, other, start, stop),
            lambda m: m.seq_cp(one, other, start, stop),
        )

    @rule(one=SEQS, other=SEQS)
    def seq_cp_all(self, one: int, other: int) -> None:
        self.do(lambda c: c.memory.seq_cp(one, other), lambda m: m.seq_cp(one, other))

    @rule(seq=ANY_SEQ)
    def seq_keep(self, seq: int) -> None:
        self.do(lambda c: c.memory.seq_keep(seq), lambda m: m.seq_keep(seq))

    @rule(seq=ANY_SEQ, start=STARTS, stop=STOPS, delta=st.integers(-9, 9))
    def seq_add(self, seq: int, start: int, stop: int | None, delta: int) -> None:
        self.do(
            lambda c: c.seq_add(seq, start, stop, delta),
            lambda m: m.seq_add(seq, start, stop, delta),
        )

    @rule(seq=ANY_SEQ, start=STARTS, stop=STOPS, divisor=st.integers(-1, 3))
    def seq_div(self, seq: int, start: int, stop: int | None, divisor: int) -> None:
        self.do(
            lambda c: c.seq_div(seq, start, stop, divisor),
            lambda m: m.seq_div(seq, start, stop, divisor),
        )

    @rule()
    def clear(self) -> None:
        self.do(lambda c: c.memory.clear(), lambda m: m.clear())

    # --- states ---

    @rule(seq=SEQS, side=st.integers(0, 1))
    def save(self, seq: int, side: int) -> None:
        chosen = self.sides[side % len(self.sides)]
        data = to_bytes({7: take_state(chosen.memory, seq)})
        self.saved = from_bytes(data)[0][7], chosen.model.take_state(seq)

    @precondition(lambda self: self.saved is not None)
    @rule(seq=ANY_SEQ)
    def load(self, seq: int) -> None:
        assert self.saved is not None
        state, model = self.saved
        self.do(lambda c: put_state(c.memory, seq, state), lambda m: m.put_state(seq, model))

    @rule(seq=ANY_SEQ)
    def save_nothing(self, seq: int) -> None:
        self.do(lambda c: take_state(c.memory, seq), lambda m: m.take_state(seq))

    @invariant()
    def everything_is_as_the_model_has_it(self) -> None:
        for side in self.sides:
            side.check()


LAYOUTS = {"unified": (True,), "split": (False,), "both": (True, False)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_history(kind: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggmlpy.kv_cache.KV_PAD", 4)  # rings of a few cells, soon used again
    machine = type("H", (Histories,), {"kind": KINDS[kind], "layouts": LAYOUTS[layout]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
