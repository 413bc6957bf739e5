"""Speculative decoding: the same tokens as without, whatever is drafted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy import Llama, packaged_model
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.draft import DraftLength
from ggmlpy.engine.generation import Piece
from ggmlpy.errors import SamplingError
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.runtime.plans import Plan
from tests.draft.answers import NO_END, PROMPT, answers, tokens_of
from tests.models.tiny import Tiny, write_model

N_TOKENS = 40

EACH_LAYOUT = pytest.mark.parametrize("kv_layout", LAYOUTS)


@dataclass
class Known:
    """Drafts from answers that are known, changed by `spoil`, which gets what comes next."""

    spoil: Callable[[list[int]], list[int]] = lambda truth: truth
    texts: list[list[int]] = field(default_factory=list)  # prompts with their answers

    def __call__(self, tokens: NDArray[np.intc]) -> list[int]:
        given = tokens.tolist()
        for text in self.texts:
            if text[: len(given)] == given:
                return self.spoil(text[len(given) :])
        return []


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 1.0, "seed": 4},
    "all steps": {
        "temperature": 1.2, "seed": 5, "repeat_penalty": 1.3, "frequency_penalty": 0.2,
        "dry_multiplier": 0.8, "xtc_probability": 0.3, "dynatemp_range": 0.3,
    },
    "mirostat": {"mirostat_mode": 2, "seed": 6},
    "log-probabilities": {"temperature": 0.7, "seed": 7, "logprobs": 3},
    "a stop string": {"temperature": 0, "stop": ["up, and then it"]},
    "biases": {"temperature": 0.5, "seed": 8, "logit_bias": {400: 3.0, 401: -9.0}},
}  # fmt: skip


@pytest.fixture(scope="module")
def known() -> Known:
    return Known()


@pytest.fixture(scope="module")
def drafted(known: Known) -> Iterator[Llama]:
    with Llama(packaged_model(), n_ctx=128, n_threads=1, draft_model=known) as llm:
        yield llm


@dataclass(frozen=True)
class Spoiled:
    """Changes of a known continuation, by a seed: too long or short, wrong tokens, nothing."""

    seed: int

    def __call__(self, truth: list[int]) -> list[int]:
        rng = random.Random(f"{self.seed} {len(truth)}")
        draft = [*truth[: rng.randrange(20)], *rng.choices(range(280), k=rng.randrange(3))]
        for i in range(len(draft)):
            if rng.random() < 0.15:
                draft[i] = rng.randrange(280)
        return draft


@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_draft_gives_the_same_pieces(
    plain: Llama, drafted: Llama, known: Known, name: str, seed: int
) -> None:
    """Tokens, texts, the end, and log-probabilities to the last bit."""
    prompt, options = plain.tokenize(PROMPT), {"max_tokens": N_TOKENS, **OPTIONS[name]}
    (expected,) = answers(plain, [prompt], **options)
    known.texts = [prompt + tokens_of(expected)]
    known.spoil = Spoiled(seed)
    assert answers(drafted, [prompt], **options) == [expected]


@pytest.mark.parametrize("name", OPTIONS)
def test_right_drafts_save_steps(plain: Llama, drafted: Llama, known: Known, name: str) -> None:
    prompt, options = plain.tokenize(PROMPT), {"max_tokens": N_TOKENS, **OPTIONS[name]}
    (expected,) = answers(plain, [prompt], **options)
    n_drawn = len(tokens_of(expected))
    known.texts, known.spoil = [prompt + tokens_of(expected)], lambda truth: truth
    timings = drafted.timings
    before = timings.n_drafted, timings.n_accepted, timings.n_decoded, drafted.engine._n_steps
    assert answers(drafted, [prompt], **options) == [expected]
    n_drafted, n_accepted, n_decoded = (
        now - then
        for now, then in zip(
            (timings.n_drafted, timings.n_accepted, timings.n_decoded), before, strict=False
        )
    )
    assert n_drafted == n_accepted
    assert n_accepted >= n_drawn - 8
    assert (expected[-1][2] == "stop") == (name == "a stop string")
    assert drafted.engine._n_steps - before[-1] <= 8
    assert n_drawn - 1 <= n_decoded <= n_drawn


@pytest.mark.parametrize("max_tokens", [None, 1, 2])
def test_the_end_of_the_context(max_tokens: int | None) -> None:
    prompt = [1, *range(300, 320)]
    with Llama(packaged_model(), n_ctx=40, n_threads=1) as llm:
        options = {"temperature": 0, "max_tokens": max_tokens, "logit_bias": NO_END}
        (expected,) = answers(llm, [prompt], **options)
    known = Known(lambda truth: [*truth, 5, 6, 7], [prompt + tokens_of(expected)])
    with Llama(packaged_model(), n_ctx=40, n_threads=1, draft_model=known) as llm:
        assert answers(llm, [prompt], **options) == [expected]
        assert llm.timings.n_drafted == llm.timings.n_accepted


def test_callbacks_see_what_they_see_without(plain: Llama, drafted: Llama, known: Known) -> None:
    prompt = plain.tokenize(PROMPT)
    runs: list[Any] = []
    for llm in (plain, drafted):
        seen: list[Any] = []

        def note(
            tokens: Sequence[int], logits: NDArray[np.float32], seen: list[Any] = seen
        ) -> NDArray[np.float32]:
            seen.append((list(tokens), logits.tobytes()))
            return logits

        def stops(tokens: Sequence[int], logits: NDArray[np.float32]) -> bool:
            return len(tokens) == len(prompt) + 21

        options = {"temperature": 0, "logits_processor": note, "stopping_criteria": stops}
        (answer,) = answers(llm, [prompt], max_tokens=N_TOKENS, **options)
        known.texts, known.spoil = [prompt + tokens_of(answer)], Spoiled(3)
        runs.append((answer, seen))
        assert len(tokens_of(answer)) == 21
    assert runs[0] == runs[1]


def test_an_error_of_a_callback_comes_after_the_pieces_before_it(
    plain: Llama, drafted: Llama, known: Known
) -> None:
    prompt = plain.tokenize(PROMPT)
    (expected,) = answers(plain, [prompt], temperature=0, max_tokens=N_TOKENS)
    known.texts, known.spoil = [prompt + tokens_of(expected)], lambda truth: truth

    def fail(tokens: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if len(tokens) == len(prompt) + 7:
            raise SamplingError("enough")
        return logits

    drafted.engine.add(drafted.request(prompt, temperature=0, logits_processor=fail))
    pieces = []
    while drafted.engine.has_work:
        pieces += [output.piece for output in drafted.engine.step()]
    *before, last = pieces
    assert [p.token for p in before if isinstance(p, Piece)] == tokens_of(expected)[:7]
    assert isinstance(last, SamplingError)
    assert answers(drafted, [prompt], temperature=0, max_tokens=N_TOKENS) == [expected]


def test_grammars(plain: Llama, drafted: Llama, known: Known) -> None:
    """With stretches that the grammar forces, which a draft may have too, or not."""
    prompt = plain.tokenize(PROMPT)
    pattern = 'root ::= " was" [a-z ]+ "; and then they all went to the park" [a-z ]* "."'
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 0.8, "seed": 2, "grammar": pattern}
    (expected,) = answers(plain, [prompt], **options)
    known.texts = [prompt + tokens_of(expected)]
    for spoil in (Known().spoil, Spoiled(1), Spoiled(2), Spoiled(3)):
        known.spoil = spoil
        assert answers(drafted, [prompt], **options) == [expected]


@EACH_LAYOUT
@pytest.mark.parametrize("n_ctx", [100, 400])
def test_many_sequences(kv_layout: str, n_ctx: int) -> None:
    """Beside prompts of others, and preempted where the cache is too small."""
    n_ctx_seq = 100 if kv_layout != "split" else n_ctx // 4
    if kv_layout == "split" and n_ctx == 100:
        n_ctx, n_ctx_seq = 400, 100
    options: dict[str, Any] = {
        "n_seq_max": 4, "n_threads": 1, "n_ctx": n_ctx, "n_ctx_seq": n_ctx_seq,
    }  # fmt: skip
    prompts = [[1, *random.Random(i).choices(range(300, 500), k=5 + 4 * i)] for i in range(7)]
    asked: dict[str, Any] = {"max_tokens": 45, "temperature": 0.5, "logit_bias": NO_END}
    asked["each"] = [{"seed": i} for i in range(7)]
    with Llama(packaged_model(), kv_layout=kv_layout, **options) as llm:
        expected = answers(llm, prompts, **asked)
    texts = [p + tokens_of(a) for p, a in zip(prompts, expected, strict=True)]
    for spoil in (Known().spoil, Spoiled(9)):
        known = Known(spoil, texts)
        with Llama(packaged_model(), kv_layout=kv_layout, draft_model=known, **options) as llm:
            assert answers(llm, prompts, **asked) == expected
            assert llm.timings.n_accepted > 30
            if kv_layout != "split" and n_ctx == 100:
                assert llm.timings.n_preempted


def test_drafts_displace_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an idle sequence holds stays, where the next token fits and its draft does not."""
    monkeypatch.setattr(DraftLength, "next", lambda length, n_most: n_most)  # in every step
    beginning, options = [1, *range(300, 340)], {"temperature": 0, "logit_bias": NO_END}
    sizes: dict[str, Any] = {"n_ctx": 64, "n_seq_max": 2, "kv_unified": True, "n_threads": 1}
    with Llama(packaged_model(), draft_model=lambda tokens: [7] * 16, **sizes) as llm:
        answers(llm, [beginning], max_tokens=1, **options)
        n_left = 64 - len(beginning)
        options["stopping_criteria"] = lambda tokens, logits: len(tokens) == n_left
        answers(llm, [[400, 401, 402]], max_tokens=None, **options)
        assert llm.engine.context.memory.n_used() == 64
        assert [len(slot.tokens) for slot in llm.engine.slots.all] == [len(beginning), n_left]
        assert llm.timings.n_drafted > n_left


def test_steps_bound_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a few sequences gets its share of what a step may check; many get none."""
    truth = {}
    for n in (1, 4, 16, 32):
        sizes: list[int] = []
        options: dict[str, Any] = {"n_seq_max": n, "n_ctx_seq": 64, "n_threads": 1, "n_ubatch": 64}
        with Llama(packaged_model(), draft_model=lambda t: [7] * 40, **options) as llm:
            run = llm.engine.context.run_batch

            def counted(batch: Any, run: Any = run, sizes: list[int] = sizes) -> Any:
                sizes.append(len(batch))
                return run(batch)

            monkeypatch.setattr(llm.engine.context, "run_batch", counted)
            answers(llm, [[1, 400 + i] for i in range(n)], max_tokens=6, temperature=0)
        truth[n] = max(sizes[1:])
    assert truth == {1: 5, 4: 20, 16: 32, 32: 32}


GEMMA = Tiny("gemma3", n_layer=3, window=5, windowed=(0, 2), qk_norm=True, post_norms=True)


@EACH_LAYOUT
def test_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv_layout: str) -> None:
    """Rings so small that drafts overwrite what is seen no longer."""
    monkeypatch.setattr("ggmlpy.memory.cell_table.KV_PAD", 4)
    path = write_model(tmp_path / "tiny.gguf", GEMMA)
    options: dict[str, Any] = {
        "n_seq_max": 2, "n_ctx": 200, "n_ctx_seq": 100, "n_ubatch": 24, "n_threads": 1,
    }  # fmt: skip
    asked: dict[str, Any] = {"max_tokens": 50, "temperature": 0, "logit_bias": NO_END}
    prompts = [[(i * 7) % 200 + 10 for i in range(40)], [9, 8, 7]]
    with Llama(path, kv_layout=kv_layout, **options) as llm:
        expected = answers(llm, prompts, **asked)
    texts = [p + tokens_of(a) for p, a in zip(prompts, expected, strict=True)]
    for spoil in (Known().spoil, Spoiled(5)):
        with Llama(path, kv_layout=kv_layout, draft_model=Known(spoil, texts), **options) as llm:
            assert answers(llm, prompts, **asked) == expected
            assert llm.timings.n_accepted > 20


@pytest.mark.placed
@pytest.mark.parametrize("name", ["greedy", "drawn", "biases", "all steps"])
def test_logits_on_a_device(tiny_path: Path, name: str) -> None:
    """Of which only the largest come to the host where these decide the tokens."""
    prompt = [5, 6, 7]
    options = {"max_tokens": 20, **OPTIONS[name], "logit_bias": {**NO_END, 40: 2.0}}
    with Llama(tiny_path, backend=ReferenceBackend(), n_ctx=64) as llm:
        (expected,) = answers(llm, [prompt], **options)
    for spoil in (Known().spoil, Spoiled(4)):
        known = Known(spoil, [prompt + tokens_of(expected)])
        backend = [MockBackend(), ReferenceBackend()]
        with Llama(tiny_path, backend=backend, n_ctx=64, draft_model=known) as llm:
            (got,) = answers(llm, [prompt], **options)
            assert tokens_of(got) == tokens_of(expected)
            assert llm.timings.n_accepted > 0


@pytest.mark.parametrize("failing", range(1, 9))
def test_after_an_interrupt_texts_are_what_they_were(
    plain: Llama, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    prompt = plain.tokenize(PROMPT)
    (expected,) = answers(plain, [prompt], temperature=0, max_tokens=N_TOKENS)
    run, n_runs = Plan.run, 0

    def interrupted(plan: Plan) -> None:
        nonlocal n_runs
        run(plan)
        n_runs += 1
        if n_runs == failing:
            raise KeyboardInterrupt

    known = Known(Spoiled(8), [prompt + tokens_of(expected)])
    with Llama(packaged_model(), n_ctx=128, n_threads=1, draft_model=known) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(Plan, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                answers(llm, [prompt], temperature=0, max_tokens=N_TOKENS)
        llm.engine.reset()
        assert answers(llm, [prompt], temperature=0, max_tokens=N_TOKENS) == [expected]
