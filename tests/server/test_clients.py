"""LangChain's and LiteLLM's requests, replayed: answers are what the APIs' own clients accept.

The packages are too large to be installed for tests; `record_clients.py` recorded what they send.
"""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import anthropic.types as anthropic_types
import httpx
import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.server.conftest import MODEL

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("clients.json").read_text(encoding="utf-8")
)
REQUESTS = [(package, each) for package in RECORDED for each in RECORDED[package]["requests"]]
# The type of a whole answer, and of an event, for each path.
TYPES: dict[str, tuple[Any, Any]] = {
    "/v1/chat/completions": (ChatCompletion, ChatCompletionChunk),
    "/v1/completions": (Completion, Completion),
    "/v1/responses": (Response, ResponseStreamEvent),
    "/v1/embeddings": (CreateEmbeddingResponse, None),
    "/v1/messages": (anthropic_types.Message, anthropic_types.RawMessageStreamEvent),
    "/v1/messages/count_tokens": (anthropic_types.MessageTokensCount, None),
}


def named(value: Any) -> str:
    return str(value["path"]) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize(("package", "request_"), REQUESTS, ids=named)
def test_answers_are_of_the_right_type(
    client: httpx.Client, package: str, request_: dict[str, Any]
) -> None:
    pytest.importorskip("llguidance")
    path, body = request_["path"], {**request_["body"], "model": MODEL}
    response = client.post(path, json=body, headers=request_["headers"])
    assert response.status_code == 200, response.text
    whole, event = TYPES[path]
    if not body.get("stream"):
        made = response.json()
        if body.get("encoding_format") == "base64":
            for each in made["data"]:
                each["embedding"] = list(b64decode(each["embedding"], validate=True))
        TypeAdapter(whole).validate_python(made)
        return
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    found = [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]
    assert len(found) > 3
    adapter: TypeAdapter[Any] = TypeAdapter(event)
    for each in found:
        if each["type" if "type" in each else "id"] != "ping":  # which the client leaves out
            adapter.validate_python(each)


def test_each_api_is_asked() -> None:
    assert {each["path"] for _, each in REQUESTS} == set(TYPES)
    assert {bool(each["body"].get("stream")) for _, each in REQUESTS} == {True, False}
    assert {package for package, _ in REQUESTS} == {
        "langchain-openai", "langchain-anthropic", "litellm",
    }  # fmt: skip
