"""OpenAI's Responses API, by its client and as it goes over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from ggmlpy.server import Settings
from ggmlpy.server.openai.response_items import read_input, read_tools
from tests.server.conftest import MODEL, Server, named_events, open_model, running
from tests.server.test_anthropic import CALL, TEMPLATE, WEATHER, saying

CITY = WEATHER["input_schema"]
TOOL: Any = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
TEXT = "Tell me a story."


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """With a template that has tools and reasoning."""
    keys = {"tokenizer.chat_template": TEMPLATE}
    with running(open=lambda: open_model(kv_overrides=keys)) as made:
        yield made


@pytest.fixture
def api(client: httpx.Client, server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def create(api: openai.OpenAI, *, said: str | None = None, **options: Any) -> Any:
    extra = {"seed": 1} | (saying(said) if said is not None else {"reasoning_budget": 0})
    asked = {"model": MODEL, "input": TEXT, "max_output_tokens": 200, **options}
    return api.responses.create(**asked, extra_body=extra)


def events_of(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names are their types, and which are numbered."""
    asked = {"model": MODEL, "input": TEXT, "max_output_tokens": 200, "stream": True, **body}
    found = named_events(client, "/v1/responses", asked)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    return found


def test_a_response_is_that_of_the_model(api: openai.OpenAI, server: Server) -> None:
    more: dict[str, Any] = {"instructions": "Be short.", "temperature": 0.0}
    made = create(api, max_output_tokens=12, **more)
    given = [{"role": "system", "content": "Be short."}, {"role": "user", "content": TEXT}]
    wanted = server.llm.create_chat_completion(given, max_tokens=12, temperature=0)
    assert made.output_text == wanted["choices"][0]["message"]["content"]
    assert (made.object, made.model, made.store) == ("response", MODEL, True)
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert made.output[0].status == "incomplete"
    assert (made.instructions, made.temperature) == ("Be short.", 0.0)
    assert made.usage.input_tokens == wanted["usage"]["prompt_tokens"]
    assert made.usage.output_tokens == 12
    assert made.usage.total_tokens == made.usage.input_tokens + 12
    again = create(api, max_output_tokens=12, **more)
    assert again.usage.input_tokens_details.cached_tokens == made.usage.input_tokens - 1


def test_a_stream_is_the_whole_in_pieces(api: openai.OpenAI, client: httpx.Client) -> None:
    said = "One two three four five six."
    whole = create(api, said=said)
    with api.responses.stream(model=MODEL, input=TEXT, extra_body=saying(said)) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == whole.output_text == final.output_text == said
    found = events_of(client, max_output_tokens=12, temperature=0)
    kinds = [each["type"].removeprefix("response.") for each in found]
    n_deltas = kinds.count("output_text.delta")
    assert n_deltas > 5
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added",
        *["output_text.delta"] * n_deltas,
        "output_text.done", "content_part.done", "output_item.done", "incomplete",
    ]  # fmt: skip
    assert found[-1]["response"]["output"] == [found[-2]["item"]]
    assert found[0]["response"]["id"] == found[-1]["response"]["id"]
    assert found[0]["response"]["status"] == "in_progress"


def test_items_of_reasoning_text_and_calls(api: openai.OpenAI, client: httpx.Client) -> None:
    said = f"<think>Hm.</think>Let me see.{CALL}"
    made = create(api, said=said, tools=[TOOL])
    reasoning, message, call = made.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "Hm.")
    assert (message.type, message.content[0].text) == ("message", "Let me see.")
    assert (call.type, call.name) == ("function_call", "weather")
    assert json.loads(call.arguments) == {"city": "Ulm"}
    assert made.status == "completed"
    assert 0 < made.usage.output_tokens_details.reasoning_tokens < made.usage.output_tokens
    with api.responses.stream(
        model=MODEL, input=TEXT, tools=[TOOL], extra_body=saying(said)
    ) as stream:
        final = stream.get_final_response()
    assert [each.type for each in final.output] == [each.type for each in made.output]
    assert final.output_text == made.output_text
    found = events_of(client, tools=[TOOL], **saying(said))
    for i, item in enumerate(found[-1]["response"]["output"]):
        own = [each for each in found if each.get("output_index") == i]
        ids = {each["item_id"] if "item_id" in each else each["item"]["id"] for each in own}
        assert ids == {item["id"]}
        text = "".join(each["delta"] for each in own if "delta" in each)
        assert text == item.get("arguments", item.get("content", [{}])[0].get("text", ""))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_calls_that_must_be(api: openai.OpenAI, choice: Any) -> None:
    pytest.importorskip("llguidance")
    made = create(api, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False, temperature=1.0)
    calls = [each for each in made.output if each.type == "function_call"]
    assert len(calls) == 1
    assert json.loads(calls[0].arguments)["city"] in ("Bonn", "Ulm")


def test_no_calls_where_none_may_be(api: openai.OpenAI) -> None:
    made = create(api, said=CALL, tools=[TOOL], tool_choice="none")
    assert [each.type for each in made.output] == ["message"]


def test_structured_output(api: openai.OpenAI) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "name": "place", "schema": CITY, "strict": True}
    made = create(api, text={"format": form})
    assert json.loads(made.output_text)["city"] in ("Bonn", "Ulm")


def test_log_probabilities(api: openai.OpenAI, client: httpx.Client, server: Server) -> None:
    """Those of the message's tokens, as chat completions have them."""
    more: dict[str, Any] = {"max_output_tokens": 9, "temperature": 0, "top_logprobs": 2}
    made = create(api, include=["message.output_text.logprobs"], **more)
    found = [each.to_dict() for each in made.output[0].content[0].logprobs]
    user = [{"role": "user", "content": TEXT}]
    options: dict[str, Any] = {"max_tokens": 9, "temperature": 0, "reasoning_budget": 0}
    wanted = server.llm.create_chat_completion(user, logprobs=True, top_logprobs=2, **options)
    assert found == wanted["choices"][0]["logprobs"]["content"]
    assert "".join(each["token"] for each in found) == made.output_text
    events = events_of(client, reasoning_budget=0, **more)
    deltas = [each for each in events if each["type"] == "response.output_text.delta"]
    assert [one for each in deltas for one in each["logprobs"]] == found
    done = next(each for each in events if each["type"] == "response.output_text.done")
    assert done["logprobs"] == found
    plain = create(api, max_output_tokens=3)
    assert plain.output[0].content[0].logprobs == []
    said = f"<think>Hm.</think>So it is.{CALL}"
    include: Any = ["message.output_text.logprobs"]
    parts = create(api, said=said, tools=[TOOL], include=include).output
    assert [each.type for each in parts] == ["reasoning", "message", "function_call"]
    text = "".join(each.token for each in parts[1].content[0].logprobs)
    assert "So it is." in text
    assert "Hm" not in text


def test_counted_tokens(client: httpx.Client) -> None:
    def count(path: str, **more: Any) -> Any:
        return client.post(path, json={"input": TEXT, **more}).json()

    path = "/v1/responses"
    made = count(path, tools=[TOOL], max_output_tokens=1)
    counted = count(f"{path}/input_tokens", tools=[TOOL])
    assert counted == {
        "object": "response.input_tokens",
        "input_tokens": made["usage"]["input_tokens"],
    }
    none = count(f"{path}/input_tokens", reasoning={"effort": "none"})
    enabled = count(f"{path}/input_tokens", chat_template_kwargs={"enable_thinking": True})
    assert none["input_tokens"] < enabled["input_tokens"]  # <think>


def test_a_conversation() -> None:
    """As a client sends it back: what was answered, and results of calls."""
    made = read_input(
        {
            "instructions": "Be short.",
            "input": [
                {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
                {"role": "user", "content": "How is it in Ulm?"},
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "Hm."}],
                },
                {
                    "type": "message",
                    "role": "assistant",
                    "id": "msg_1",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
                },
                {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
                {"type": "function_call", "call_id": "b", "name": "now", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": "Rain."},
                {
                    "type": "function_call_output",
                    "call_id": "b",
                    "output": [{"type": "input_text", "text": "9"}],
                },
                {"role": "user", "content": "And now?"},
            ],
        }
    )
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id, name in (("a", "weather"), ("b", "now"))
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
        {"role": "tool", "tool_call_id": "b", "name": "now", "content": "9"},
        {"role": "user", "content": "And now?"},
    ]


def test_some_tools_may_be_allowed() -> None:
    tools = [{"type": "function", "name": name} for name in ("now", "weather")]
    choice = {"type": "allowed_tools", "mode": "required", "tools": tools[:1]}
    made = read_tools({"tools": tools, "tool_choice": choice})["tool_choice"]
    allowed = [{"type": "function", "function": {"name": "now"}}]
    assert made == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": allowed},
    }


IMAGE = {"type": "input_image", "image_url": "http://localhost/a.png"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].id"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"input": [{"type": "web_search_call", "id": "a"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "a"}]}, "input[0].call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "x", "tools": []}},
            "tool_choice.mode",
        ),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "text"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"include": ["everything"]}, "include[0]"),
        ({"previous_response_id": 3}, "previous_response_id"),
        ({"store": "no"}, "store"),
        ({"truncation": "some"}, "truncation"),
        ({"input": "word " * 2000}, "input"),
    ],
)
def test_what_is_refused(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = client.post("/v1/responses", json={"model": MODEL, "input": TEXT, **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


def test_an_error_within_a_stream(client: httpx.Client, server: Server) -> None:
    """Is its last event."""
    hosted = server.models.all[0]
    asked = {"model": MODEL, "input": TEXT, "max_output_tokens": 400, "stream": True}
    asked |= {"ignore_eos": True}
    with client.stream("POST", "/v1/responses", json=asked) as response:
        lines = response.iter_lines()
        next(lines)
        hosted.llm.llama.reset()
        found = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert found[-1]["type"] == "error"
    assert found[-1]["sequence_number"] == len(found) - 1
    assert found[-1]["message"]


def test_a_stream_that_takes_too_long() -> None:
    """Ends with an event as that of any other error."""
    asked = {"model": MODEL, "input": TEXT, "ignore_eos": True, "context_shift": True}
    with running(Settings(timeout_s=0.5)) as server, httpx.Client(base_url=server.url) as client:
        client.post("/v1/responses", json={**asked, "max_output_tokens": 1})  # it is quicker then
        found = named_events(client, "/v1/responses", {**asked, "stream": True})
    assert found[-1]["type"] == "error"
    assert "0.5 s" in found[-1]["message"]
    assert [each["sequence_number"] for each in found] == list(range(len(found)))


def test_progress_is_no_reasoning(client: httpx.Client) -> None:
    """Events of the prompt's progress count as no tokens."""
    asked = {"model": MODEL, "input": TEXT, "max_output_tokens": 4, "return_progress": True}
    last = named_events(client, "/v1/responses", {**asked, "stream": True})[-1]
    assert last["response"]["usage"]["output_tokens"] == 4
    assert last["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] == 0
