"""Scripts for llama-cpp-python run with only the import changed."""

from __future__ import annotations

import gc
import json
import os
import pickle
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy import Llama as Own
from ggmlpy import packaged_model
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.compat import llama_cpp
from ggmlpy.compat.llama_cpp import (
    Llama,
    LlamaDiskCache,
    LlamaGrammar,
    LlamaRAMCache,
    LlamaTokenizer,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    NoEffect,
    StoppingCriteriaList,
)
from ggmlpy.compat.llama_cpp._utils import suppress_stdout_stderr
from ggmlpy.compat.llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from ggmlpy.errors import BadBatch, FileError, Unsupported
from tests.adapters import write_adapter

PROMPT = "Once upon a time"


def make(**options: Any) -> Llama:
    return Llama(str(packaged_model()), **{"n_ctx": 128, "verbose": False, **options})


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with make() as model:
        yield model


@pytest.fixture(scope="module")
def scored() -> Iterator[Llama]:
    with make(logits_all=True) as model:
        yield model


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with Own(packaged_model(), n_ctx=128) as model:
        yield model


# --- completions ---


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


# --- seeds ---


def text_of(llm: Llama, **options: Any) -> str:
    text: str = llm(PROMPT, max_tokens=16, temperature=1.5, **options)["choices"][0]["text"]
    return text


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


# --- token by token ---


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
    for options in ({"n_threads": -1}, {"lora_path": "no-such-file"}):
        with pytest.raises(ValueError, match=r"n_threads is -1|no-such-file"):
            make(**options)
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


# --- texts ---


def test_bytes_and_tokens(llm: Llama) -> None:
    text = "Grüße, 世界! 🙂".encode()
    tokens = llm.tokenize(text, add_bos=False)
    assert llm.detokenize(tokens) == text
    assert llm.tokenize(text)[0] == llm.token_bos()
    assert llm.detokenize([llm.token_bos(), *tokens]) == text
    assert llm.detokenize([llm.token_bos()], special=True) == b"<s>"
    assert llm.tokenizer().decode(tokens).encode() == text
    assert llm.tokenizer().encode("a") == llm.tokenize(b"a", special=True)
    assert llm.detokenize([llm.token_nl()]) == b"\n"


def test_a_vocabulary_only() -> None:
    with Llama(str(packaged_model()), vocab_only=True, verbose=False) as model:
        assert model.detokenize(model.tokenize(b"a cat", add_bos=False)) == b"a cat"
        with pytest.raises(RuntimeError, match="vocab_only"):
            model("a cat")
    tokenizer = LlamaTokenizer.from_ggml_file(str(packaged_model()))
    assert tokenizer.decode(tokenizer.encode("a cat")) == "a cat"


def test_a_tokenizer_of_another_library() -> None:
    class Bytes(llama_cpp.BaseLlamaTokenizer):
        def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
            return [3 + byte % 7 for byte in text]

        def detokenize(
            self, tokens: list[int], prev_tokens: Any = None, special: bool = False
        ) -> bytes:
            return b"x" * len(tokens)

    with make(tokenizer=Bytes()) as model:
        assert model.detokenize(model.tokenize(b"abc")) == b"xxx"
        assert model("abc", max_tokens=2)["usage"]["prompt_tokens"] == 4  # and BOS


# --- chats ---


def test_messages_are_answered(llm: Llama) -> None:
    assert llm.chat_format == "llama-2"
    messages = [{"role": "user", "content": "Hi"}]
    whole = llm.create_chat_completion(messages, max_tokens=6, temperature=0)
    chunks = list(llm.create_chat_completion(messages, max_tokens=6, temperature=0, stream=True))
    choice = whole["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert whole["object"] == "chat.completion"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"}
    assert "".join(delta.get("content", "") for delta in deltas) == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


def test_handlers_of_ones_own() -> None:
    def handler(*, llama: Llama, messages: Any, **options: Any) -> Any:
        return llama.n_ctx(), messages, options["temperature"]

    with make(chat_handler=handler) as model:
        assert model.create_chat_completion([{"role": "user", "content": "Hi"}]) == (
            128,
            [{"role": "user", "content": "Hi"}],
            0.2,
        )
    with make(chat_format="chatml") as model:
        answer = model.create_chat_completion([{"role": "user", "content": "Hi"}], max_tokens=2)
        assert answer["usage"]["completion_tokens"] == 2
    with make(chat_format="no such format") as model, pytest.raises(Exception, match="chatml"):
        model.create_chat_completion([{"role": "user", "content": "Hi"}])


# --- grammars and tools ---

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
        },
    },
}
ASKED = [{"role": "user", "content": "How is it in Rome?"}]


def is_call(arguments: str) -> bool:
    value = json.loads(arguments)
    return value["city"] in ("Rome", "Oslo") and value["days"] in (1, 2) and len(value) == 2


def test_grammars(llm: Llama, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    text = 'root ::= ("cat" | "dog")+ "!"'
    grammar = LlamaGrammar.from_string(text, verbose=False)
    answer = llm(PROMPT, max_tokens=30, grammar=grammar, seed=2, logit_bias={1: 5})["choices"][0]
    assert re.fullmatch("(cat|dog)+!", answer["text"]) or answer["finish_reason"] == "length"
    file = tmp_path / "g.gbnf"
    file.write_text('root ::= " a" " " "cat"')
    made = llm(PROMPT, grammar=LlamaGrammar.from_file(file))["choices"][0]
    assert (made["text"], made["finish_reason"]) == (" a cat", "stop")
    found = []
    for token in llm.generate(llm.tokenize(b"A"), grammar=LlamaGrammar.from_file(file)):
        if token == llm.token_eos():
            break
        found.append(token)
    assert llm.detokenize(found) == b" a cat"
    llm.eval(llm.tokenize(b"A"))
    assert llm.sample(grammar=LlamaGrammar.from_string('root ::= "x"')) in llm.tokenize(b"x", False)
    with pytest.raises(ValueError, match="not JSON"):
        llm(PROMPT, grammar=LlamaGrammar.from_json_schema("{"))
    with pytest.raises(ValueError, match="grammar"):
        llm(PROMPT, grammar=LlamaGrammar.from_string("root = wrong"))
    file.write_text("")
    with pytest.raises(ValueError, match="is empty"):
        LlamaGrammar.from_file(file)


def test_tools_and_json(llm: Llama) -> None:
    pytest.importorskip("llguidance")
    chosen = {"type": "function", "function": {"name": "weather"}}
    options: dict[str, Any] = {"tools": [WEATHER], "tool_choice": chosen, "seed": 3}
    message = llm.create_chat_completion(ASKED, **options)["choices"][0]
    assert message["finish_reason"] == "tool_calls"
    (call,) = message["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert is_call(call["function"]["arguments"])
    chunks = [c["choices"][0] for c in llm.create_chat_completion(ASKED, stream=True, **options)]
    calls = [c["delta"]["tool_calls"] for c in chunks if c["delta"].get("tool_calls")]
    assert is_call("".join(call[0]["function"]["arguments"] for call in calls))
    assert chunks[-1]["finish_reason"] == "tool_calls"
    older = llm.create_chat_completion(
        ASKED, functions=[WEATHER["function"]], function_call={"name": "weather"}, seed=3
    )
    assert is_call(older["choices"][0]["message"]["function_call"]["arguments"])
    schema = WEATHER["function"]["parameters"]  # type: ignore[index]
    answer = llm.create_chat_completion(
        ASKED, response_format={"type": "json_object", "schema": schema}, seed=1
    )
    assert is_call(answer["choices"][0]["message"]["content"])
    with pytest.raises(ValueError, match="Tool choice 'other' not found"):
        llm.create_chat_completion(
            ASKED, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "other"}}
        )


def test_tools_in_chatml() -> None:
    pytest.importorskip("llguidance")
    with make(chat_format="chatml-function-calling", n_ctx=512) as model:
        chosen = {"type": "function", "function": {"name": "weather"}}
        named = model.create_chat_completion(ASKED, tools=[WEATHER], tool_choice=chosen)
        (call,) = named["choices"][0]["message"]["tool_calls"]
        assert is_call(call["function"]["arguments"])
        auto = model.create_chat_completion(
            ASKED, tools=[WEATHER], tool_choice="auto", logits_processor=only_calls(model)
        )["choices"][0]
        assert auto["finish_reason"] == "tool_calls"
        for call in auto["message"]["tool_calls"]:
            assert is_call(call["function"]["arguments"])
        plain = model.create_chat_completion(ASKED, max_tokens=3)
        assert plain["choices"][0]["message"]["content"]
        with pytest.raises(ValueError, match='"none", "auto"'):
            model.create_chat_completion(ASKED, tools=[WEATHER], tool_choice="any")


def test_calls_without_end() -> None:
    """A model that always goes on to call."""
    pytest.importorskip("llguidance")

    def calls(kind: dict[str, Any], n_ctx: int) -> tuple[list[str], str]:
        parameters = {"type": "object", "properties": {"a": kind}, "required": ["a"]}
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        with make(chat_format="chatml-function-calling", n_ctx=n_ctx, seed=1) as model:
            choice = model.create_chat_completion(
                ASKED, tools=[tool], tool_choice="auto", temperature=2, top_k=0, min_p=0, top_p=1,
                logits_processor=only_calls(model, end=-50),
            )["choices"][0]  # fmt: skip
        made = choice["message"]["tool_calls"]
        assert len({call["id"] for call in made}) == len(made)
        return [call["function"]["arguments"] for call in made], choice["finish_reason"]

    made, reason = calls({"type": "boolean"}, 512)
    assert 1 <= len(set(made)) == len(made) <= 2
    assert reason == "tool_calls"
    digits = {"type": "string", "pattern": "^[0-9]{2}$"}
    made, reason = calls(digits, 512)
    assert len(set(made)) == len(made) == 16
    assert reason == "tool_calls"
    digits = {"type": "string", "pattern": "^[0-9]{40}$"}
    made, reason = calls(digits, 512)
    assert 1 <= len(made) < 16
    assert reason == "length"
    assert all(re.fullmatch("[0-9]{40}", json.loads(call)["a"]) for call in made)
    made, reason = calls({"type": "string", "pattern": "^[0-9]{600}$"}, 512)
    assert (len(made), reason) == (1, "length")  # nothing but a call that is cut


def only_calls(model: Llama, end: float = 50) -> LogitsProcessorList:
    """Lets the model begin with a call, and end where it may, or never."""

    def bias(tokens: Any, logits: Any) -> Any:
        for token in model.tokenize(b"message", add_bos=False) + model.tokenize(b"me", False):
            logits[token] = -50
        logits[model.tokenize(b"m", False)] = -50
        logits[model.tokenize(b"<", False)] += end
        return logits

    return LogitsProcessorList([bias])


# --- embeddings ---


def test_embeddings() -> None:
    with make(embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN) as model:
        one = model.embed("a cat", normalize=True)
        assert len(one) == model.n_embd()
        assert np.isclose(np.linalg.norm(one), 1)
        result = model.create_embedding(["a cat", "a dog"])
        assert [entry["index"] for entry in result["data"]] == [0, 1]
        assert np.allclose(np.array(result["data"][0]["embedding"]) / np.linalg.norm(
            result["data"][0]["embedding"]), one, atol=1e-6)  # fmt: skip
        n = sum(len(model.tokenize(text)) for text in (b"a cat", b"a dog"))
        assert result["usage"] == {"prompt_tokens": n, "total_tokens": n}
        assert model.embed(["a"], return_count=True)[1] == len(model.tokenize(b"a"))
        with pytest.raises(ValueError, match="exceed batch size of 128"):
            model.embed("a " * 200, truncate=False)
    with make(embedding=True) as model:
        assert np.shape(model.embed("a cat")) == (len(model.tokenize(b"a cat")), model.n_embd())
    with make() as model, pytest.raises(RuntimeError, match="embedding=True"):
        model.embed("a cat")


# --- states ---


def test_states_continue_where_they_were_saved(llm: Llama) -> None:
    llm.reset()
    llm.eval(llm.tokenize(PROMPT.encode()))
    state = pickle.loads(pickle.dumps(llm.save_state()))
    assert state.llama_state_size == len(state.llama_state)
    expected = llm.sample(temp=0)
    llm(PROMPT[::-1], max_tokens=3)
    llm.load_state(state)
    assert llm.n_tokens == state.n_tokens
    assert llm.sample(temp=0) == expected


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_caches_of_states(kind: str, tmp_path: Path) -> None:
    cache = LlamaRAMCache() if kind == "ram" else LlamaDiskCache(str(tmp_path))
    with make() as model:
        model.set_cache(cache)
        expected = model(PROMPT, max_tokens=6, temperature=0)["choices"][0]["text"]
        assert cache.cache_size > 0
    with make() as model:
        model.set_cache(cache if kind == "ram" else LlamaDiskCache(str(tmp_path)))
        prompt = model.tokenize(PROMPT.encode())
        assert prompt in model.cache  # type: ignore[operator]
        assert model(PROMPT, max_tokens=6, temperature=0)["choices"][0]["text"] == expected
        with pytest.raises(KeyError):
            cache[[9, 9]]
    cache.capacity_bytes = 0
    cache[[7, 8]] = model_state()
    assert cache.cache_size == 0


def model_state() -> llama_cpp.LlamaState:
    ids, scores = np.zeros(4, np.intc), np.zeros((2, 3), np.single)
    return llama_cpp.LlamaState(ids, scores, 2, b"state", 5, 1)


def test_damaged_files_in_a_cache_are_left_out(tmp_path: Path) -> None:
    cache = LlamaDiskCache(str(tmp_path))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 broken")
    cache[[1, 2, 3]] = model_state()
    assert [1, 2, 9] in cache
    assert cache[[1, 2, 9]].llama_state == b"state"
    assert [5] not in cache


# --- loading ---


def test_arguments_without_effect_say_what_to_use() -> None:
    with pytest.warns(NoEffect, match="use_mlock has no effect"):
        make(use_mlock=True).close()
    with pytest.warns(NoEffect, match="n_gqa is no argument"):
        make(n_gqa=8).close()
    with pytest.raises(Unsupported, match="attention_type is 1"):
        make(attention_type=1)


def test_an_adapter(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "lora.gguf", packaged_model(), size=0.5).path
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0}
    with make(lora_path=str(adapter), lora_scale=0.5) as ours:
        answer = ours(PROMPT, **options)["choices"][0]["text"]
        ours.reset()
        ours.eval(ours.tokenize(PROMPT.encode()))
        logits = ours._rows[-1].copy()
    with Own(packaged_model(), n_ctx=128) as llm:
        plain = llm(PROMPT, **options)["choices"][0]["text"]
        tokens = llm.tokenize(PROMPT, special=True)
        llm.load_lora(adapter, 0.5)
        assert llm(PROMPT, **options)["choices"][0]["text"] == answer != plain
        np.testing.assert_array_equal(llm.logits(tokens)[-1], logits)
    with pytest.raises(ValueError, match="no such file"):
        make(lora_path=str(tmp_path / "missing.gguf"))


def test_metadata_and_rotary_embeddings_can_be_others(llm: Llama) -> None:
    key = "llama.rope.freq_base"
    with make(rope_freq_base=500.0) as a, make(kv_overrides={key: 500.0}) as b:
        for model in (a, b, llm):
            model.reset()
            model.eval([0, 5, 9, 30])
        assert np.array_equal(a._scores, b._scores)
        assert not np.allclose(a._scores, llm._scores)
        assert b.metadata[key] == "500.000000"
    with make(rope_freq_base=10000.0, rope_freq_scale=1.0, rope_scaling_type=1) as same:
        same.eval([0, 5, 9, 30])
        assert np.array_equal(same._scores, llm._scores)
    halved: dict[str, Any] = {"rope_freq_scale": 0.5}
    unmixed = make(rope_scaling_type=2, yarn_ext_factor=0.0, **halved)
    with unmixed, make(rope_scaling_type=1, **halved) as linear:
        for model in (unmixed, linear):
            model.eval([0, 5, 9, 30])
        assert np.array_equal(unmixed._scores, linear._scores)
        assert not np.allclose(linear._scores, llm._scores)
    with pytest.raises(ValueError, match="rope_scaling_type is 7"):
        make(rope_scaling_type=7)
    with pytest.raises(ValueError, match="must be a number"):
        make(kv_overrides={key: "high"})


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Model path does not exist"):
        Llama(str(tmp_path / "no.gguf"))
    (tmp_path / "bad.gguf").write_bytes(b"GGUX")
    with pytest.raises(FileError):
        Llama(str(tmp_path / "bad.gguf"))


def test_pickled_models_are_loaded_again(llm: Llama) -> None:
    with make(n_ctx=64, seed=5) as model:
        copy = pickle.loads(pickle.dumps(model))
        assert (copy.n_ctx(), copy._seed) == (64, 5)
        assert text_of(copy, seed=1) == text_of(model, seed=1)
        copy.close()


def test_a_closed_model() -> None:
    model = make()
    model.close()
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model(PROMPT)
    del model
    gc.collect()


def test_threads_are_those_that_run() -> None:
    default = default_n_threads()
    for given, expected in ((0, default), (None, default), (1, 1), (2, 2)):
        with make(n_threads=given) as model:
            assert model.n_threads == model.n_threads_batch == expected
            assert model.context_params.n_threads == expected
            (backend,) = [b for b in model.ggmlpy._context.backends if b.name.startswith("cpu")]
            assert isinstance(backend, CpuBackend)
            assert backend.n_threads == expected
    with make(vocab_only=True, n_threads=3) as model:
        assert model.n_threads == 3


def test_properties(llm: Llama) -> None:
    sizes = (llm.n_ctx(), llm.n_vocab(), llm.n_embd(), llm.n_batch, llm.context_params.n_ctx)
    assert sizes == (128, 2048, 256, 128, 128)
    assert (llm.token_bos(), llm.token_eos()) == (0, 1)
    assert llm.metadata["llama.rope.freq_base"] == "10000.000000"
    assert llm.metadata["tokenizer.ggml.add_bos_token"] == "true"
    assert "tokenizer.ggml.tokens" not in llm.metadata
    assert llm.pooling_type() == llama_cpp.LLAMA_POOLING_TYPE_NONE
    assert llm._model.n_params() > 1e6
    assert llm._model.desc().startswith("llama")
    with pytest.raises(AttributeError, match="C interface"):
        _ = llm.ctx


IMPORTS = """
from llama_cpp import llama_cpp as inner
from llama_cpp._utils import suppress_stdout_stderr
from llama_cpp.llama import CreateCompletionResponse
import llama_cpp.llama_cpp as lc
"""


def test_output_can_be_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    for disable in (True, False):
        with suppress_stdout_stderr(disable=disable):
            print("out", file=sys.stdout)
            print("err", file=sys.stderr, flush=True)
            sys.stdout.flush()
            os.write(1, b"1")
            os.write(2, b"2")
        assert capfd.readouterr() == (("out\n1", "err\n2") if disable else ("", ""))
        print("again", flush=True)
        os.write(2, b"again")
        assert capfd.readouterr() == ("again\n", "again")


def test_other_packages_can_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "llama_cpp"]:
        monkeypatch.delitem(sys.modules, name)
    llama_cpp.install_as_llama_cpp()
    try:
        assert import_module("llama_cpp").Llama is Llama
        speculative = import_module("llama_cpp.llama_speculative")
        assert speculative.LlamaPromptLookupDecoding is LlamaPromptLookupDecoding
        script: dict[str, Any] = {}
        exec(IMPORTS, script)
        assert script["CreateCompletionResponse"] is llama_cpp.CreateCompletionResponse
        assert script["lc"].GGML_TYPE_Q8_0 == script["inner"].GGML_TYPE_Q8_0 == 8
        assert script["lc"].llama_max_devices() == llama_cpp.llama_max_devices()
        with pytest.raises(AttributeError, match="C interface"):
            _ = script["lc"].llama_decode
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "llama_cpp"]:
            del sys.modules[name]
    monkeypatch.setitem(sys.modules, "llama_cpp", sys)
    with pytest.raises(ImportError, match="imported already"):
        llama_cpp.install_as_llama_cpp()
