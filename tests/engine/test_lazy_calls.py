"""Calls that a model may make: text is free before and behind them, a call keeps to its tool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from numpy.typing import NDArray

from ggmlpy import Llama
from ggmlpy.engine.options import LogitsCallback
from tests.calling.formats import ANSWERS, TOOLS
from tests.engine.test_chat_tools import MESSAGES, TEMPLATES, WRITES, opened, saying
from tests.models.tiny import Tiny, byte_vocabulary, write_model

pytest.importorskip("llguidance")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "at": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}},
            "required": ["x"],
            "additionalProperties": False,
        },
        "code": {"type": "string", "pattern": "^[A-C]+/?$", "minLength": 2, "maxLength": 4},
        "day": {"type": "string", "format": "date"},
        "size": {"enum": ["S", 1, None]},
    },
    "required": ["unit", "code"],
    "additionalProperties": False,
}
SHORT: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
BAR = "\uff5c"
MARKERS = {
    "hermes": "<tool_call>",
    "hermes, thinking": "Why?</think><tool_call>",
    "qwen3-coder": "<tool_call>",
    "glm": "<tool_call>",
    "llama 3": '{"name": "',
    "mistral": "[TOOL_CALLS]",
    "mistral, named": "[TOOL_CALLS]",
    "granite 3": "<|tool_call|>",
    "deepseek r1": f"<{BAR}tool▁calls▁begin{BAR}>",
    "deepseek v3.1": f"<{BAR}tool▁calls▁begin{BAR}>",
    "deepseek dsml": f"<{BAR}DSML{BAR}function_calls>",
    "gpt-oss": "<|channel|>commentary to=functions.",
    "gemma 4": "<|tool_call>",
    "lfm2": "<|tool_call_start|>",
    "kimi k2": "<|tool_calls_section_begin|>",
    "command r": "<|START_ACTION|>",
    "functionary": "<function=",
    "functionary 3.2": "all\nWell.\n>>>get",
    "nemotron": "<TOOLCALL>",
    "apriel": "<tool_calls>",
    "minimax": "<minimax:tool_call>",
    "seed-oss": "<seed:tool_call>",
}


def beginning(llm: Llama, text: str) -> LogitsCallback:
    """The tokens of a text, then what the model likes."""
    left = llm.tokenizer.encode_part(text, special=True)

    def process(seen: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if left:
            logits[:] = -50
            logits[left.pop(0)] = 50
        return logits

    return process


def checked(choice: dict[str, Any]) -> int:
    """How many calls are whole: each of them is one of a tool, with arguments of its schema."""
    calls = choice["message"].get("tool_calls", [])
    whole = calls[:-1] if choice["finish_reason"] == "length" else calls
    for call in whole:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        schema = SCHEMA if function["name"] == "get_weather" else {"maxProperties": 0}
        assert function["name"] in ("get_weather", "now")
        Draft202012Validator(schema).validate(arguments)
    return len(whole)


@pytest.mark.parametrize("template", MARKERS)
def test_what_a_model_begins_it_ends_as_a_call(template: str) -> None:
    """Whatever it draws behind the marker, in an answer that needs no call."""
    with opened(template, n_ctx=1024) as llm:
        n_whole = 0
        begins = ("llama 3", "gpt-oss", "functionary 3.2", "hermes, thinking")
        begun = "" if template in begins else "Well. "
        for seed in range(8):
            result = llm.create_chat_completion(
                MESSAGES, tools=SHORT, seed=seed, temperature=1.0, max_tokens=450,
                parallel_tool_calls=seed % 2 == 0,
                logits_processor=beginning(llm, begun + MARKERS[template]),
            )  # fmt: skip
            n_whole += checked(result["choices"][0])
        assert n_whole >= 2


@pytest.mark.parametrize("first", ["", "now"])
@pytest.mark.parametrize("begun", ["no", "get_wrong"])
@pytest.mark.parametrize("template", ["hermes", "llama 3", "gpt-oss", "mistral, named"])
def test_only_tools_are_called(template: str, begun: str, first: str) -> None:
    """A model that begins a name which no tool has is led to one, after other calls too."""
    begin, middle, end = {
        "hermes": ('<tool_call>\n{"name": "', '", "arguments": {}}', "\n</tool_call>\n"),
        "llama 3": ('{"name": "', '", "parameters": {}}', "; "),
        "gpt-oss": (
            "<|channel|>commentary to=functions.",
            " <|constrain|>json<|message|>{}",
            "<|call|><|start|>assistant",
        ),
        "mistral, named": ("[TOOL_CALLS]", "[ARGS]{}", ""),
    }[template]
    with opened(template, n_ctx=1024) as llm:
        text = f"{begin}{first}{middle}{end}" if first else ""
        result = llm.create_chat_completion(
            MESSAGES, tools=SHORT, max_tokens=200, seed=1,
            logits_processor=beginning(llm, text + begin + begun),
        )  # fmt: skip
    names = [call["function"]["name"] for call in result["choices"][0]["message"]["tool_calls"]]
    assert names[: 1 + bool(first)] == ["now"] * bool(first) + [
        "now" if begun == "no" else "get_weather"
    ]


def test_text_is_free_before_and_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without calls is the same as without grammars, and none is looked at."""
    options: dict[str, Any] = {"tools": SHORT, "max_tokens": 60, "temperature": 1.0}
    with opened("hermes", n_ctx=1024) as llm:
        with monkeypatch.context() as patch:
            patch.setattr("ggmlpy.engine.chat_prompts.is_installed", lambda: False)
            plain = [
                llm.create_chat_completion(MESSAGES, seed=seed, **options) for seed in range(8)
            ]
        with monkeypatch.context() as patch:
            patch.setattr("ggmlpy.grammar.vocabulary.Matchers.start", pytest.fail)
            found = [
                llm.create_chat_completion(MESSAGES, seed=seed, **options) for seed in range(8)
            ]
        assert [each["choices"] for each in found] == [each["choices"] for each in plain]
        answered = ANSWERS["hermes"]
        result = llm.create_chat_completion(
            MESSAGES, tools=TOOLS, max_tokens=400, temperature=0,
            logits_processor=saying(llm, f"{{\n{answered.text}\nAnd {{so on.\n{answered.text}"),
        )  # fmt: skip
    message = result["choices"][0]["message"]
    assert len(message["tool_calls"]) == 2
    assert message["content"] == "{And {so on."


def test_reasoning_has_no_calls() -> None:
    with opened("hermes, thinking", n_ctx=1024) as llm:
        text = "<think>A <tool_call> here?</think>No."
        message = llm.create_chat_completion(
            MESSAGES, tools=SHORT, max_tokens=60, temperature=0, logits_processor=saying(llm, text)
        )["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("A <tool_call> here?", "No.")


@pytest.mark.parametrize("template", ["hermes", "gemma 4", "lfm2"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        {"type": "string", "pattern": "a(?=b)"},
        {"not": {"type": "null"}},
        5,
    ],
    ids=str,
)
def test_schemas_that_no_grammar_has(
    template: str, schema: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a parameter may be anything, others keep to theirs; a warning says why."""
    properties = {"a": schema, "n": {"type": "integer", "minimum": 5, "maximum": 7}}
    parameters = {"type": "object", "properties": properties, "required": ["n"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    n_whole = 0
    with opened(template, n_ctx=1024) as llm:
        for seed in range(8):
            choice = llm.create_chat_completion(
                MESSAGES, tools=tools, max_tokens=150, seed=seed, temperature=1.0,
                parallel_tool_calls=False, logits_processor=beginning(llm, MARKERS[template]),
            )["choices"][0]  # fmt: skip
            if choice["finish_reason"] == "tool_calls":
                n_whole += 1
                (call,) = choice["message"]["tool_calls"]
                assert json.loads(call["function"]["arguments"])["n"] in (5, 6, 7)
    assert n_whole
    assert "a looser grammar holds: the grammar is refused: " in caplog.text


def test_grammars_that_cannot_be_made_at_all(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is what the model writes, with a warning."""
    text = '<tool_call>\n{"name": "now", "arguments": {"a": !}}\n</tool_call>'
    monkeypatch.setattr("ggmlpy.tools.lark.Lark.start", lambda self, body: "start: !")
    with opened("hermes", n_ctx=512) as llm:
        message = llm.create_chat_completion(
            MESSAGES, tools=SHORT[1:], max_tokens=60, temperature=0,
            logits_processor=saying(llm, text),
        )["choices"][0]["message"]  # fmt: skip
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": !}'
    assert "the answer is not constrained: the grammar is refused: " in caplog.text


@pytest.mark.parametrize("template", ["hermes", "glm", "mistral, named"])
def test_drafts_change_nothing(template: str) -> None:
    """Not where one leads into a call either, of a tool that there is not."""
    wrong = MARKERS[template] + '{"name": "nothing'
    with opened(template, n_ctx=1024) as llm:
        draft = llm.tokenizer.encode_part(wrong, special=True)
    made = []
    for drafter in (None, lambda seen: draft):
        with opened(template, n_ctx=1024, draft_model=drafter) as llm:
            made.append(
                [
                    llm.create_chat_completion(
                        MESSAGES, tools=SHORT, seed=seed, temperature=1.0, max_tokens=80,
                        logits_processor=beginning(llm, wrong[: len(MARKERS[template])]),
                    )["choices"][0]["message"]
                    for seed in range(4)
                ]
            )  # fmt: skip
    for plain, drafted in zip(*made, strict=True):
        for message in (plain, drafted):
            for call in message["tool_calls"]:
                call["id"] = ""
        assert plain == drafted


def test_a_token_with_the_marker_and_text_that_is_no_call(tmp_path: Path) -> None:
    """Another one is taken."""
    vocabulary = byte_vocabulary(Tiny().n_vocab)
    tokens = list(vocabulary["tokenizer.ggml.tokens"])
    types = list(vocabulary["tokenizer.ggml.token_type"])
    wrong = len(tokens) - 1
    tokens[wrong], types[wrong] = "]x", 4
    path = write_model(
        tmp_path / "model.gguf", Tiny(n_ctx=2048), tokenizer__ggml__tokens=tokens,
        tokenizer__ggml__token_type=types, tokenizer__chat_template=WRITES + TEMPLATES["mistral"],
    )  # fmt: skip
    with Llama(path, n_threads=1) as llm:
        right = llm.tokenizer.encode_part("]")
        begin = llm.tokenizer.encode_part("[TOOL_CALLS")

        def process(seen: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
            if begin:
                logits[begin.pop(0)] = 90
            elif right:
                logits[wrong], logits[right.pop()] = 90, 80
            return logits

        result = llm.create_chat_completion(
            MESSAGES, tools=SHORT, max_tokens=900, seed=3, logits_processor=process
        )
    assert checked(result["choices"][0])
