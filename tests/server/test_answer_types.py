"""Answers and events are valid values of the types in OpenAI's and Anthropic's packages, whose
clients themselves check less."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import anthropic.types as anthropic_types
import httpx
import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.server.conftest import MODEL

# The type of a whole answer, and of an event, for each path.
TYPES: dict[str, tuple[Any, Any]] = {
    "/v1/chat/completions": (ChatCompletion, ChatCompletionChunk),
    "/v1/completions": (Completion, None),  # OpenAI's own events have no reason to finish
    "/v1/responses": (Response, ResponseStreamEvent),
    "/v1/embeddings": (CreateEmbeddingResponse, None),
    "/v1/messages": (anthropic_types.Message, anthropic_types.RawMessageStreamEvent),
    "/v1/messages/count_tokens": (anthropic_types.MessageTokensCount, None),
}
CHAT, TEXT, RESPONSE, VECTOR, MESSAGE, COUNT = TYPES
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Ulm"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "parameters": SCHEMA}
FORM = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
USER = [{"role": "user", "content": "How is it in Ulm?"}]
TOOL = {"name": "weather", "input_schema": SCHEMA}
ARGUMENTS = '{"city": "Ulm"}'
ASKED = {"id": "a1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
CALLED: dict[str, list[dict[str, Any]]] = {  # a conversation with a call and its result
    CHAT: [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [ASKED]},
        {"role": "tool", "tool_call_id": "a1", "content": "rain"},
    ],
    RESPONSE: [
        *USER,
        {"type": "function_call", "call_id": "a1", "name": "weather", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "a1", "output": "rain"},
    ],
    MESSAGE: [
        *USER,
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "a1", "name": "weather", "input": {"city": "Ulm"}}
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "a1", "content": "rain"}],
        },
    ],
}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": USER, "max_tokens": 8, "logprobs": True, "top_logprobs": 2, "n": 2}),
    (CHAT, {"messages": USER, "max_tokens": 8, "stream_options": {"include_usage": True}}),
    (
        CHAT,
        {"messages": USER, "tools": [{"type": "function", "function": FUNCTION}]}
        | {"tool_choice": "required", "max_tokens": 100},
    ),
    (CHAT, {"messages": CALLED[CHAT], "response_format": FORM, "max_tokens": 100}),
    (TEXT, {"prompt": ["a", "b"], "max_tokens": 8, "logprobs": 2}),
    (RESPONSE, {"input": "Hello.", "instructions": "Be short.", "max_output_tokens": 16}),
    (
        RESPONSE,
        {"input": USER, "tools": [{"type": "function", **FUNCTION}]}
        | {"tool_choice": "required", "max_output_tokens": 100},
    ),
    (
        RESPONSE,
        {"input": CALLED[RESPONSE], "max_output_tokens": 100}
        | {"text": {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}}},
    ),
    (MESSAGE, {"messages": USER, "system": "Be short.", "max_tokens": 8}),
    (
        MESSAGE,
        {"messages": CALLED[MESSAGE], "tools": [TOOL], "tool_choice": {"type": "any"}}
        | {"max_tokens": 100},
    ),
    (VECTOR, {"input": ["a", "b"]}),
    (VECTOR, {"input": "a", "encoding_format": "base64"}),
    (COUNT, {"messages": USER, "tools": [TOOL]}),
]


def ask(client: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    pytest.importorskip("llguidance")
    response = client.post(path, json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_answers(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    body = {name: value for name, value in body.items() if name != "stream_options"}
    made = ask(client, path, body).json()
    if body.get("encoding_format") == "base64":
        for each in made["data"]:
            each["embedding"] = list(b64decode(each["embedding"], validate=True))
    TypeAdapter(TYPES[path][0]).validate_python(made)


@pytest.mark.parametrize(("path", "body"), [each for each in BODIES if TYPES[each[0]][1]])
def test_events(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    text = ask(client, path, {**body, "stream": True}).text
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    found = [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]
    assert len(found) > 3
    adapter: TypeAdapter[Any] = TypeAdapter(TYPES[path][1])
    for each in found:
        if each.get("type") != "ping":  # which the client leaves out
            adapter.validate_python(each)
