"""What the dicts of completions and chat hold, for tokens that are known beforehand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from ggmlpy import Llama
from tests.engine.test_forced_tokens import BYTE, A, B, X, forced
from tests.models.tiny import Tiny, write_model

N_VOCAB = 288
LIKELY = 1 - math.log(math.e + N_VOCAB - 1)  # log-probability of a forced token
MESSAGES = [{"role": "user", "content": "b"}]


@pytest.fixture
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    path = write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny(n_vocab=N_VOCAB))
    with Llama(path, backend="null", seed=7) as llm:
        yield llm


def options(*tokens: int, **others: Any) -> dict[str, Any]:
    return {
        "max_tokens": len(tokens), "temperature": 0, "logits_processor": forced([*tokens]), **others
    }  # fmt: skip


def chat(llm: Llama, **options: Any) -> dict[str, Any]:
    made = llm.create_chat_completion(MESSAGES, **options)
    assert isinstance(made, dict)
    choice: dict[str, Any] = made["choices"][0]
    return choice


def chat_chunks(llm: Llama, **options: Any) -> list[dict[str, Any]]:
    return [c["choices"][0] for c in llm.create_chat_completion(MESSAGES, stream=True, **options)]


def test_logprobs_say_where_each_token_begins(llm: Llama) -> None:
    whole = llm([A, B], **options(X, A, B, logprobs=1))["choices"][0]
    assert whole["text"] == "xab"
    assert whole["logprobs"]["tokens"] == ["x", "a", "b"]
    assert whole["logprobs"]["text_offset"] == [0, 1, 2]
    assert whole["logprobs"]["token_logprobs"] == pytest.approx([LIKELY] * 3)
    assert [list(top) for top in whole["logprobs"]["top_logprobs"]] == [["x"], ["a"], ["b"]]
    chunks = llm([A, B], stream=True, **options(X, A, B, logprobs=1))
    shown = [c["choices"][0]["logprobs"] for c in chunks]
    assert [one["text_offset"] for one in shown if one] == [[0], [1], [2]]


def test_chat_tells_the_logprobs_of_a_token_without_text(llm: Llama) -> None:
    """Half a character, held back until it is whole."""
    chunks = chat_chunks(llm, **options(BYTE + 0xC3, BYTE + 0xA9, logprobs=True))
    assert [c["delta"] for c in chunks] == [
        {"role": "assistant"}, {"content": ""}, {"content": "é"}, {},
    ]  # fmt: skip
    assert [c["logprobs"] and c["logprobs"]["content"][0]["bytes"] for c in chunks] == [
        None, [0xC3], [0xA9], None,
    ]  # fmt: skip


def test_chat_tells_the_likeliest_only_with_logprobs(llm: Llama) -> None:
    assert chat(llm, **options(X, top_logprobs=2))["logprobs"] is None
    for top_logprobs, n in ((2, 2), (None, 0)):
        shown = chat(llm, **options(X, logprobs=True, top_logprobs=top_logprobs))["logprobs"]
        assert len(shown["content"][0]["top_logprobs"]) == n


def test_a_default_template_ends_an_answer_where_the_user_speaks(llm: Llama) -> None:
    tokens = [BYTE + byte for byte in b"x\nUser: and then"]
    choice = chat(llm, **options(*tokens))
    assert (choice["message"]["content"], choice["finish_reason"]) == ("x", "stop")


def test_a_seed_of_a_call_goes_before_the_models(llm: Llama) -> None:
    seeds = [llm.request([A], seed=seed).sampling.seed for seed in (None, 0, 3, -1)]
    assert seeds == [7, 0, 3, None]


def test_timings_are_of_all_that_ran_since_nothing_did(llm: Llama) -> None:
    first = llm([A, B], stream=True, **options(X, X, X))
    next(first)
    assert llm.timings.n_generated == 1
    llm([B, A, A], **options(X, X))  # waits for the one sequence
    assert (llm.timings.n_prompt, llm.timings.n_generated) == (5, 5)
    list(first)
    llm([A, B], **options(X))
    assert (llm.timings.n_prompt + llm.timings.n_reused, llm.timings.n_generated) == (2, 1)
