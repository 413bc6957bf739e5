"""Requests that cannot be answered: the status, and OpenAI's error object."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ggmlpy.server import Settings
from tests.server.conftest import Server, running

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
MANY_TOOLS = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(1025)]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"prompt": "a", "temperature": "hot"}, "temperature"),
        (TEXT, {"prompt": "a", "temperature": True}, "temperature"),
        (TEXT, {"prompt": "a", "temperature": -1}, "temperature"),
        (TEXT, {"prompt": "a", "top_p": 1.5}, "top_p"),
        (TEXT, {"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
        (TEXT, {"prompt": "a", "max_tokens": "16"}, "max_tokens"),
        (TEXT, {"prompt": "a", "n": 0}, "n"),
        (TEXT, {"prompt": "a", "n": 1000}, "n"),
        (TEXT, {"prompt": "a", "n": 3, "best_of": 2}, "best_of"),
        (TEXT, {"prompt": "a", "n": 1, "best_of": 2, "stream": True}, "best_of"),
        (TEXT, {"prompt": "a", "stop": 3}, "stop"),
        (TEXT, {"prompt": "a", "stop": ["a"] * 100}, "stop"),
        (TEXT, {"prompt": "a", "stop": [""]}, "stop"),
        (TEXT, {"prompt": "a", "stream": "yes"}, "stream"),
        (TEXT, {"prompt": "a", "seed": "x"}, "seed"),
        (TEXT, {"prompt": "a", "logit_bias": {"": 1}}, "logit_bias"),
        (TEXT, {"prompt": "a", "logit_bias": {"999999": 1}}, "logit_bias"),
        (TEXT, {"prompt": "a", "logit_bias": 3}, "logit_bias"),
        (TEXT, {"prompt": "a", "logit_bias": [[300 * "a", 1]]}, "logit_bias"),
        (TEXT, {"prompt": "a", "logprobs": 100}, "logprobs"),
        (TEXT, {"prompt": "a", "grammar": "root ::= ("}, "grammar"),
        (TEXT, {"prompt": "a", "samplers": ["nothing"]}, "samplers"),
        (TEXT, {"prompt": "a", "model": 7}, "model"),
        (TEXT, {"prompt": {}}, "prompt"),
        (TEXT, {"prompt": [[1], "x", {}]}, "prompt[2]"),
        (TEXT, {"prompt": []}, "prompt"),
        (TEXT, {"prompt": [99999999]}, "prompt"),
        (TEXT, {"prompt": "\ud800"}, "prompt"),
        (TEXT, {"prompt": "a", "n": 10**400}, "n"),
        (TEXT, {"prompt": "a", "seed": 10**400}, "seed"),
        (
            TEXT,
            {"prompt": "a", "dry_multiplier": 1, "dry_penalty_last_n": 2**63},
            "dry_penalty_last_n",
        ),
        (TEXT, {"prompt": ["a"] * 17, "n": 128}, "n"),
        (TEXT, {"prompt": ["a"] * 17, "best_of": 128}, "best_of"),
        (
            TEXT,
            {"prompt": "a", "stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
        ),
        ("/completion", {"prompt": ["a"] * 17, "n_cmpl": 128}, "n_cmpl"),
        ("/detokenize", {"tokens": [1, 10**400]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, 99999999]}, "tokens"),
        (TEXT, {}, "prompt"),
        (CHAT, {}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "Hello"}, "messages"),
        (CHAT, {"messages": ["Hello"]}, "messages[0]"),
        (CHAT, {"messages": HELLO, "top_logprobs": 50}, "top_logprobs"),
        (CHAT, {"messages": HELLO, "top_logprobs": 5}, "top_logprobs"),
        (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"\ud800": 1}}, "chat_template_kwargs"),
        (
            CHAT,
            {
                "messages": HELLO,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "x"}},
                },
            },
            "response_format",
        ),
        (CHAT, {"messages": HELLO, "tools": [1]}, "tools[0]"),
        (CHAT, {"messages": HELLO, "tools": MANY_TOOLS}, "tools"),
        (CHAT, {"messages": HELLO, "tools": [{"type": "function"}]}, "tools"),
        (CHAT, {"messages": HELLO, "tool_choice": "sometimes"}, "tool_choice"),
        (CHAT, {"messages": HELLO, "functions": []}, "functions"),
        (CHAT, {"messages": HELLO, "modalities": ["audio"]}, "modalities"),
        (CHAT, {"messages": HELLO, "response_format": {"type": "x"}}, "response_format"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
def test_a_field_that_is_wrong(
    client: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    """Names the field, and what it must be."""
    response = client.post(path, content=json.dumps(body))  # httpx refuses lone surrogates
    error = error_of(response, 400)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert "Traceback" not in error["message"]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b'{"prompt": NaN}', "NaN"),
        (b'{"prompt": "a", "unknown": [-1e400]}', "-1e400"),
        (b'{"prompt": "a", "n": ' + b"1" * 5000 + b"}", "cannot be used|can be used"),
        (b"[1]", "a list"),
        (b'"text"', "a string"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"prompt": ' + b"[" * 100_000, "too deep"),
        (b'{"prompt": "a", "response_format": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001, "deep"),
    ],
    ids=[
        "nothing",
        "cut",
        "NaN",
        "inf",
        "digits",
        "list",
        "string",
        "bytes",
        "deep",
        "deep objects",
    ],
)
def test_a_body_that_is_no_object(client: httpx.Client, raw: bytes, said: str) -> None:
    assert re.search(said, error_of(client.post(TEXT, content=raw), 400)["message"])


def test_a_body_that_is_encoded(client: httpx.Client) -> None:
    body = gzip.compress(b'{"prompt": "a"}')
    response = client.post(TEXT, content=body, headers={"Content-Encoding": "gzip"})
    assert "gzip" in error_of(response, 415)["message"]
    plain = {"Content-Encoding": "identity"}
    body = b'{"prompt": "a", "max_tokens": 1}'
    assert client.post(TEXT, content=body, headers=plain).is_success


def test_a_whole_pair_of_surrogates(client: httpx.Client) -> None:
    """Is a character, in a body of ASCII."""
    raw = b'{"content": "\\ud83d\\uDE00"}'
    tokens = client.post("/tokenize", content=raw).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json()["content"].endswith("😀")


def test_numbers_of_json_that_mean_integers(client: httpx.Client) -> None:
    """2.0 is 2, as in JSON Schema; null is as if the field were not there."""
    body = {"prompt": "a", "max_tokens": 2.0, "temperature": None, "stop": None, "n": None}
    assert client.post(TEXT, json=body).json()["usage"]["completion_tokens"] <= 2


def test_too_long_a_prompt_says_both_numbers(client: httpx.Client, server: Server) -> None:
    prompt = "word " * 2000
    n = len(server.llm.tokenize(prompt, special=True))
    error = error_of(client.post(TEXT, json={"prompt": prompt}), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert str(n) in error["message"]
    assert str(server.llm.n_ctx_seq()) in error["message"]


def test_unknown_models_paths_and_verbs(client: httpx.Client) -> None:
    error = error_of(client.post(TEXT, json={"prompt": "a", "model": "gpt-9"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "stories" in error["message"]
    assert "/v1/nothing" in error_of(client.get("/v1/nothing"), 404)["message"]
    response = client.get(TEXT)
    assert "POST" in error_of(response, 405)["message"]
    assert response.headers["allow"] == "POST"


def test_api_keys() -> None:
    settings = Settings(api_keys=frozenset({"first", "secönd"}))
    body = {"prompt": "a", "max_tokens": 1}
    bad: list[dict[str, Any]] = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "first"},
        {"X-Api-Key": ""},
    ]
    good: list[dict[str, Any]] = [
        {"Authorization": "Bearer first"},
        {"authorization": "bearer first"},
        {"X-Api-Key": "first"},
        {"Authorization": "Bearer secönd".encode()},
    ]
    with running(settings) as server, httpx.Client(base_url=server.url) as client:
        for headers in bad:
            error = error_of(client.post(TEXT, json=body, headers=headers), 401)
            assert error["code"] == "invalid_api_key"
        for headers in good:
            assert client.post(TEXT, json=body, headers=headers).status_code == 200
        assert client.get("/health").status_code == 200
        for path in ("/v1/models", "/v1/models/stories", "/models"):  # by them keys are tried
            assert error_of(client.get(path), 401)["code"] == "invalid_api_key"
            assert client.get(path, headers=good[0]).status_code == 200


def test_a_body_that_is_too_large() -> None:
    def parts() -> Iterator[bytes]:  # without a content-length
        for _ in range(20):
            yield b" " * 100

    settings = Settings(max_body_bytes=1000)
    with running(settings) as server, httpx.Client(base_url=server.url) as client:
        error = error_of(client.post(TEXT, json={"prompt": "a" * 2000}), 413)
        assert "1,000 bytes" in error["message"]
        assert client.post(TEXT, content=parts()).status_code == 413
        assert client.post(TEXT, json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_limit_of_time() -> None:
    with running(Settings(timeout_s=0.05)) as server:
        response = httpx.post(
            f"{server.url}{TEXT}", json={"prompt": ["a"] * 64, "max_tokens": 400}, timeout=30
        )
        assert "0.05 s" in error_of(response, 504)["message"]
        body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "n": 64, "stream": True}
        with httpx.stream("POST", f"{server.url}{TEXT}", json=body, timeout=30) as stream:
            lines = [line for line in stream.iter_lines() if line]
        last = json.loads(lines[-1].removeprefix("data: "))
        assert "0.05 s" in last["error"]["message"]


def test_cors(client: httpx.Client) -> None:
    """Pages of this machine may ask, others may not."""
    for origin, allowed in (("http://localhost:3000", True), ("https://example.org", False)):
        response = client.options(
            CHAT, headers={"Origin": origin, "Access-Control-Request-Method": "POST"}
        )
        assert (response.headers.get("access-control-allow-origin") == origin) is allowed
