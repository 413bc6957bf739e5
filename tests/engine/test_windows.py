"""Beginnings of texts that the memory of a model with windows holds, or has evicted in part."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import Llama
from ggmlpy.runtime.plans import Plan
from tests.models.tiny import Tiny, write_model

MODEL = Tiny(
    architecture="gemma3", n_layer=3, n_ctx=256, neox=True, qk_norm=True, post_norms=True,
    gelu=True, embedding_scale=8.0, window=5, windowed=(0, 2),
)  # fmt: skip
OPTIONS: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "logit_bias": {2: -1000.0}}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("ggmlpy.memory.cell_table.KV_PAD", 4)  # rings of 16 cells a sequence
    return write_model(tmp_path / "tiny.gguf", MODEL)


def load(path: Path, **options: Any) -> Llama:
    return Llama(path, **{"backend": "reference", "n_ctx": 120, "n_ubatch": 8, **options})


def answer(llm: Llama, prompt: list[int]) -> str:
    return str(llm(prompt, **OPTIONS)["choices"][0]["text"])


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("n_seq_max", [1, 2])
def test_a_beginning_is_read_anew_where_its_window_is_gone(
    path: Path, n_seq_max: int, unified: bool
) -> None:
    first = [(i * 7) % 200 + 10 for i in range(40)]
    reuses = []
    with load(path) as alone:
        for n_common in (0, 12, 21, 32, 33, 39):
            prompt = [*first[:n_common], 5, 6, 7]
            with load(path, n_seq_max=n_seq_max, kv_unified=unified) as llm:
                answer(llm, first)
                got = answer(llm, prompt)
                reuses.append((llm.timings.n_reused, n_common))
            alone.reset()
            assert got == answer(alone, prompt)
    # All of it, or none: the ring holds the end of the first text only.
    assert {n_reused in (0, n_common) for n_reused, n_common in reuses} == {True}
    assert (0, 21) in reuses
    assert (39, 39) in reuses


@pytest.mark.parametrize("failing", range(1, 11))
def test_after_an_interrupt_in_any_step_the_text_is_what_it_is_alone(
    path: Path, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after the step has overwritten a part of the ring. What came before it is reused."""
    prompt = [(i * 7) % 200 + 10 for i in range(40)]
    run, calls = Plan.run, count(1)

    def interrupted(plan: Plan) -> Any:
        logits = run(plan)
        if next(calls) == failing:
            raise KeyboardInterrupt
        return logits

    with load(path) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(Plan, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                answer(llm, prompt)
        got = answer(llm, prompt)
        assert llm.timings.n_reused == min(8 * (failing - 1), 39)
    with load(path) as alone:
        assert got == answer(alone, prompt)
