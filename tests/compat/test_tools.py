"""Grammars, tools and JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ggmlpy.compat.llama_cpp import (
    Llama,
    LlamaGrammar,
    LogitsProcessorList,
)
from tests.compat.models import PROMPT, make

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
