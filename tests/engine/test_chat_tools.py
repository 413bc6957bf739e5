"""Chat completions with tools and reasoning, from the template to the result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import AsyncLlama, Llama, packaged_model
from ggmlpy.engine.options import LogitsCallback
from ggmlpy.errors import ArgumentError, GrammarError
from tests.calling.formats import ANSWERS, TOOLS
from tests.models.tiny import Tiny, byte_vocabulary, write_model

MESSAGES = [{"role": "user", "content": "How late is it in Paris?"}]
WRITES = "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{{ messages[-1].content }}\n"
TEMPLATES = {
    "hermes": '<tool_call>"arguments"',
    "hermes, thinking": '<tool_call>"arguments"{% if enable_thinking %}<think>{% endif %}</think>',
    "qwen3-coder": "<tool_call><function=a><parameter=b>",
    "glm": "<tool_call>a<arg_key>{# </think> #}",
    "llama 3": 'ipython "parameters"',
    "mistral": "[TOOL_CALLS]",
    "mistral, named": "[TOOL_CALLS][ARGS]",
    "granite 3": "<|tool_call|>",
    "deepseek r1": "<\uff5ctool▁calls▁begin\uff5c>```json",
    "deepseek v3.1": "<\uff5ctool▁calls▁begin\uff5c>",
    "deepseek dsml": "\uff5cDSML\uff5cfunction_calls>",
    "gpt-oss": "<|start|><|channel|>",
    "gemma 4": "<|tool_call>",
    "lfm2": "<|tool_call_start|>",
    "kimi k2": "<|tool_calls_section_begin|>",
    "command r": "<|START_ACTION|>",
    "functionary": "<function=",
    "functionary 3.2": "{# >>>all #}>>>",
    "nemotron": "<TOOLCALL>[",
    "apriel": "<tool_calls>[",
    "minimax": "<minimax:tool_call>",
    "seed-oss": "<seed:tool_call>",
    "generic": "",
}
THINKS = {
    "gemma 4": "<channel|>.",
    "mistral, named": "[THINK].",
    "kimi k2": "<think>.",
    "command r": "<|START_THINKING|>.",
    "nemotron": "<think>.",
    "apriel": "[BEGIN FINAL RESPONSE]",
    "minimax": "<think>.",
    "seed-oss": "<seed:think>.",
}
SHORT: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "unit": {"enum": ["C", "F"]},
                    "days": {"type": "integer", "minimum": 0, "maximum": 99},
                },
                "required": ["unit"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]


def opened(template: str, *, thinks: bool = False, **options: Any) -> Llama:
    """`thinks`: the template has the markers of reasoning."""
    source = WRITES if template == "generic" else WRITES + TEMPLATES[template]
    source += THINKS.get(template, "") if thinks else ""
    if template == "generic":
        source = "{{ messages | map(attribute='content') | join('\n') }}\n"
    keys: dict[str, str | int] = {"tokenizer.chat_template": source}
    keys["llama.context_length"] = 1024
    return Llama(packaged_model(), kv_overrides=keys, n_threads=1, **options)


def saying(llm: Llama, text: str) -> LogitsCallback:
    """The tokens of a text, then the end."""
    left = iter([*llm.tokenizer.encode_part(text, special=True), llm.token_eos()])

    def process(seen: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        logits[:] = 0
        logits[next(left)] = 1
        return logits

    return process


@pytest.mark.parametrize("template", TEMPLATES)
def test_required_calls(template: str) -> None:
    """Whatever the model draws: calls of the tools, with arguments of their schemas."""
    pytest.importorskip("llguidance")
    with opened(template, n_ctx=1024) as llm:
        n_finished = 0
        for seed in range(4):
            result = llm.create_chat_completion(
                MESSAGES, tools=SHORT, tool_choice="required", seed=seed, temperature=1.0,
                max_tokens=400, parallel_tool_calls=seed % 2 == 0,
            )  # fmt: skip
            choice = result["choices"][0]
            if choice["finish_reason"] == "length":
                continue
            n_finished += 1
            assert choice["finish_reason"] == "tool_calls"
            calls = choice["message"]["tool_calls"]
            assert len(calls) == 1 or seed % 2 == 0
            for call in calls:
                arguments = json.loads(call["function"]["arguments"])
                if call["function"]["name"] == "now":
                    continue
                assert call["function"]["name"] == "get_weather"
                assert arguments.keys() <= {"unit", "days"}
                assert arguments["unit"] in ("C", "F")
                assert 0 <= arguments.get("days", 0) <= 99
        assert n_finished


@pytest.mark.parametrize("template", ["hermes", "glm", "lfm2", "generic"])
def test_named_calls(template: str) -> None:
    pytest.importorskip("llguidance")
    named = {"type": "function", "function": {"name": "now"}}
    with opened(template, n_ctx=512) as llm:
        result = llm.create_chat_completion(
            MESSAGES, tools=SHORT, tool_choice=named, max_tokens=100, parallel_tool_calls=False
        )
        (call,) = result["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "now"


SCRIPTED = [name for name in TEMPLATES if name not in ("hermes, thinking", "deepseek r1")]


@pytest.mark.parametrize("template", SCRIPTED)
def test_calls_as_they_stream(template: str) -> None:
    """Tokens are pieces: joined, the deltas are the whole message."""
    answered = ANSWERS[template]
    think = answered.format.think
    text = think[0] + answered.text if answered.thinks and think else answered.text
    with opened(template, thinks=True, n_ctx=1024) as llm:
        options: dict[str, Any] = {"tools": TOOLS, "temperature": 0, "max_tokens": 500}
        whole = llm.create_chat_completion(MESSAGES, logits_processor=saying(llm, text), **options)[
            "choices"
        ][0]
        message = whole["message"]
        assert message.get("reasoning_content", "") == answered.reasoning
        found = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message["tool_calls"]
        ]
        assert tuple(found) == answered.calls
        assert message["content"] == (answered.content or None)
        assert whole["finish_reason"] == "tool_calls"
        chunks = list(
            llm.create_chat_completion(
                MESSAGES, stream=True, logits_processor=saying(llm, text), **options
            )
        )
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant"}
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["tool_calls"]
    parts = [part for c in choices for part in c["delta"].get("tool_calls", [])]
    begun = [part for part in parts if "id" in part]
    assert [part["function"]["name"] for part in begun] == [name for name, _ in answered.calls]
    for i, (_, arguments) in enumerate(answered.calls):
        texts = [part["function"]["arguments"] for part in parts if part["index"] == i]
        assert json.loads("".join(texts)) == arguments
    deltas = [choice["delta"] for choice in choices]
    assert "".join(delta.get("content", "") for delta in deltas) == answered.content
    thoughts = "".join(delta.get("reasoning_content", "") for delta in deltas)
    assert thoughts == answered.reasoning


def test_tools_that_are_not_asked_for() -> None:
    """tool_choice "none": the template gets no tools, and the answer is text."""
    answered = ANSWERS["hermes"]
    with opened("hermes", n_ctx=1024) as llm:
        plain = llm.create_chat_completion(MESSAGES, max_tokens=1)["usage"]["prompt_tokens"]
        result = llm.create_chat_completion(
            MESSAGES, tools=TOOLS, tool_choice="none", max_tokens=400, temperature=0,
            logits_processor=saying(llm, answered.text),
        )  # fmt: skip
        assert result["usage"]["prompt_tokens"] == plain
        assert result["choices"][0]["message"] == {"role": "assistant", "content": answered.text}
        assert result["choices"][0]["finish_reason"] == "stop"


def test_reasoning() -> None:
    with opened("hermes, thinking", n_ctx=512) as llm:
        for given, options, content, reasoning in (
            ("<think>\nWhy?\n</think>\n\nSo.", {}, "So.", "Why?"),
            ("So.", {"chat_template_kwargs": {"enable_thinking": False}}, "So.", None),
            (
                "<think>Why?</think>So.",
                {"reasoning_format": "none"},
                "<think>Why?</think>So.",
                None,
            ),
        ):
            said: dict[str, Any] = {"max_tokens": 60, "temperature": 0, **options}
            message = llm.create_chat_completion(
                MESSAGES, logits_processor=saying(llm, given), **said
            )["choices"][0]["message"]
            assert message["content"] == content
            assert message.get("reasoning_content") == reasoning
            chunks = llm.create_chat_completion(
                MESSAGES, stream=True, logits_processor=saying(llm, given), **said
            )
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
            assert "".join(d.get("content", "") for d in deltas) == content
            assert "".join(d.get("reasoning_content", "") for d in deltas) == (reasoning or "")
        with pytest.raises(ArgumentError, match='reasoning_format is "some": it must be one of'):
            llm.create_chat_completion(MESSAGES, reasoning_format="some")


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_object"}},
        {"grammar": 'root ::= "{" [0-9]+ "}"'},
        {"grammar": 'root ::= "{\\"a\\": 1}"'},
    ],
)
def test_grammars_hold_behind_the_reasoning(form: dict[str, Any]) -> None:
    """Where the prompt ends within it: the model reasons as it likes first."""
    pytest.importorskip("llguidance")
    source = WRITES + "{# </think> #}<think>\n"
    keys: dict[str, str | int] = {"tokenizer.chat_template": source, "llama.context_length": 1024}
    with Llama(packaged_model(), kv_overrides=keys, n_ctx=512, n_threads=1) as llm:
        for stream in (False, True):
            said = saying(llm, "Why {not}?</think>" + '{"a": 1}')
            made = llm.create_chat_completion(
                MESSAGES, stream=stream, max_tokens=60, temperature=0, logits_processor=said, **form
            )
            if isinstance(made, dict):
                message = made["choices"][0]["message"]
            else:
                deltas = [chunk["choices"][0]["delta"] for chunk in made]
                message = {
                    name: "".join(delta.get(name, "") for delta in deltas)
                    for name in ("content", "reasoning_content")
                }
            assert message["reasoning_content"] == "Why {not}?"
            assert message["content"].startswith("{") and message["content"] != ""


def test_log_probabilities_come_with_every_token() -> None:
    with opened("hermes", n_ctx=1024) as llm:
        text = ANSWERS["hermes"].text
        options: dict[str, Any] = {
            "tools": TOOLS,
            "logprobs": True,
            "max_tokens": 400,
            "temperature": 0,
        }
        whole = llm.create_chat_completion(MESSAGES, logits_processor=saying(llm, text), **options)[
            "choices"
        ][0]
        chunks = llm.create_chat_completion(
            MESSAGES, stream=True, logits_processor=saying(llm, text), **options
        )
        shown = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        entries = [entry for each in shown if each for entry in each["content"]]
    assert [e["token"] for e in entries] == [e["token"] for e in whole["logprobs"]["content"]]


def test_grammars_exclude_each_other() -> None:
    with opened("hermes", n_ctx=512) as llm, opened("generic", n_ctx=512) as generic:
        form = {"type": "json_object"}
        with pytest.raises(ArgumentError, match="but tool_choice asks for a call"):
            llm.create_chat_completion(
                MESSAGES, tools=TOOLS, tool_choice="required", response_format=form
            )
        with pytest.raises(ArgumentError, match="but the template has no tools"):
            generic.create_chat_completion(MESSAGES, tools=TOOLS, response_format=form)


def test_a_generic_answer_that_says_something() -> None:
    pytest.importorskip("llguidance")
    with opened("generic", n_ctx=1024) as llm:
        text = '{"response": "It is \\"noon\\"."}'
        result = llm.create_chat_completion(
            MESSAGES, tools=TOOLS, max_tokens=60, temperature=0, logits_processor=saying(llm, text)
        )
    message = result["choices"][0]["message"]
    assert message == {"role": "assistant", "content": 'It is "noon".'}


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[Llama]:
    """A model whose markers are control tokens."""
    vocabulary = byte_vocabulary(Tiny().n_vocab)
    tokens = list(vocabulary["tokenizer.ggml.tokens"])
    types = list(vocabulary["tokenizer.ggml.token_type"])
    for i, marker in enumerate(("<|tool_call_start|>", "<|tool_call_end|>")):
        tokens[-1 - i], types[-1 - i] = marker, 3
    path = write_model(
        tmp_path / "hidden.gguf", Tiny(n_ctx=512), tokenizer__ggml__tokens=tokens,
        tokenizer__ggml__token_type=types, tokenizer__chat_template=WRITES,
    )  # fmt: skip
    with Llama(path, n_threads=1) as llm:
        yield llm


def test_markers_that_are_control_tokens(hidden: Llama) -> None:
    """They are looked for where there are tools; else answers lack them, as ever."""
    text = "<|tool_call_start|>[now()]<|tool_call_end|>"
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
    messages = [{"role": "user", "content": "a"}]
    message = hidden.create_chat_completion(
        messages, tools=SHORT[1:], logits_processor=saying(hidden, text), **options
    )["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["now"]
    plain = hidden.create_chat_completion(
        messages, logits_processor=saying(hidden, text), **options
    )["choices"][0]["message"]
    assert plain == {"role": "assistant", "content": " [now()]"}


def test_control_tokens_in_grammars(hidden: Llama) -> None:
    pytest.importorskip("llguidance")
    messages = [{"role": "user", "content": "a"}]
    for seed in range(5):
        result = hidden.create_chat_completion(
            messages, tools=SHORT, tool_choice="required", max_tokens=200, seed=seed,
            parallel_tool_calls=False,
        )  # fmt: skip
        (call,) = result["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] in ("get_weather", "now")


def test_tasks() -> None:
    """The same options in AsyncLlama."""
    answered = ANSWERS["hermes"]

    async def run(llm: Llama) -> tuple[Any, list[Any]]:
        model = AsyncLlama(llm)
        options: dict[str, Any] = {"tools": TOOLS, "temperature": 0, "max_tokens": 400}
        whole = await model.create_chat_completion(
            MESSAGES, logits_processor=saying(llm, answered.text), **options
        )
        stream = await model.create_chat_completion(
            MESSAGES, stream=True, logits_processor=saying(llm, answered.text), **options
        )
        return whole, [chunk["choices"][0] async for chunk in stream]

    with opened("hermes", n_ctx=1024) as llm:
        whole, chunks = asyncio.run(run(llm))
    assert whole["choices"][0]["finish_reason"] == chunks[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("template", ["hermes", "lfm2", "glm"])
def test_an_answer_ends_behind_its_only_call(template: str) -> None:
    """Tokens that would be dropped are not generated."""
    answered = ANSWERS[template]
    text = answered.text + "\nAnd much more, which goes on and on."
    with opened(template, n_ctx=1024) as llm:
        options: dict[str, Any] = {"tools": TOOLS, "temperature": 0, "max_tokens": 400}
        n_text = len(llm.tokenizer.encode_part(text, special=True))
        counts = {}
        for parallel in (True, False):
            made = llm.create_chat_completion(
                MESSAGES,
                logits_processor=saying(llm, text),
                parallel_tool_calls=parallel,
                **options,
            )
            counts[parallel] = made["usage"]["completion_tokens"]
            choice = made["choices"][0]
            assert choice["finish_reason"] == "tool_calls"
            n_calls = len(choice["message"]["tool_calls"])
            assert n_calls == (len(answered.calls) if parallel else 1)
        assert counts[True] == n_text
        assert counts[False] < n_text - 10
        stopped = llm.create_chat_completion(
            MESSAGES,
            logits_processor=saying(llm, text),
            parallel_tool_calls=False,
            stopping_criteria=lambda seen, logits: True,
            **options,
        )
        assert stopped["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("template", ["hermes", "glm", "generic"])
def test_a_schema_that_cannot_be_used_names_its_tool(template: str) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "strin"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    message = "parameters of tool f: the JSON schema is refused at #/properties/a: "
    with opened(template) as llm, pytest.raises(GrammarError, match=message):
        llm.create_chat_completion(MESSAGES, tools=tools, tool_choice="required")
