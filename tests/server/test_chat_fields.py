"""Fields of chat completions and responses: roles, parts, choices of tools, what has no effect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ggmlpy.server.openai.chat_messages import template_messages
from tests.server.conftest import Server, open_model, running
from tests.server.test_anthropic import TEMPLATE, WEATHER

USER: Any = [{"role": "user", "content": "How is it?"}]
NAMES = ("weather", "now", "later")
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": WEATHER["input_schema"]}}
    for name in NAMES
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """With a template that has tools and reasoning."""
    with running(open=lambda: open_model(kv_overrides={"tokenizer.chat_template": TEMPLATE})) as s:
        yield s


def prompt(client: httpx.Client, messages: list[dict[str, Any]], **more: Any) -> str:
    response = client.post("/apply-template", json={"messages": messages, **more})
    assert response.status_code == 200, response.text
    return str(response.json()["prompt"])


def chat(client: httpx.Client, **body: Any) -> httpx.Response:
    asked = {"messages": USER, "max_tokens": 200, "temperature": 0, **body}
    return client.post("/v1/chat/completions", json=asked)


def test_developers_are_the_system_unless_a_template_knows_them() -> None:
    messages = [{"role": "developer", "content": "Be kind."}, *USER]
    assert template_messages(messages, "{{ role }}") == [{**messages[0], "role": "system"}, *USER]
    assert template_messages(messages, "if role == 'developer'") == messages


def test_refusals_are_what_the_assistant_said(client: httpx.Client) -> None:
    said = {"role": "assistant", "content": "No."}
    others: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "No."}]},
    ]
    wanted = prompt(client, [*USER, said, *USER])
    for each in others:
        assert prompt(client, [*USER, each, *USER]) == wanted


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url", None])
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/chat/completions/input_tokens", "/apply-template"]
)
def test_parts_that_are_no_text_are_named(
    client: httpx.Client, path: str, kind: str | None
) -> None:
    content = [{"type": "text", "text": "Look:"}, {"type": kind, "image_url": {"url": "data:"}}]
    body = {"messages": [*USER, {"role": "user", "content": content}]}
    response = client.post(path, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "messages[1].content[1].type"
    assert f"is of type {json.dumps(kind)}" in error["message"]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("seed", range(3))
def test_some_tools_are_allowed_and_all_are_known(
    client: httpx.Client, api: str, seed: int
) -> None:
    pytest.importorskip("llguidance")
    more = {"temperature": 1.5, "seed": seed, "reasoning_budget": 0}
    if api == "chat":
        names = [{"type": "function", "function": {"name": name}} for name in NAMES[1:]]
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": names}}
        made = chat(client, tools=TOOLS, tool_choice=choice, **more).json()
        (call, *_) = made["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] in NAMES[1:]
        all_of_them = chat(client, tools=TOOLS, max_tokens=1).json()
        assert made["usage"]["prompt_tokens"] == all_of_them["usage"]["prompt_tokens"]
        return
    body: dict[str, Any] = {
        "input": "How is it?",
        "max_output_tokens": 200,
        "tools": [{"type": "function", **each["function"]} for each in TOOLS],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": name} for name in NAMES[1:]],
        },
    }
    made = client.post("/v1/responses", json={**body, **more}).json()
    calls = [each for each in made["output"] if each["type"] == "function_call"]
    assert {each["name"] for each in calls} <= set(NAMES[1:])
    assert calls
    assert made["tool_choice"] == body["tool_choice"]


def _allowed(mode: Any, tools: Any) -> dict[str, Any]:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    return {"tools": TOOLS, "tool_choice": choice}


NOW = [{"type": "function", "function": {"name": "now"}}]
NEVER = [{"type": "function", "function": {"name": "never"}}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (_allowed("none", NOW), "tool_choice"),
        (_allowed("auto", []), "tool_choice"),
        (_allowed("auto", NEVER), "tool_choice"),
        (_allowed("auto", [3]), "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"functions": []}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "modalities"),
        ({"prediction": "The"}, "prediction"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"n": 0}, "n"),
        ({"continue_final_message": True}, "messages"),
    ],
)
def test_what_is_refused(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = chat(client, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_fields_without_an_effect(client: httpx.Client) -> None:
    plain = chat(client, max_tokens=12).json()
    told = chat(
        client,
        max_completion_tokens=12,
        max_tokens=None,
        prediction={"type": "content", "content": "The"},
        verbosity="low",
        store=True,
        metadata={"a": "b"},
        user="me",
        safety_identifier="me",
        prompt_cache_key="key",
        service_tier="auto",
        response_format={"type": "text"},
        modalities=["text"],
    ).json()
    assert told["choices"] == plain["choices"]
    assert told["usage"]["completion_tokens"] == 12


def test_no_effort_is_no_thinking(client: httpx.Client) -> None:
    def n_tokens(**more: Any) -> int:
        made = client.post("/v1/chat/completions/input_tokens", json={"messages": USER, **more})
        return int(made.json()["input_tokens"])

    thinks = n_tokens(chat_template_kwargs={"enable_thinking": True})
    assert (
        n_tokens(chat_template_kwargs={"enable_thinking": True}, reasoning_effort="low") == thinks
    )
    assert n_tokens(reasoning_effort="none") < thinks


def test_a_last_message_of_the_assistant_can_be_continued(
    client: httpx.Client, server: Server
) -> None:
    begun = [*USER, {"role": "assistant", "content": "The cat"}]
    made = chat(client, messages=begun, max_tokens=8, continue_final_message=True).json()
    prompt = f"user: {USER[0]['content']}\nThe cat"
    wanted = server.llm.create_completion(prompt, max_tokens=8, temperature=0)
    assert made["choices"][0]["message"]["content"] == wanted["choices"][0]["text"]
    other = chat(client, messages=begun, max_tokens=8).json()
    assert other["usage"]["prompt_tokens"] != made["usage"]["prompt_tokens"]
