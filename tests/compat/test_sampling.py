"""Stopping criteria, logits processors, penalties, seeds and mirostat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ggmlpy import ArgumentError
from ggmlpy import Llama as Own
from ggmlpy.compat.llama_cpp import (
    Llama,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteriaList,
)
from tests.compat.models import PROMPT, make, text_of


def test_criteria_see_what_was_run(llm: Llama) -> None:
    n_prompt = len(llm.tokenize(PROMPT.encode()))
    seen: list[int] = []

    def long_enough(tokens: Any, logits: Any) -> bool:
        assert (tokens.dtype, logits.shape) == (np.intc, (llm.n_vocab(),))
        seen.append(len(tokens))
        return len(tokens) >= n_prompt + 4

    criteria = StoppingCriteriaList([long_enough])
    result = llm(PROMPT, max_tokens=50, temperature=0, stopping_criteria=criteria)
    assert seen == list(range(n_prompt, n_prompt + 5))
    assert result["usage"]["completion_tokens"] == 4
    assert result["choices"][0]["finish_reason"] == "stop"


def test_processors_get_arrays_and_run_in_turn(llm: Llama) -> None:
    first = llm.tokenize(b" the", add_bos=False)[0]

    def only_one(tokens: Any, logits: Any) -> Any:
        assert tokens.dtype == np.intc
        logits[:] = -np.inf
        logits[first] = 0
        return logits

    def doubled(tokens: Any, logits: Any) -> Any:
        return logits * 2

    processors = LogitsProcessorList([only_one, doubled])
    result = llm(PROMPT, max_tokens=3, logits_processor=processors)
    assert result["choices"][0]["text"] == " the the the"


def test_processors_in_a_plain_list(llm: Llama) -> None:
    def only(token: int) -> Any:
        def process(tokens: Any, logits: Any) -> Any:
            logits[np.arange(len(logits)) != token] = -np.inf
            return logits

        return process

    plain: Any = [only(40)]
    assert (
        llm(PROMPT, max_tokens=2, logits_processor=plain)["choices"][0]["text"]
        == llm.detokenize([40, 40]).decode()
    )
    generator = llm.generate([3], logits_processor=iter(plain))
    assert [next(generator), next(generator)] == [40, 40]
    assert llm.sample(logits_processor=plain) == 40


def test_the_end_can_be_put_off(llm: Llama) -> None:
    ends = LogitsProcessorList(
        [lambda tokens, logits: np.where(np.arange(len(logits)) == 1, 99, logits)]
    )
    assert llm(PROMPT, max_tokens=5, logits_processor=ends)["usage"]["completion_tokens"] == 0
    ends.append(MinTokensLogitsProcessor(3, llm.token_eos()))
    assert llm(PROMPT, max_tokens=5, logits_processor=ends)["usage"]["completion_tokens"] == 3


def test_penalties_leave_the_prompt_out(llm: Llama, own: Own) -> None:
    prompt = PROMPT + " there was a cat"
    text = llm(prompt, max_tokens=20, temperature=0, repeat_penalty=1.5)["choices"][0]["text"]
    tokens, answer = llm.tokenize(prompt.encode()), list[int]()
    for _ in range(20):
        logits = own.logits(tokens + answer)[-1].astype(np.float64)
        for token in set(answer):
            logits[token] *= 1.5 if logits[token] <= 0 else 1 / 1.5
        answer.append(int(logits.argmax()))
    assert text == llm.detokenize(answer).decode()


def test_a_seed_decides_the_texts_that_follow() -> None:
    with make(seed=7) as a, make(seed=7) as b, make(seed=0xFFFFFFFF) as c, make() as d:
        texts = [text_of(a), text_of(a)]
        assert texts == [text_of(b), text_of(b)]
        assert texts[0] != texts[1]
        assert len({text_of(c), text_of(c), text_of(d), text_of(d)}) == 4
        assert text_of(c, seed=3) == text_of(d, seed=3)
        d.set_seed(3)
        c.set_seed(3)
        assert text_of(c) == text_of(d)


@pytest.mark.parametrize("seed", [1.5, "1", 1j, np.array([1, 2])], ids=str)
def test_a_seed_that_is_no_number_changes_nothing(seed: Any) -> None:
    with make(seed=7) as a, make(seed=7) as b:
        with pytest.raises(ArgumentError, match=r"seed is .*: it must be a whole number"):
            text_of(a, seed=seed)
        assert text_of(a) == text_of(b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": "0.8"}, "temperature is a str: it must be a number"),
        ({"max_tokens": "8"}, "max_tokens is a str: it must be a whole number, or None"),
        ({"max_tokens": [8]}, "max_tokens is a list: it must be a whole number, or None"),
        ({"logprobs": "3"}, "logprobs is a str: it must be a whole number, or None"),
        ({"suffix": 3}, "suffix is an int: it must be a string, or None"),
        ({"logit_bias": [1]}, "logit_bias is a list: it must be a dict of token ids"),
        ({"logit_bias": {"a": 1}}, "logit_bias is .*: it must be a dict of token ids and numbers"),
        ({"logit_bias": {1: None}}, "logit_bias is .*: it must be a dict of token ids and numb"),
        ({"stopping_criteria": [len]}, "stopping_criteria is a list: .* StoppingCriteriaList"),
    ],
)
def test_arguments_of_another_kind_are_refused_in_words(
    llm: Llama, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        llm(PROMPT, **{"max_tokens": 2} | options)
    of_openai: dict[str, Any] = {"logit_bias": {"5": "1"}, "temperature": np.float64(1)}
    assert llm(PROMPT, max_tokens=2, **of_openai)["choices"]


def test_mirostat_and_the_probabilities_of_the_model(llm: Llama, own: Own) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "seed": 4}
    with_mirostat = llm(PROMPT, mirostat_mode=2, mirostat_tau=3.0, temperature=0.3, **options)
    expected = own(PROMPT, mirostat_mode=2, mirostat_tau=3.0, temperature=1.0, **options)
    assert with_mirostat["choices"] == expected["choices"]
    unfiltered = llm(PROMPT, temperature=-1.0, top_k=1, **options)
    expected = own(PROMPT, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, **options)
    assert unfiltered["choices"] == expected["choices"]
    with pytest.raises(ValueError, match="mirostat_mode"):
        llm(PROMPT, mirostat_mode=3)
