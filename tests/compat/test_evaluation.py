"""Token by token: `generate`, `eval`, `sample` and the scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ggmlpy import Llama as Own
from ggmlpy.compat.llama_cpp import (
    Llama,
)
from ggmlpy.compat.llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from ggmlpy.errors import BadBatch
from tests.compat.models import PROMPT, make


def test_generate_yields_tokens_as_a_completion_has_them(llm: Llama) -> None:
    tokens = llm.tokenize(PROMPT.encode())
    expected = llm(PROMPT, max_tokens=8, temperature=0)["choices"][0]["text"]
    found = []
    for token in llm.generate(tokens, temp=0):
        found.append(token)
        if len(found) == 8:
            break
    assert llm.detokenize(found).decode() == expected
    assert llm.n_tokens == len(tokens) + 7  # the last one was not run
    assert list(llm.eval_tokens) == llm._input_ids.tolist() == [*tokens, *found[:-1]]


def test_tokens_that_are_sent_follow(llm: Llama) -> None:
    tokens = llm.tokenize(PROMPT.encode())
    more = llm.tokenize(b" and the", add_bos=False)
    generator = llm.generate(tokens, temp=0)
    first = next(generator)
    second = generator.send(more)
    llm.reset()
    llm.eval([*tokens, first, *more])
    assert llm.sample(temp=0) == second


@pytest.mark.parametrize("logits_all", [False, True])
def test_a_draft_model_changes_nothing(llm: Llama, logits_all: bool) -> None:
    class Drafts(LlamaPromptLookupDecoding):
        n = 0

        def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
            found = super().__call__(input_ids)
            Drafts.n += len(found)
            return found

    prompt = llm.tokenize(b"The cat sat. The cat sat. The cat")
    expected = [t for t, _ in zip(llm.generate(prompt, temp=0), range(20), strict=False)]
    with make(draft_model=Drafts(), logits_all=logits_all) as drafting:
        found = [t for t, _ in zip(drafting.generate(prompt, temp=0), range(20), strict=False)]
        assert found == expected
        assert Drafts.n > 20
        asked = Drafts.n
        options: dict[str, Any] = {"max_tokens": 20, "temperature": 0.6, "seed": 3}
        text = drafting.create_completion(prompt, **options)["choices"]
        assert Drafts.n > asked
    with make(logits_all=logits_all) as plain:
        assert plain.create_completion(prompt, **options)["choices"] == text


def test_scores_are_those_of_all_tokens(llm: Llama, scored: Llama, own: Own) -> None:
    tokens = llm.tokenize(b"Lily and Tom went home")
    expected = own.logits(tokens)
    for model in (llm, scored):
        model.reset()
        model.eval(tokens[:3])
        model.eval(tokens[3:])
        assert model.n_tokens == len(tokens)
        assert np.array_equal(model._scores, expected)
        assert model.sample(temp=0, idx=1) == expected[1].argmax()
    scored("Lily and", max_tokens=5, temperature=0)
    assert np.array_equal(scored._scores, own.logits(scored._input_ids.tolist()))
    assert len(scored.eval_logits) == scored.n_tokens
    assert llm.scores.shape == (llm.n_ctx(), llm.n_vocab())


def test_what_cannot_be_run(llm: Llama) -> None:
    llm.reset()
    with pytest.raises(RuntimeError, match="call eval first"):
        llm.sample()
    for error in (RuntimeError, BadBatch):
        with pytest.raises(error, match="token"):
            llm.eval([llm.n_vocab()])
    with pytest.raises(RuntimeError, match="n_ctx is 128"):
        llm.eval([3] * 129)
    stream = llm(PROMPT, max_tokens=5, stream=True)
    next(stream)
    with pytest.raises(Exception, match="a completion is running"):
        llm.eval([3])
    stream.close()
    llm.eval([3])


def test_arguments_that_cannot_be_used(llm: Llama) -> None:
    text: Any = 'root ::= "a"'
    llm.eval([3])
    for run in (
        lambda: llm(PROMPT, grammar=text),
        lambda: llm.sample(grammar=text),
        lambda: next(llm.generate([3], grammar=text)),
    ):
        with pytest.raises(TypeError, match=r"LlamaGrammar\.from_string"):
            run()
    for empty in (True, False):
        with pytest.raises(ValueError, match="the prompt has no tokens"):
            llm([], echo=empty)
    refused: dict[str, Any] = {
        "top_p": 2,
        "min_p": 1.5,
        "typical_p": 2,
        "repeat_penalty": 0,
        "max_tokens": 3.0,
        "stop": "",
    }
    for name, value in refused.items():
        with pytest.raises(ValueError, match=name):
            llm(PROMPT, **{name: value})
    with pytest.raises(ValueError, match="no-such-file"):
        make(lora_path="no-such-file")
    wrong: dict[str, Any] = {"max_token": 3}
    for name in ("create_completion", "create_chat_completion"):
        with pytest.raises(TypeError, match=rf"^Llama\.{name}\(\) .* 'max_token'"):
            getattr(llm, name)([3], **wrong)


def test_log_softmax(llm: Llama) -> None:
    x = np.random.default_rng(1).normal(size=(3, 9)).astype(np.single)
    x[1, 2] = -np.inf
    exact = x.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    assert np.allclose(llm.logits_to_logprobs(x), exact, rtol=0, atol=1e-6)
    assert Llama.longest_token_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert Llama.longest_token_prefix([], [1]) == 0
