"""Scores of given texts: the model's log-probabilities, whatever is scored together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy import ArgumentError, BadBatch, Llama, packaged_model
from ggmlpy.backends import get_backend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.engine.scoring import Score
from ggmlpy.memory.layouts import LAYOUTS
from tests.models.tiny import Tiny, write_model

PROMPT = "Once upon a time, there was a little girl named Lily. She loved to play outside in the"
ENDINGS = [" park.", " rain with her dog", " garden", "", " p", " xylophone, every day."]


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(packaged_model(), n_seq_max=3, n_ctx_seq=128) as llm:
        yield llm


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny())


def wanted(llm: Llama, tokens: list[int], first: int) -> tuple[list[float], bool]:
    logits = llm.logits(tokens).astype(np.float64)
    rows = logits - np.log(np.exp(logits - logits.max()).sum(axis=1, keepdims=True)) - logits.max()
    places = range(first, len(tokens))
    greedy = all(logits[i - 1].argmax() == tokens[i] for i in places)
    return [float(rows[i - 1, tokens[i]]) for i in places], greedy


def test_scores_are_the_models(llm: Llama) -> None:
    n = len(llm.tokenize(PROMPT))
    for ending, score in zip(ENDINGS, llm.score(PROMPT, ENDINGS), strict=True):
        tokens = llm.tokenize(PROMPT + ending)
        assert tokens[:n] == llm.tokenize(PROMPT)
        values, greedy = wanted(llm, tokens, n)
        assert score.tokens == tokens[n:]
        assert score.token_logprobs == pytest.approx(values, abs=1e-9)
        assert score.logprob == pytest.approx(sum(values), abs=1e-8)
        assert score.is_greedy == greedy
    answer = llm(PROMPT, max_tokens=5, temperature=0)["choices"][0]["text"]
    assert llm.score(PROMPT, [answer])[0].is_greedy


def test_a_token_across_the_border_is_scored(llm: Llama) -> None:
    """The text is tokenized as a whole."""
    (score,) = llm.score("Once upon a ti", ["me"])
    assert llm.tokenizer.decode(score.tokens, start=False) == " time"


def test_whole_texts_are_scored_after_bos_or_their_first_token(llm: Llama) -> None:
    prompts: list[str | list[int]] = [PROMPT, [5, 6, 7], [9]]
    (text, tokens, one) = llm.score(prompts)
    every = llm.tokenize(PROMPT)
    assert text.tokens == every[1:]
    assert text.token_logprobs == pytest.approx(wanted(llm, every, 1)[0], abs=1e-9)
    assert tokens.tokens == [6, 7]
    assert one == Score([], [], True)
    assert llm.score(PROMPT) == [text]
    assert llm.score([]) == llm.score(PROMPT, []) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_do_not_depend_on_what_is_scored_together(tiny_path: Path, layout: str) -> None:
    rng = np.random.default_rng(7)
    beginnings = [rng.integers(3, 288, n).tolist() for n in (20, 35, 1)]
    pairs = []
    for i in rng.integers(0, 3, 12):
        cut = int(rng.integers(1, len(beginnings[i]) + 1))
        pairs.append((beginnings[i][:cut], rng.integers(3, 288, rng.integers(1, 9)).tolist()))
    prompts, endings = [p for p, _ in pairs], [e for _, e in pairs]
    with Llama(tiny_path, n_seq_max=4, n_ctx_seq=64, n_ubatch=16, kv_layout=layout) as llm:
        together = llm.score(prompts, endings)
        next(llm.generate([[5, 6, 7]], max_tokens=3))
        assert llm.score(prompts[::-1], endings[::-1]) == together[::-1]
    with Llama(tiny_path) as alone:
        for prompt, ending, score in zip(prompts, endings, together, strict=True):
            alone.reset()
            assert alone.score([prompt], [ending]) == [score]


def test_a_device_gives_the_same_bits(tiny_path: Path) -> None:
    rng = np.random.default_rng(8)
    prompts, endings = (
        [rng.integers(3, 288, rng.integers(2, n)).tolist() for _ in range(6)] for n in (30, 9)
    )
    with Llama(tiny_path, n_threads=2) as llm:
        want = llm.score(prompts, endings)
    cpu = get_backend("cpu", 2)
    device = [MockBackend(seed=2, inner=cpu), cpu]
    with Llama(tiny_path, backend=device, n_seq_max=3, n_ctx_seq=64, n_ubatch=16) as llm:
        assert llm.score(prompts, endings) == want


def test_what_prompts_share_is_run_once(llm: Llama) -> None:
    llm.reset()
    llm.score([PROMPT] * 6, [f" {c}" for c in "abcdef"])
    n = len(llm.tokenize(PROMPT))
    assert llm.timings.n_prompt < n + 6 * 3


def test_a_prompt_as_long_as_the_context_has_one_more_token_that_is_scored(llm: Llama) -> None:
    n = llm.n_ctx_seq()
    assert len(llm.score([[5] * n], [[6]])[0].tokens) == 1
    with pytest.raises(BadBatch, match=rf"text 1: .* too long: {n + 2} tokens, a sequence"):
        llm.score([[5], [5] * n], [[6], [6, 7]])


@pytest.mark.parametrize(
    ("prompts", "endings", "message"),
    [
        (["a", "b", "c"], ["d", "e"], "there are 3 prompts and 2 continuations"),
        ("a", "b", "continuations is a str: it must be a list"),
        ("a", [[1]], "prompt 0 is a str, its continuation a list: both must be texts"),
        ([[1], "a"], ["b", "c"], "prompt 0 is a list, its continuation a str"),
        (b"a", ["b"], "prompts is a bytes: it must be a text"),
        (None, ["b"], "prompts is None: it must be a text"),
    ],
)
def test_what_does_not_match_is_told(llm: Llama, prompts: Any, endings: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        llm.score(prompts, endings)


def test_a_first_token_has_no_probability(llm: Llama) -> None:
    assert len(llm.score("", ["b"])[0].tokens) == 1  # after BOS
    llm.tokenizer.add_bos = False
    try:
        with pytest.raises(BadBatch, match="prompt 0 and its continuation: the first token"):
            llm.score("", ["b"])
    finally:
        llm.tokenizer.add_bos = True


# --- the way of lm-eval's local-completions ---


def lm_eval_score(response: dict[str, Any], n_context: int) -> tuple[float, bool]:
    """As its `parse_logprobs` reads a response: the last token is the one that was generated."""
    (choice,) = response["choices"]
    values = choice["logprobs"]["token_logprobs"][n_context:-1]
    tops = choice["logprobs"]["top_logprobs"][n_context:-1]
    greedy = all(v == max(top.values()) for v, top in zip(values, tops, strict=True))
    return sum(values), greedy


@pytest.mark.parametrize("as_text", [False, True])
def test_what_lm_eval_computes_from_completions(llm: Llama, as_text: bool) -> None:
    """It sends token ids, or a text; the tokenizer's BOS is among the ids, and not of the text."""
    greedy = llm(PROMPT, max_tokens=4, temperature=0)["choices"][0]["text"]
    for ending, score in zip(
        [*ENDINGS, greedy], llm.score(PROMPT, [*ENDINGS, greedy]), strict=True
    ):
        request: dict[str, Any] = {
            "model": "any", "prompt": PROMPT + ending if as_text else llm.tokenize(PROMPT + ending),
            "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True,
        }  # fmt: skip
        n_context = len(llm.tokenize(PROMPT)) - as_text
        response = llm.create_completion(**request)
        assert lm_eval_score(response, n_context) == (score.logprob, score.is_greedy)
