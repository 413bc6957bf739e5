"""lm-eval's local-completions: its requests give what `Llama.score` gives.

`tests/tools/record_lm_eval.py` recorded the requests of lm-eval itself, and its results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import Llama, packaged_model

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("lm_eval.json").read_text(encoding="utf-8")
)
ABSOLUTE = 0.05  # a token: another machine's kernels round activations of 8 bits otherwise


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(packaged_model(), n_ctx=512) as made:
        yield made


def answers(llm: Llama) -> dict[tuple[int, ...], dict[str, Any]]:
    """The choice of each prompt that is sent for scores, as a server would answer."""
    found = {}
    for sent in RECORDED["sent"]:
        options = {name: value for name, value in sent.items() if name != "prompt"}
        if sent.get("echo"):
            for prompt in sent["prompt"]:
                found[tuple(prompt)] = llm.create_completion(prompt, **options)["choices"][0]
    return found


def score_of(choice: dict[str, Any], n_context: int) -> tuple[float, bool]:
    """As lm-eval's parse_logprobs reads it: the last token is the one that was generated."""
    values = choice["logprobs"]["token_logprobs"][n_context:-1]
    tops = choice["logprobs"]["top_logprobs"][n_context:-1]
    return sum(values), all(v == max(t.values()) for v, t in zip(values, tops, strict=True))


def test_scores(llm: Llama) -> None:
    sent = answers(llm)
    encode = llm.tokenizer.encode
    for prompt, ending, logprob, greedy in RECORDED["loglikelihood"]:
        context, tokens = encode(prompt), encode(prompt + ending)
        found = score_of(sent[tuple(tokens)], len(context))
        (score,) = llm.score([context], [tokens[len(context) :]])
        assert found == (score.logprob, score.is_greedy)
        assert found[0] == pytest.approx(logprob, abs=ABSOLUTE * (len(tokens) - len(context)))
        assert found[1] == greedy


def test_an_end_is_reported_as_the_token_that_was_generated(llm: Llama) -> None:
    """Else the last token of the prompt would be taken for it."""
    tokens = llm.tokenizer.encode("Tom and Lily were best friends. They did everything together.")
    options: Any = {"max_tokens": 1, "echo": True, "logprobs": 1, "logit_bias": {1: 100.0}}
    choice = llm.create_completion(tokens, **options)["choices"][0]
    shown = choice["logprobs"]
    assert (shown["tokens"][-1], choice["finish_reason"]) == ("</s>", "stop")
    assert len(shown["token_logprobs"]) == len(tokens) + 1
    assert shown["text_offset"][-1] == len(choice["text"])
    assert "</s>" not in choice["text"]
    chunks = [chunk["choices"][0] for chunk in llm.create_completion(
        tokens, stream=True, **options)]  # fmt: skip
    for name, values in shown.items():
        assert [v for chunk in chunks for v in (chunk["logprobs"] or {}).get(name, [])] == values
    del options["echo"]
    assert llm.create_completion(tokens, **options)["choices"][0]["logprobs"] is None


def test_scores_of_whole_texts(llm: Llama) -> None:
    """BOS comes first, which is not scored."""
    sent = answers(llm)
    for text, logprob in RECORDED["rolling"]:
        tokens = [0, *llm.tokenizer.encode(text)]
        found, _ = score_of(sent[tuple(tokens)], 1)
        assert found == llm.score([text])[0].logprob
        assert found == pytest.approx(logprob, abs=ABSOLUTE * len(tokens))


def test_texts(llm: Llama) -> None:
    asked = [sent for sent in RECORDED["sent"] if not sent.get("echo")]
    texts = {}
    for sent in asked:
        options = {name: value for name, value in sent.items() if name != "prompt"}
        for prompt in sent["prompt"]:
            choice = llm.create_completion(prompt, **options)["choices"][0]
            texts[llm.tokenizer.decode(prompt)] = choice["text"]
    assert texts.keys() == {prompt for prompt, _ in RECORDED["generated"]}
    for prompt, text in RECORDED["generated"]:
        # The first words: later ones may be as likely as others.
        assert texts[prompt].split()[:1] == text.split()[:1]
