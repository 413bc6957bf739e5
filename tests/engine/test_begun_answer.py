"""`continue_final_message`: the last message is the beginning of the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ggmlpy import Llama, packaged_model
from ggmlpy.engine.begun_answer import BegunAnswer
from ggmlpy.engine.generation import Request
from ggmlpy.errors import ArgumentError, Unsupported

WRITES = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% if think %}<think>{% endif %}{% endif %}"
)
TEMPLATES = {
    "plain": WRITES,
    "thinking": WRITES + '{# </think> <tool_call> "arguments" #}',
    "harmony": WRITES + "{# <|start|><|channel|> #}",
}
USER = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module", params=TEMPLATES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def llm(name: str) -> Iterator[Llama]:
    keys = {"tokenizer.chat_template": TEMPLATES[name].replace("\\n", "\n")}
    with Llama(packaged_model(), n_ctx_seq=256, kv_overrides=keys) as made:
        yield made


def begun(**last: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", "content": "The cat", **last}]


def prepared(llm: Llama, messages: list[dict[str, Any]], **options: Any) -> Request:
    return llm.prepare_chat_completion(messages, continue_final_message=True, **options)[0]


@pytest.mark.parametrize(
    ("last", "think", "ends"),
    [
        ({}, False, "assistant: The cat"),
        ({"content": [{"type": "text", "text": "The cat"}]}, False, "assistant: The cat"),
        ({"reasoning_content": "Hm."}, False, "assistant: <think>Hm.</think>\n\nThe cat"),
        ({}, True, "assistant: <think></think>\n\nThe cat"),
        ({"reasoning_content": "Hm."}, True, "assistant: <think>Hm.</think>\n\nThe cat"),
    ],
)
def test_the_prompt_ends_with_it(
    llm: Llama, name: str, last: dict[str, Any], think: bool, ends: str
) -> None:
    if name == "harmony" or (name == "plain" and (think or "reasoning_content" in last)):
        pytest.skip("the template has no such reasoning")
    made = prepared(llm, begun(**last), chat_template_kwargs={"think": think})
    assert list(made.prompt) == llm.tokenizer.encode_chat(f"user: Hello\n{ends}")


def test_the_result_is_what_follows(llm: Llama, name: str) -> None:
    if name == "harmony":
        with pytest.raises(Unsupported, match="parts with headers"):
            prepared(llm, begun())
        return
    options: dict[str, Any] = {"max_tokens": 9, "temperature": 0}
    made = llm.create_chat_completion(begun(), continue_final_message=True, **options)
    prompt = llm.tokenizer.encode_chat("user: Hello\nassistant: The cat")
    wanted = llm.create_completion(prompt, **options)["choices"][0]["text"]
    assert made["choices"][0]["message"]["content"] == wanted
    chunks = llm.create_chat_completion(
        begun(), continue_final_message=True, stream=True, **options
    )
    deltas = [each["choices"][0]["delta"].get("content", "") for each in chunks]
    assert "".join(deltas) == wanted


def test_reasoning_is_over_and_calls_are_not(llm: Llama, name: str) -> None:
    if name != "thinking":
        pytest.skip("the template has no calls")
    pytest.importorskip("llguidance")
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    messages = begun(content="I look.")
    request, form = llm.prepare_chat_completion(
        messages, continue_final_message=True, tools=[TOOL], chat_template_kwargs={"think": True}
    )
    found = form.whole(f" Now.{call}", [], "stop", 9)["choices"][0]
    assert found["message"]["content"] == " Now."
    assert found["message"]["tool_calls"][0]["function"]["name"] == "now"
    assert request.lazy_grammar is not None


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "do not end with one of the assistant"),
        ([USER], "do not end with one of the assistant"),
        (begun()[1:], "only, and no question"),
        (begun(content=""), "has no text"),
        (begun(content=None), "has no text"),
        (begun(content="The "), "white space"),
        (begun(tool_calls=[{"id": "a"}]), "call of a tool"),
    ],
)
def test_what_cannot_be_continued(messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"messages .*{message}"):
        BegunAnswer.of(messages)


def test_a_grammar_would_begin_anew(llm: Llama) -> None:
    must = {"tools": [TOOL], "tool_choice": "required"}
    for options in (
        {"response_format": {"type": "json_object"}},
        {"grammar": 'root ::= "a"'},
        must,
    ):
        if llm.chat_template.source == TEMPLATES["harmony"].replace("\\n", "\n"):
            continue
        with pytest.raises(ArgumentError, match="the last message must be another one"):
            prepared(llm, begun(), **options)
