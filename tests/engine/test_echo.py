"""Prompts that are echoed with the log-probabilities of their tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import Llama, SamplingError, packaged_model
from ggmlpy.engine import engine as engine_module
from ggmlpy.engine.generation import Request, token_logprob
from ggmlpy.sampling import SamplingParams
from ggmlpy.text.tokenizer import Tokenizer
from tests.models.tiny import Tiny, write_model

TEXT = "Once upon a time, Lily sat in a café. It was  cold — so she\n went home."


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(packaged_model(), n_ctx=256) as llm:
        yield llm


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny())


def wanted(llm: Llama, tokens: list[int]) -> NDArray[np.float64]:
    """The log-probabilities after each token, [n_tokens, n_vocab]."""
    logits = llm.logits(tokens).astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


def choice(llm: Llama, prompt: Any, **options: Any) -> dict[str, Any]:
    made = llm(prompt, echo=True, logprobs=3, temperature=0, **options)
    assert isinstance(made, dict)
    shown: dict[str, Any] = made["choices"][0]
    return shown


def test_prompt_tokens_have_the_models_log_probabilities(llm: Llama) -> None:
    tokens = llm.tokenize(TEXT)
    shown = choice(llm, TEXT, max_tokens=4)["logprobs"]
    new = llm.tokenize(TEXT + llm(TEXT, max_tokens=4, temperature=0)["choices"][0]["text"])
    assert len(shown["tokens"]) == len(tokens) - 1 + 4  # without BOS
    want = wanted(llm, new)
    assert shown["token_logprobs"][0] is shown["top_logprobs"][0] is None
    for i, (value, top) in enumerate(
        zip(shown["token_logprobs"][1:], shown["top_logprobs"][1:], strict=True), 1
    ):
        row = want[i]  # of the token before, behind BOS
        assert value == pytest.approx(row[new[i + 1]], abs=1e-9)
        best = np.sort(row)[::-1][:3]
        assert list(top.values())[:3] == pytest.approx(best.tolist(), abs=1e-9)
        assert value in top.values()
        assert len(top) <= 4


def test_offsets_are_where_the_tokens_lie_in_the_text(llm: Llama) -> None:
    shown = choice(llm, TEXT, max_tokens=6)
    text, marks = shown["text"], shown["logprobs"]
    assert text.startswith(TEXT)
    ends = [*marks["text_offset"][1:], len(text)]
    parts = [text[a:b] for a, b in zip(marks["text_offset"], ends, strict=True)]
    assert "".join(parts) == text
    whole = [p for p, t in zip(parts, marks["tokens"], strict=True) if "\ufffd" not in t]
    assert whole == [t for t in marks["tokens"] if "\ufffd" not in t]
    at = TEXT.index("é")  # two tokens, which begin at one place
    assert marks["text_offset"].count(at) == 2


def test_offsets_with_a_tokenizer_that_puts_a_space_before_a_text(tiny_path: Path) -> None:
    """SPM; and after control tokens it puts one too, which the prompt lacks."""
    with Llama(tiny_path, backend="reference") as llm:
        shown = choice(llm, "ab</s>a b", max_tokens=0)
    assert shown["text"] == "ab</s>a b"
    assert shown["logprobs"]["tokens"] == [" a", "b", "</s>", " a", " b"]
    assert shown["logprobs"]["text_offset"] == [0, 1, 2, 6, 7]


def test_without_new_tokens_nothing_is_sampled_and_all_is_as_before_them(llm: Llama) -> None:
    some, none = choice(llm, TEXT, max_tokens=1), choice(llm, TEXT, max_tokens=0)
    assert none["text"] == TEXT
    assert none["finish_reason"] == "length"
    for name, values in none["logprobs"].items():
        assert values == some["logprobs"][name][:-1]
    assert llm("ab", echo=True, max_tokens=0)["choices"][0]["text"] == "ab"  # nor any logprobs
    usage = llm(TEXT, echo=True, max_tokens=0, logprobs=0)["usage"]
    assert usage["completion_tokens"] == 0
    assert usage["prompt_tokens"] == len(llm.tokenize(TEXT))


def test_given_tokens_are_all_reported_so_that_their_places_are_kept(llm: Llama) -> None:
    """As lm-eval indexes them; the BOS is one of the tokens that it sends."""
    tokens = llm.tokenize(TEXT)
    shown, want = choice(llm, tokens, max_tokens=1), wanted(llm, tokens)
    assert len(shown["logprobs"]["token_logprobs"]) == len(tokens) + 1
    values = shown["logprobs"]["token_logprobs"][1:-1]
    assert values == pytest.approx([want[i, t] for i, t in enumerate(tokens[1:])], abs=1e-9)
    assert shown["logprobs"]["tokens"][:2] == ["<s>", "Once"]
    assert shown["logprobs"]["text_offset"][:3] == [0, 0, 4]
    assert shown["text"].startswith(TEXT)
    one = choice(llm, tokens[:1], max_tokens=1)["logprobs"]
    assert one["token_logprobs"][0] is None
    assert len(one["tokens"]) == 2


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("n_ubatch", [4, 512])
def test_chunks_hold_what_the_whole_does(max_tokens: int, n_ubatch: int) -> None:
    with Llama(packaged_model(), n_ctx=256, n_ubatch=n_ubatch) as llm:
        whole = choice(llm, TEXT, max_tokens=max_tokens)
        options: dict[str, Any] = {"echo": True, "logprobs": 3, "temperature": 0}
        chunks = list(llm(TEXT, max_tokens=max_tokens, stream=True, **options))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(c["text"] for c in choices) == whole["text"]
    for name, values in whole["logprobs"].items():
        assert [v for c in choices if c["logprobs"] for v in c["logprobs"][name]] == values
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    assert len(chunks) >= (len(TEXT) // 20 if n_ubatch == 4 else 2)


def test_what_the_cache_holds_changes_nothing_and_is_used_again_afterwards(llm: Llama) -> None:
    llm.reset()
    fresh = choice(llm, TEXT, max_tokens=2)
    again = choice(llm, TEXT, max_tokens=2)
    assert again == fresh
    plain = llm(TEXT, max_tokens=2, temperature=0)["choices"][0]["text"]
    assert llm.timings.n_prompt == 1
    assert TEXT + plain == fresh["text"]


def test_logits_of_a_step_are_bounded(monkeypatch: pytest.MonkeyPatch, tiny_path: Path) -> None:
    """Prompts that are scored run in shorter chunks, and others get their outputs beside them."""
    monkeypatch.setattr(engine_module, "_MOST_LOGITS", 4 * 288 * 5)
    text = "abcdefghijklmnopqrstuvwxyz" * 2
    with Llama(tiny_path, backend="reference", n_seq_max=2, n_ctx=256) as llm:
        seen: list[int] = []
        run = llm.engine.context.run_batch

        def counted(batch: Any, **more: Any) -> Any:
            seen.append(sum(batch.outputs))
            return run(batch, **more)

        monkeypatch.setattr(llm.engine.context, "run_batch", counted)
        found = list(
            llm.generate([text, text[::-1]], max_tokens=3, echo=True, logprobs=1, temperature=0)
        )
        assert 5 <= max(seen) <= 5 + 2
    monkeypatch.undo()
    with Llama(tiny_path, backend="reference") as alone:
        for prompt, one in zip([text, text[::-1]], found, strict=True):
            same = alone(prompt, max_tokens=3, echo=True, logprobs=1, temperature=0)
            assert one["choices"] == same["choices"]


def test_preempted_prompts_report_each_token_once(tiny_path: Path) -> None:
    prompts = ["abcdefghijklmnopqrst" + c for c in "uvwx"]
    options: dict[str, Any] = {
        "max_tokens": 40, "temperature": 0, "echo": True, "logprobs": 0,
        "logit_bias": {2: -1000.0},
    }  # fmt: skip
    with Llama(
        tiny_path, backend="cpu", n_seq_max=4, n_ctx=120, kv_layout="unified", n_ubatch=16
    ) as llm:
        got = list(llm.generate(prompts, **options))
        assert llm.timings.n_preempted > 0
    with Llama(tiny_path, backend="cpu") as alone:
        for prompt, one in zip(prompts, got, strict=True):
            assert one["choices"] == alone(prompt, **options)["choices"]


def test_rows_go_to_a_callback_and_its_error_ends_its_request_only(llm: Llama) -> None:
    tokens = llm.tokenize(TEXT)
    rows: dict[int, NDArray[np.float32]] = {}

    def keep(i: int, logits: NDArray[np.float32]) -> None:
        rows[i] = logits.copy()

    def fail(i: int, logits: NDArray[np.float32]) -> None:
        raise ValueError(f"at {i}")

    greedy = SamplingParams(temperature=0)
    first = llm.engine.add(Request(tokens, 0, greedy, score_from=5, on_prompt_logits=keep))
    second = llm.engine.add(Request(tokens, 1, greedy, score_from=7, on_prompt_logits=fail))
    outputs = []
    while llm.engine.has_work:
        outputs += llm.engine.step()
    errors = [o.piece for o in outputs if o.id == second]
    assert [str(e) for e in errors] == ["at 7"]
    scored = [p.token for o in outputs if o.id == first for p in o.piece.prompt_logprobs]  # type: ignore[union-attr]
    assert scored == tokens[5:]
    assert sorted(rows) == list(range(5, len(tokens)))
    want = llm.logits(tokens)
    for i, row in rows.items():
        np.testing.assert_array_equal(row, want[i - 1])


# --- a row of logits ---


@pytest.mark.parametrize("n", [0, 1, 3, 7, 8, 9])
def test_the_most_likely_are_those_of_a_stable_sort(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(50):
        logits = rng.integers(-3, 3, 8).astype(np.float32)  # with equal ones
        logits[rng.integers(8)] = -np.inf
        found = token_logprob(logits, 4, n)
        with np.errstate(divide="ignore"):
            want = np.log(np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum())
        order = np.argsort(-logits, kind="stable")
        assert list(found.top) == order[:n].tolist()
        assert list(found.top.values()) == pytest.approx(want[order[:n]].tolist())
        assert found.logprob == pytest.approx(want[4])
        assert found.is_greedy == (order[0] == 4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(bad: float) -> None:
    logits = np.zeros(5, np.float32)
    logits[3] = bad
    with pytest.raises(SamplingError, match=r"the logit of token 3 is (nan|inf): logits must be"):
        token_logprob(logits, 0, 1)
    with pytest.raises(SamplingError, match="not all of them -inf"):
        token_logprob(np.full(5, -np.inf, np.float32), 0, 1)


def test_the_packaged_tokenizer_splits_a_character() -> None:
    """What the test of offsets relies on."""
    tokenizer = Tokenizer.from_gguf(packaged_model())
    assert len(tokenizer.encode("é")) == 2
