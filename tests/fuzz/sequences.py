"""Random operations on the sequences of a context: logits are those of the tokens read at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy import Batch, Context
from ggmlpy.errors import GgmlpyError
from ggmlpy.memory.state import SequenceState, put_state, take_state
from tests.fuzz.case import Kind, Recipe, Wrong
from tests.fuzz.histories import _SMALL, _STEPS, _WINDOW
from tests.fuzz.kernels import load_kernels
from tests.models.tiny import Tiny, write_model

_SETUPS: dict[str, tuple[Tiny, dict[str, Any]]] = {
    "split": (_SMALL, {"n_ctx": 96, "n_ubatch": 8}),
    "unified": (_SMALL, {"n_ctx": 64, "n_ubatch": 8, "kv_unified": True}),
    "window": (_WINDOW, {"n_ctx": 96, "n_ubatch": 8}),
    "unified window": (_WINDOW, {"n_ctx": 48, "n_ubatch": 8, "kv_unified": True}),
    "paged": (_SMALL, {"n_ctx": 64, "n_ubatch": 8, "kv_layout": "paged"}),
    "paged window": (_WINDOW, {"n_ctx": 64, "n_ubatch": 8, "kv_layout": "paged"}),
    "recurrent": (_STEPS, {"n_ctx": 96, "n_ubatch": 8}),
    "unfused": (_SMALL, {"n_ctx": 96, "n_ubatch": 8, "flash_attn": False}),
}
_N_SEQ = 3
_POSITIONS = (0, 0, 0, 1, 2, 3, 5, 9, 20, -1)


class Sequences(Kind):
    """Up to 30 operations, most of them sound."""

    name = "sequences"
    about = "seq_rm, cp, keep, add, div and states of a context: logits as of a fresh one"
    n_quick = 150
    group = 4
    parts = ("steps",)
    _contexts: dict[str, tuple[Context, Context]]

    def prepare(self, folder: Path) -> None:
        load_kernels()
        self._contexts = {}
        for name, (weights, options) in _SETUPS.items():
            path = write_model(folder / f"{name}.gguf", weights)
            common: dict[str, Any] = {"backend": "cpu", "n_threads": 1}
            context = Context.open(path, **common, n_seq_max=_N_SEQ, **options)
            single = {k: v for k, v in options.items() if k == "flash_attn"}
            self._contexts[name] = context, Context.open(path, **common, n_ctx=96, **single)

    def draw(self, rng: random.Random) -> Recipe:
        steps = [_step(rng) for _ in range(rng.choice((3, 8, 15, 30)))]
        return {"setup": rng.choice(list(_SETUPS)), "steps": steps}

    def run(self, recipe: Recipe, folder: Path) -> None:
        context, alone = self._contexts[recipe["setup"]]
        context.clear()
        history = _History(context, alone, exact="unified" not in recipe["setup"])
        for step in recipe["steps"]:
            history.do(*step)

    def simpler(self, recipe: Recipe) -> Iterator[Recipe]:
        yield recipe | {"setup": "split"}


def _step(rng: random.Random) -> list[Any]:
    seq = rng.randrange(_N_SEQ)
    what = rng.choices(
        ("decode", "rm", "cp", "keep", "clear", "add", "div", "shift", "save", "load", "bad"),
        (40, 10, 12, 2, 1, 4, 2, 4, 5, 5, 5),
    )[0]
    start, stop = rng.choice(_POSITIONS), rng.choice((None, None, *_POSITIONS))
    if what == "decode":
        seqs = rng.sample(range(_N_SEQ), rng.choice((1, 1, 2, 3)))
        return [what, [[s, [rng.randrange(3, 288) for _ in range(rng.choice((1, 1, 1, 3, 10)))]]
                       for s in seqs]]  # fmt: skip
    if what == "rm":
        return [what, rng.choice((seq, seq, -1)), start, stop]
    if what == "cp":
        return [what, seq, rng.randrange(_N_SEQ), start, stop]
    if what == "shift":
        return [what, seq, rng.choice((0, 1, 3, 10)), rng.choice((0, 1, 5, 30))]
    if what in ("add", "div"):
        return [what, seq, start, stop, rng.choice((1, 2, 5, -1, -3))]
    if what == "load":
        return [what, rng.randrange(3), seq]
    if what == "bad":
        return [
            what,
            rng.choice((3, -1, 10**6)),
            rng.choice((0, 288, -1, 10**9)),
            rng.choice((0, 7)),
        ]
    return [what, seq] if what in ("keep", "save") else [what]


class _History:
    """A context, and which tokens each of its sequences must hold (None: not known any more)."""

    def __init__(self, context: Context, alone: Context, exact: bool) -> None:
        self.context = context
        self.alone = alone
        self.exact = exact  # else sums may be rounded in another order
        self.tokens: list[list[int] | None] = [[] for _ in range(_N_SEQ)]
        self._states: list[tuple[SequenceState, list[int] | None]] = []

    def do(self, what: str, *arguments: Any) -> None:
        """One step; one that is refused changes nothing."""
        before = self._picture()
        try:
            getattr(self, f"_{what}")(*arguments)
        except GgmlpyError as error:
            if self._picture() != before:
                raise Wrong("changed by a refused step", f"{what}: {error}") from error
            str(error)

    def _picture(self) -> list[Any]:
        states = [take_state(self.context.memory, seq) for seq in range(_N_SEQ)]
        return [
            (
                [(i, rows.positions.tolist(), rows.k.tobytes(), rows.v.tobytes())
                 for i, rows in state.layers.items()],
                [row.tobytes() for row in state.recurrent.values()],
            )
            for state in states
        ]  # fmt: skip

    def _decode(self, parts: list[tuple[int, list[int]]]) -> None:
        batch = Batch()
        for seq, tokens in parts:
            batch.add_sequence(seq, tokens, self.context.n_past(seq), all_outputs=True)
        logits = self.context.decode_batch(batch).copy()
        first = 0
        for seq, tokens in parts:
            held = self.tokens[seq]
            if held is not None:
                held += tokens
                self._check(seq, held, logits[first : first + len(tokens)])
            first += len(tokens)

    def _check(self, seq: int, held: list[int], logits: NDArray[np.float32]) -> None:
        if self.context.n_past(seq) != len(held):
            raise Wrong("length differs", f"{self.context.n_past(seq)}, not {len(held)}")
        self.alone.clear()
        want = self.alone.decode(held, all_logits=True)[-len(logits) :]
        same = np.array_equal(want, logits)
        if not same and (self.exact or not np.allclose(want, logits, rtol=1e-3, atol=2e-2)):
            worst = float(np.abs(want - logits).max())
            raise Wrong("logits differ", f"sequence {seq} of {len(held)} tokens, by {worst:.3g}")

    def _rm(self, seq: int, start: int, stop: int | None) -> None:
        self.context.seq_rm(seq, start, stop)
        for each in range(_N_SEQ) if seq == -1 else (seq,):
            self.tokens[each] = _without(self.tokens[each], start, stop)

    def _cp(self, source: int, target: int, start: int, stop: int | None) -> None:
        self.context.seq_cp(source, target, start, stop)
        held = self.tokens[source]
        if source == target:
            return
        whole = max(start, 0) == 0 and held is not None
        end = len(held or []) if stop is None or stop < 0 else stop
        rest = self.tokens[target]
        if whole and held is not None and rest is not None and len(rest) <= end:
            self.tokens[target] = held[:end]
        else:
            self.tokens[target] = None

    def _keep(self, seq: int) -> None:
        self.context.seq_keep(seq)
        for other in range(_N_SEQ):
            if other != seq:
                self.tokens[other] = []

    def _clear(self) -> None:
        self.context.clear()
        self.tokens = [[] for _ in range(_N_SEQ)]

    def _add(self, seq: int, start: int, stop: int | None, delta: int) -> None:
        self.context.seq_add(seq, start, stop, delta)
        self._moved(seq)

    def _div(self, seq: int, start: int, stop: int | None, divisor: int) -> None:
        self.context.seq_div(seq, start, stop, divisor)
        self._moved(seq)

    def _shift(self, seq: int, start: int, n: int) -> None:
        caches = self.context.memory.caches
        before = [cache.cells.positions_of(seq, cache.cells.of(seq)).tolist() for cache in caches]
        self.context.seq_shift(seq, start, n)
        for cache, held in zip(caches, before, strict=True):
            want = [p if p < start else p - n for p in held if p < start or p >= start + n]
            found = cache.cells.positions_of(seq, cache.cells.of(seq)).tolist()
            if sorted(found) != sorted(want):
                raise Wrong("positions differ", f"{found}, not {want}")
        self._moved(seq)

    def _moved(self, seq: int) -> None:
        self.tokens[seq] = [] if self.context.n_past(seq) == 0 else None

    def _save(self, seq: int) -> None:
        held = self.tokens[seq]
        state = take_state(self.context.memory, seq)
        self._states.append((state, None if held is None else list(held)))

    def _load(self, number: int, seq: int) -> None:
        if self._states:
            state, held = self._states[number % len(self._states)]
            put_state(self.context.memory, seq, state)
            self.tokens[seq] = None if held is None else list(held)

    def _bad(self, seq: int, token: int, ahead: int) -> None:
        """A batch that must be refused, unless chance made it sound."""
        batch = Batch()
        held = self.tokens[seq] if 0 <= seq < _N_SEQ else None
        batch.add(token, len(held or []) + ahead, (seq,), True)
        self.context.decode_batch(batch)
        if held is not None:
            held.append(token)


def _without(held: list[int] | None, start: int, stop: int | None) -> list[int] | None:
    """What is left, if it still begins at 0 and has no gap."""
    start = max(start, 0)
    if held is None:
        return [] if start == 0 and (stop is None or stop < 0) else None
    if start >= len(held):
        return held
    if stop is None or stop < 0 or stop >= len(held):
        return held[:start]
    return held if stop <= start else None
