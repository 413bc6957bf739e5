"""Requests at random through the engine: each step is checked, and all of them finish."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import Llama
from ggmlpy.engine.engine import Engine
from ggmlpy.engine.request_state import RequestState
from ggmlpy.memory.layouts import LAYOUTS
from tests.models.tiny import Tiny, write_model

N_SEQ_MAX, N_UBATCH, BUDGET = 6, 16, 8


def always_9(seen: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
    logits[:] = 0
    logits[9] = 1
    return logits


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny())


def preempted(engine: Engine) -> list[RequestState]:
    """Those that wait to start again."""
    return [sequence for sequence in engine._admission.waiting if sequence.n_preempted]


def check_preempted(engine: Engine, before: set[int], held: dict[int, int]) -> None:
    """No sequence was preempted in this step while one of a higher priority value held tokens."""
    new = [s for s in preempted(engine) if s.id in held and s.id not in before]
    kept = [slot.taken_by for slot in engine.slots.running() if held.get(slot.taken_by.id)]
    assert all(s.priority >= other.priority for s in new for other in kept)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_step_and_to_the_end(path: Path, layout: str) -> None:
    """Where cells are shared, all six cannot be held at once."""
    rng = np.random.default_rng(3)
    sizes: dict[str, Any] = {"n_ctx_seq": 96} if layout == "split" else {"n_ctx": 120}
    options: dict[str, Any] = {"temperature": 0, "logits_processor": always_9}
    left: dict[int, int] = {}  # tokens to come, by request
    with Llama(
        path,
        backend="null",
        n_seq_max=N_SEQ_MAX,
        n_ubatch=N_UBATCH,
        token_budget=BUDGET,
        kv_layout=layout,
        **sizes,
    ) as llm:
        engine = llm.engine
        for _ in range(40):
            n_tokens, priority = int(rng.integers(1, 60)), int(rng.integers(-1, 2))
            prompt = rng.integers(3, 288, int(rng.choice((1, 3, 30)))).tolist()
            id = engine.add(llm.request(prompt, max_tokens=n_tokens, priority=priority, **options))
            left[id] = n_tokens
            for _ in range(int(rng.integers(0, 8))):
                check_step(engine, left)
        while engine.has_work:
            check_step(engine, left)
        assert set(left.values()) == {0}
        assert (engine.timings.n_preempted > 0) == (layout != "split")


def check_step(engine: Engine, left: dict[int, int]) -> None:
    """Run a step. Every sequence that decodes has a token, prompts what the budget leaves."""
    running = [slot.taken_by for slot in engine.slots.running()]
    decoding = {s.id for s in running if s.is_decoding}
    held = {s.id: s.n_past for s in running}
    before = {s.id for s in preempted(engine)}
    n_before = engine.timings.n_prompt + engine.timings.n_decoded
    ids = {output.id for output in engine.step()}
    n_run = engine.timings.n_prompt + engine.timings.n_decoded - n_before
    for id in ids:
        left[id] -= 1
    now_preempted = {s.id for s in preempted(engine)}
    assert decoding - now_preempted <= ids
    assert n_run <= N_UBATCH
    if decoding - now_preempted:
        assert n_run <= BUDGET
    check_preempted(engine, before, held)
