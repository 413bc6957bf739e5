"""Completions as llama-cpp-python's scripts ask for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ggmlpy import Llama as Own
from ggmlpy import packaged_model
from ggmlpy.compat.llama_cpp import (
    Llama,
    LogitsProcessorList,
)
from tests.compat.models import PROMPT


def test_a_completion(llm: Llama, own: Own) -> None:
    result = llm(PROMPT, max_tokens=12, temperature=0.0, echo=True)
    expected = own(PROMPT, max_tokens=12, temperature=0, echo=True)
    assert result["choices"] == expected["choices"]
    assert result["usage"] == expected["usage"]
    assert result["object"] == "text_completion"
    assert result["model"] == str(packaged_model())
    assert result["id"].startswith("cmpl-")


def test_arguments_by_position(llm: Llama) -> None:
    result = llm.create_completion(PROMPT, None, 3, 0.0, 0.9, 0.0, 1.0, None, True)
    assert result["choices"][0]["text"].startswith(PROMPT)
    assert result["usage"]["completion_tokens"] == 3


def test_chunks_end_with_one_that_says_why(llm: Llama) -> None:
    whole = llm(PROMPT, max_tokens=9, temperature=0)["choices"][0]
    chunks = list(llm(PROMPT, max_tokens=9, temperature=0, stream=True))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert (choices[-1]["text"], choices[-1]["finish_reason"]) == ("", "length")
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_no_limit_of_tokens_is_the_rest_of_the_context(llm: Llama) -> None:
    for none in (None, 0, -1):
        usage = llm(PROMPT, max_tokens=none, temperature=0, logit_bias={1: -1e9})["usage"]
        assert usage["total_tokens"] == 128


def test_a_prompt_that_fills_the_context(llm: Llama) -> None:
    with pytest.raises(ValueError, match=r"Requested tokens \(128\) exceed context window of 128"):
        llm([5] * 128)


@pytest.mark.parametrize("stop", [None, "€?", "\U0001f600\U0001f600"])
def test_no_character_is_cut(llm: Llama, stop: str | None) -> None:
    text = "a\u00e9b€\U0001f600\U0001f601c"
    tokens = llm.tokenize(text.encode(), add_bos=False)
    assert len(tokens) > 10
    n_prompt = len(llm.tokenize(PROMPT.encode()))

    def spell(seen: Any, logits: Any) -> Any:
        logits[:] = -np.inf
        logits[[*tokens, llm.token_eos()][len(seen) - n_prompt]] = 0
        return logits

    options: dict[str, Any] = {"logits_processor": LogitsProcessorList([spell]), "stop": stop}
    for n in range(1, len(tokens) + 1):
        n_whole = next(k for k in range(n, len(tokens) + 1) if is_whole(llm.detokenize(tokens[:k])))
        expected = llm.detokenize(tokens[:n_whole]).decode()
        answer = llm(PROMPT, max_tokens=n, **options)
        assert answer["choices"][0]["text"] == expected
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == n_whole
        assert llm.n_tokens == n_prompt + n_whole - 1
        chunks = list(llm(PROMPT, max_tokens=n, stream=True, **options))
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def is_whole(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("behind", ["eos", "context"])
def test_a_character_that_is_not_completed_is_left_out(llm: Llama, behind: str) -> None:
    (first, *_) = llm.tokenize("\U0001f600".encode(), add_bos=False)
    n_prompt = llm.n_ctx() - 2 if behind == "context" else 3

    def spell(seen: Any, logits: Any) -> Any:
        logits[:] = -np.inf
        token = [40, first, llm.token_eos(), 40][len(seen) - n_prompt]
        logits[token] = 0
        return logits

    answer = llm([3] * n_prompt, max_tokens=2, logits_processor=LogitsProcessorList([spell]))
    choice = answer["choices"][0]
    assert choice["text"] == llm.detokenize([40]).decode()
    assert choice["finish_reason"] == ("stop" if behind == "eos" else "length")


def test_a_second_bos_is_told(llm: Llama) -> None:
    with pytest.warns(RuntimeWarning, match="begins with two '<s>'"):
        llm([llm.token_bos()] * 2, max_tokens=1)


def test_a_suffix_stands_behind_the_text_of_a_model_without_tokens_for_gaps(llm: Llama) -> None:
    text = llm.create_completion(PROMPT, suffix=" END", max_tokens=3, temperature=0)
    assert text["choices"][0]["text"].endswith(" END")


def test_log_probabilities_need_logits_of_all_tokens(llm: Llama, scored: Llama) -> None:
    with pytest.raises(ValueError, match="logits_all"):
        llm(PROMPT, logprobs=1)
    choice = scored("The dog", max_tokens=4, temperature=0, logprobs=2)["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    starts = [len("The dog" + "".join(logprobs["tokens"][:i])) for i in range(4)]
    assert logprobs["text_offset"] == starts
    for token, value, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == value == max(top.values())
        assert len(top) == 2


def test_log_probabilities_of_the_prompt(scored: Llama, own: Own) -> None:
    prompt = "The dog ran to the"
    result = scored(prompt, max_tokens=2, temperature=0, logprobs=1, echo=True)["choices"][0]
    logprobs = result["logprobs"]
    tokens = scored.tokenize(prompt.encode())
    assert "".join(logprobs["tokens"]) == result["text"]
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    exact = own.logits(tokens).astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    expected = [exact[i, token] for i, token in enumerate(tokens[2:], 1)]
    assert np.allclose(logprobs["token_logprobs"][1 : len(tokens) - 1], expected, atol=1e-6)
    starts = [result["text"].index(token, at) for token, at in zip(
        logprobs["tokens"], logprobs["text_offset"], strict=True)]  # fmt: skip
    assert starts == logprobs["text_offset"]
