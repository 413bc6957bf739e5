"""Anthropic's API, by its client and as it goes over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from ggmlpy.server import Settings
from ggmlpy.server.anthropic.conversation import read_messages
from tests.server.conftest import MODEL, Server, named_events, open_model, running

TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    '{# <tool_call> #}{# "arguments" #}{% if enable_thinking %}<think>{% endif %}{# </think> #}'
)
USER: Any = [{"role": "user", "content": "Tell me a story."}]
WEATHER: Any = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Bonn", "Ulm"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """With a template that has tools and reasoning."""
    keys = {"tokenizer.chat_template": TEMPLATE}
    with running(open=lambda: open_model(kv_overrides=keys)) as made:
        yield made


@pytest.fixture
def api(client: httpx.Client, server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def saying(text: str) -> dict[str, Any]:
    """Options with which the model answers with this text."""
    pytest.importorskip("llguidance")
    return {"grammar": f"root ::= {json.dumps(text)}"}


_EXTRA = ("temperature", "output_config", "reasoning_budget")  # what the client may not have


def create(api: anthropic.Anthropic, *, said: str | None = None, **options: Any) -> Any:
    extra = {"seed": 1} | (saying(said) if said is not None else {})
    extra |= {name: options.pop(name) for name in _EXTRA if name in options}
    asked = {"model": MODEL, "messages": USER, "max_tokens": 200, **options}
    return api.messages.create(**asked, extra_body=extra)


def events_of(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names are their types."""
    asked = {"model": MODEL, "messages": USER, "max_tokens": 200, "stream": True, **body}
    return named_events(client, "/v1/messages", asked)


def test_an_answer_is_that_of_the_model(api: anthropic.Anthropic, server: Server) -> None:
    made = create(api, system="Be short.", max_tokens=12, temperature=0.0)
    given = [{"role": "system", "content": "Be short."}, *USER]
    wanted = server.llm.create_chat_completion(given, max_tokens=12, temperature=0)
    (block,) = made.content
    assert block.text == wanted["choices"][0]["message"]["content"]
    assert (made.type, made.role, made.model) == ("message", "assistant", MODEL)
    assert (made.stop_reason, made.stop_sequence) == ("max_tokens", None)
    assert made.id.startswith("msg_")
    n_prompt = wanted["usage"]["prompt_tokens"]
    assert made.usage.input_tokens + made.usage.cache_read_input_tokens == n_prompt
    assert made.usage.output_tokens == 12
    again = create(api, system="Be short.", max_tokens=12, temperature=0.0)
    assert again.usage.cache_read_input_tokens == n_prompt - 1
    assert again.usage.input_tokens == 1


def test_a_stream_is_the_whole_in_pieces(api: anthropic.Anthropic, client: httpx.Client) -> None:
    asked: Any = {"model": MODEL, "messages": USER, "max_tokens": 12}
    asked["extra_body"] = {"temperature": 0}
    whole = api.messages.create(**asked)
    with api.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert [each.type for each in final.content] == ["text"]
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 12)
    kinds = [each["type"] for each in events_of(client, max_tokens=12, temperature=0.0)]
    n_deltas = kinds.count("content_block_delta")
    assert n_deltas > 5
    assert kinds == [
        "message_start", "ping", "content_block_start", *["content_block_delta"] * n_deltas,
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip


CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'


def test_blocks_of_thinking_text_and_calls(api: anthropic.Anthropic, client: httpx.Client) -> None:
    said = f"<think>Hm.</think>Let me see.{CALL}"
    more: dict[str, Any] = {"tools": [WEATHER]}
    made = create(api, said=said, **more)
    thinking, text, call = made.content
    assert (thinking.type, thinking.thinking, thinking.signature) == ("thinking", "Hm.", "")
    assert (text.type, text.text) == ("text", "Let me see.")
    assert (call.type, call.name, call.input) == ("tool_use", "weather", {"city": "Ulm"})
    assert made.stop_reason == "tool_use"
    with api.messages.stream(
        model=MODEL, messages=USER, max_tokens=200, **more, extra_body=saying(said)
    ) as stream:
        final = stream.get_final_message()
    shown = [each.to_dict() for each in final.content]
    wanted = [each.to_dict() for each in made.content]
    assert shown[2].pop("id") != wanted[2].pop("id")  # of another answer
    assert shown == wanted
    found = events_of(client, **more, **saying(said))
    starts = [each for each in found if each["type"] == "content_block_start"]
    assert [each["index"] for each in starts] == [0, 1, 2]
    assert [each["content_block"]["type"] for each in starts] == ["thinking", "text", "tool_use"]
    assert starts[2]["content_block"]["input"] == {}
    deltas = [each["delta"]["type"] for each in found if each["type"] == "content_block_delta"]
    order = list(dict.fromkeys(deltas))
    assert order == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] > 0


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_calls_that_must_be(api: anthropic.Anthropic, choice: dict[str, Any]) -> None:
    pytest.importorskip("llguidance")
    single = {**choice, "disable_parallel_tool_use": True}
    made = create(api, tools=[WEATHER], tool_choice=single, temperature=1.0, reasoning_budget=0)
    calls = [each for each in made.content if each.type == "tool_use"]
    assert len(calls) == 1
    assert calls[0].input["city"] in ("Bonn", "Ulm")


def test_no_calls_where_none_may_be(api: anthropic.Anthropic) -> None:
    made = create(api, said=CALL, tools=[WEATHER], tool_choice={"type": "none"})
    assert made.content[0].type == "text"
    assert made.stop_reason == "end_turn"


def test_a_long_answer(api: anthropic.Anthropic) -> None:
    """Is put together in a thread."""
    said = "".join(f"{i} " for i in range(100))
    made = create(api, said=said, max_tokens=400)
    assert made.content[0].text == said
    assert made.usage.output_tokens > 128


def test_stop_sequences(api: anthropic.Anthropic) -> None:
    said = "One two three four."
    made = create(api, said=said, stop_sequences=["five", "three"])
    assert made.content[0].text == "One two "
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "three")
    made = create(api, said=said, stop_sequences=["five"])
    assert (made.stop_reason, made.stop_sequence) == ("end_turn", None)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_was_begun_goes_on(
    api: anthropic.Anthropic, server: Server, stream: bool
) -> None:
    begun: Any = [*USER, {"role": "assistant", "content": [{"type": "text", "text": "The cat"}]}]
    asked: Any = {"model": MODEL, "messages": begun, "max_tokens": 12}
    asked["extra_body"] = {"temperature": 0}
    if stream:
        with api.messages.stream(**asked) as events:
            made = events.get_final_message()
    else:
        made = api.messages.create(**asked)
    prompt = f"user: {USER[0]['content']}\nThe cat"
    wanted = server.llm.create_completion(prompt, max_tokens=12, temperature=0)
    assert made.content[0].text == wanted["choices"][0]["text"]
    assert made.content[0].text[0] == " "
    n = made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0)
    assert n == wanted["usage"]["prompt_tokens"]
    assert api.messages.count_tokens(model=MODEL, messages=begun).input_tokens == n


def test_structured_output(api: anthropic.Anthropic) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "schema": WEATHER["input_schema"]}
    made = create(api, output_config={"format": form})
    assert json.loads(made.content[0].text)["city"] in ("Bonn", "Ulm")
    old = api.messages.create(
        model=MODEL, messages=USER, max_tokens=200, extra_body={"output_format": form, "seed": 1}
    )
    assert json.loads(old.content[0].text)["city"] in ("Bonn", "Ulm")


def test_thinking(api: anthropic.Anthropic, client: httpx.Client) -> None:
    """A budget ends it; without thinking the template is told that there is none."""
    enabled = {"type": "enabled", "budget_tokens": 1024}
    counted = [
        client.post(
            "/v1/messages/count_tokens", json={"messages": USER, "thinking": {"type": kind}}
        ).json()["input_tokens"]
        for kind in ("disabled", "adaptive")
    ]
    assert counted[0] < counted[1]  # <think>
    made = create(api, said="Hm.</think>Hello.", thinking=enabled, max_tokens=2000)
    assert [each.type for each in made.content] == ["thinking", "text"]
    made = create(api, thinking=enabled | {"budget_tokens": 3}, max_tokens=40, temperature=0.0)
    assert made.content[0].type == "thinking"
    assert made.content[1].type == "text"


def test_counted_tokens(api: anthropic.Anthropic, server: Server) -> None:
    more: dict[str, Any] = {"system": "Be short.", "tools": [WEATHER]}
    counted = api.messages.count_tokens(model=MODEL, messages=USER, **more)
    usage = create(api, max_tokens=1, **more).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    long: Any = [{"role": "user", "content": "word " * 2000}]
    assert api.messages.count_tokens(model=MODEL, messages=long).input_tokens > 2000


def test_a_conversation() -> None:
    made = read_messages(
        {
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
                {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be kind."},
            ],
            "messages": [
                {"role": "user", "content": "How is it in Ulm?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": ""},
                        {"type": "redacted_thinking", "data": "x"},
                        {"type": "text", "text": "Let me see."},
                        {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Ü"}},
                        {"type": "tool_use", "id": "b", "name": "now", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": "Rain."},
                        {
                            "type": "tool_result",
                            "tool_use_id": "b",
                            "content": [
                                {"type": "text", "text": "9"},
                                {"type": "text", "text": "h"},
                            ],
                        },
                        {"type": "text", "text": "And"},
                        {"type": "text", "text": "now?"},
                    ],
                },
            ],
        }
    )
    calls = [
        {
            "id": "a",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Ü"}'},
        },
        {"id": "b", "type": "function", "function": {"name": "now", "arguments": "{}"}},
    ]
    assert made == [
        {"role": "system", "content": "Be short.\n\nBe kind."},
        {"role": "user", "content": "How is it in Ulm?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Hm.",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "a", "name": "weather", "content": "Rain."},
        {"role": "tool", "tool_call_id": "b", "name": "now", "content": "9\nh"},
        {"role": "user", "content": "And\nnow?"},
    ]  # fmt: skip


def test_documents_that_are_texts() -> None:
    text = {"type": "text", "text": "It rains."}
    plain = {"type": "text", "media_type": "text/plain", "data": "It snows."}
    content = [
        {"type": "document", "source": plain, "title": "Ulm", "context": "Today."},
        {"type": "document", "source": {"type": "content", "content": [text, text]}},
        {"type": "search_result", "source": "a.org", "title": "Bonn", "content": [text]},
        {"type": "text", "text": "What now?"},
    ]
    (made,) = read_messages({"messages": [{"role": "user", "content": content}]})
    assert made["content"].split("\n") == [
        "Ulm", "Today.", "It snows.", "It rains.", "It rains.", "Bonn", "a.org", "It rains.",
        "What now?",
    ]  # fmt: skip
    result = {"type": "tool_result", "tool_use_id": "a", "content": content[2:3]}
    (made,) = read_messages({"messages": [{"role": "user", "content": [result]}]})
    assert made["content"] == "Bonn\na.org\nIt rains."


USE = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://localhost/a.png"}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"messages": []}, "messages is empty"),
        ({"messages": "Hello"}, "messages is"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role is"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "content[0] is of type image"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content[0].text"),
        ({"messages": [*USER, {"role": "assistant", "content": "The "}]}, "white space"),
        ({"messages": [*USER, {"role": "assistant", "content": ""}]}, "has no text"),
        ({"messages": [*USER, {"role": "assistant", "content": [USE]}]}, "call of a tool"),
        ({"mcp_servers": [{"name": "a"}]}, "mcp_servers is not supported"),
        ({"container": "c"}, "container is not supported"),
        ({"service_tier": 1}, "service_tier is 1"),
        ({"system": 3}, "system is 3"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1] is empty"),
        ({"messages": [{"role": "user", "content": [PDF]}]}, "content[0].source is of type base64"),
        ({"messages": [{"role": "user", "content": [PDF | {"source": {}}]}]}, "source.type is"),
        ({"messages": [{"role": "assistant", "content": "The"}]}, "no question"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0] is of type"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [WEATHER], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "now"}}, "now"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens is missing"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type is"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, "prompt is too long"),
    ],
)
def test_what_is_refused(client: httpx.Client, body: dict[str, Any], message: str) -> None:
    asked = {"model": MODEL, "messages": USER, "max_tokens": 8, **body}
    response = client.post("/v1/messages", json=asked)
    assert response.status_code == 400, response.text
    found = response.json()
    assert found["type"] == "error"
    assert found["error"]["type"] == "invalid_request_error"
    assert found["request_id"] == response.headers["request-id"]
    assert message in found["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("DELETE", "/v1/messages/count_tokens", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/messages/x", 404, "not_found_error"),
        ("POST", "/v1/messages", 413, "request_too_large"),
    ],
)
def test_all_errors_have_its_form(method: str, path: str, status: int, kind: str) -> None:
    with running(Settings(max_body_bytes=100)) as server:
        response = httpx.request(method, server.url + path, content=b" " * 200)
        other = httpx.get(f"{server.url}/v1/messages_of_mine")
    assert response.status_code == status
    found = response.json()
    assert found.pop("request_id") == response.headers["request-id"]
    assert found["type"] == "error"
    assert found["error"]["type"] == kind
    assert found["error"]["message"]
    assert "param" in other.json()["error"]


def test_a_tool_whose_type_is_null(client: httpx.Client) -> None:
    asked = {"model": MODEL, "messages": USER, "tools": [{**WEATHER, "type": None}]}
    response = client.post("/v1/messages/count_tokens", json=asked)
    assert response.status_code == 200, response.text


def test_errors_of_the_client(api: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as found:
        api.messages.create(model="claude", messages=USER, max_tokens=8)
    assert found.value.body == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": f'there is no model "claude": this server has "{MODEL}"',
        },
        "request_id": found.value.request_id,
    }
    assert found.value.request_id == found.value.response.headers["x-request-id"]
    with running(Settings(api_keys=frozenset({"key"}))) as other:

        def client(key: str) -> anthropic.Anthropic:
            return anthropic.Anthropic(base_url=other.url, api_key=key, max_retries=0)

        with client("wrong") as wrong, pytest.raises(anthropic.AuthenticationError):
            wrong.messages.create(model=MODEL, messages=USER, max_tokens=8)
        with client("key") as right:
            assert right.messages.create(model=MODEL, messages=USER, max_tokens=2).content
