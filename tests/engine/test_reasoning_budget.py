"""`reasoning_budget`: reasoning ends after a number of tokens, whatever the model writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ArgumentError, Llama, packaged_model
from ggmlpy.engine.reasoning_budget import ReasoningBudget

TEMPLATE = "{{ messages[-1].content }}{% if thinks %}<think>{% endif %}{# </think> #}"
MESSAGES = [{"role": "user", "content": "Once upon a time"}]
MARKERS = ("<think>", "</think>")


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    keys: dict[str, str | int] = {"tokenizer.chat_template": TEMPLATE}
    with Llama(packaged_model(), kv_overrides=keys, n_threads=1) as llm:
        yield llm


def answer(llm: Llama, **options: Any) -> dict[str, Any]:
    made = llm.create_chat_completion(
        MESSAGES, temperature=0, chat_template_kwargs={"thinks": True}, max_tokens=30, **options
    )
    message: dict[str, Any] = made["choices"][0]["message"]
    return message


@pytest.mark.parametrize("budget", [1, 7])
def test_reasoning_that_the_prompt_begins(llm: Llama, budget: int) -> None:
    whole = answer(llm)["reasoning_content"]
    made = answer(llm, reasoning_budget=budget)
    assert whole.startswith(made["reasoning_content"])
    assert len(llm.tokenize(made["reasoning_content"], add_bos=False)) <= budget
    assert made["content"]
    raw = answer(llm, reasoning_budget=budget, reasoning_format="none")["content"]
    before = raw.partition("</think>")[0]
    first = llm.create_completion(
        f"{MESSAGES[0]['content']}<think>", temperature=0, max_tokens=budget
    )
    assert before == first["choices"][0]["text"]


def test_no_reasoning_at_all(llm: Llama) -> None:
    made = answer(llm, reasoning_budget=0)
    assert "reasoning_content" not in made
    assert made["content"]
    assert answer(llm, reasoning_budget=-1) == answer(llm)


def said(llm: Llama, text: str, budget: int, *, thinks: bool = False) -> str:
    """What becomes of an answer that a model wants to give."""
    left = iter(llm.tokenizer.encode_part(text, special=True))

    def wanted(seen: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        logits[next(left)] = 1
        return logits

    limit = ReasoningBudget(llm.tokenizer, MARKERS, budget, thinks=thinks, before=wanted)
    seen = [1, 2, 3]
    while True:
        try:
            seen.append(int(limit(seen, np.zeros(llm.tokenizer.n_vocab, np.float32)).argmax()))
        except StopIteration:
            return b"".join(map(llm.tokenizer.token_bytes, seen[3:])).decode()


def test_reasoning_that_the_answer_begins(llm: Llama) -> None:
    long = " one two three four five six seven eight nine ten" * 3
    kept = said(llm, f"\n<think>{long}</think>So.", 6)
    head, _, rest = kept.partition("</think>")
    assert len(head) < len(long)
    assert head.startswith("\n<think> one two")
    assert len(llm.tokenizer.encode_part(head.partition("<think>")[2])) == 6
    assert rest


@pytest.mark.parametrize(
    "text", ["<think> so</think> A long answer that goes on and on.", "No <think> and all that."]
)
def test_what_is_left_alone(llm: Llama, text: str) -> None:
    """Reasoning that ends in time, the answer behind it, and markers later on."""
    assert said(llm, text, 9) == text


@pytest.mark.parametrize(
    ("given", "message"), [(-2, "is -2: it must be at least -1"), ("3", "a str")]
)
def test_wrong_budgets(llm: Llama, given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        llm.create_chat_completion(MESSAGES, reasoning_budget=given)
