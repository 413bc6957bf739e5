"""Responses that are kept: others go on from them, and they can be read and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.server import Settings
from ggmlpy.server.openai.truncation import fitting
from ggmlpy.server.stored_responses import ResponseStore, StoredResponse
from tests.server.conftest import MODEL, Server, open_model, running
from tests.server.test_anthropic import CALL, TEMPLATE, saying
from tests.server.test_responses import TOOL, events_of

KEYS = {"tokenizer.chat_template": TEMPLATE}
MORE: dict[str, Any] = {"max_output_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(open=lambda: open_model(kv_overrides=KEYS)) as made:
        yield made


@pytest.fixture
def api(client: httpx.Client, server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def create(api: openai.OpenAI, input: Any, **more: Any) -> Any:
    return api.responses.create(model=MODEL, input=input, **{**MORE, **more})


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_goes_on_from_a_response(
    api: openai.OpenAI, client: httpx.Client, stream: bool
) -> None:
    """As if it had the whole conversation; instructions are those of each request."""
    if stream:
        first = events_of(client, input="Hello", instructions="Be short.", **MORE)[-1]["response"]
        id, output = first["id"], first["output"]
    else:
        made = create(api, "Hello", instructions="Be short.")
        id, output = made.id, [each.to_dict() for each in made.output]
    second = create(api, [{"role": "user", "content": "And?"}], previous_response_id=id)
    third = create(api, "So?", previous_response_id=second.id, instructions="Be kind.")
    said = [each.to_dict() for each in second.output]
    user = {"role": "user", "content": "And?"}
    whole = [{"role": "user", "content": "Hello"}, *output, user, *said]
    whole.append({"role": "user", "content": "So?"})
    alone = create(api, whole, instructions="Be kind.", store=False)
    assert third.output_text == alone.output_text
    assert third.usage.input_tokens == alone.usage.input_tokens
    assert (second.previous_response_id, third.previous_response_id) == (id, second.id)
    counted = client.post(
        "/v1/responses/input_tokens",
        json={"input": "So?", "previous_response_id": second.id, "instructions": "Be kind."},
    ).json()
    assert counted["input_tokens"] == third.usage.input_tokens


def test_a_result_of_a_call_goes_on_from_it(api: openai.OpenAI) -> None:
    made = create(
        api, "How is it?", tools=[TOOL], max_output_tokens=200, extra_body=saying(f"Hm. {CALL}")
    )
    call = made.output[-1]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    then = create(api, [result], previous_response_id=made.id, tools=[TOOL])
    items = api.responses.input_items.list(then.id, order="asc").data
    assert [each.type for each in items] == [
        "message", "message", "function_call", "function_call_output",
    ]  # fmt: skip
    assert items[2].id == call.id


def test_an_item_can_be_referred_to(api: openai.OpenAI) -> None:
    """As clients do where responses are stored: an id instead of what it had."""
    made = create(api, "Hello")
    (item,) = made.output
    given: list[Any] = [{"role": "user", "content": "Hello"}, item.to_dict()]
    user = {"role": "user", "content": "And?"}
    whole = create(api, [*given, user])
    (first,) = api.responses.input_items.list(made.id).data
    ids = [{"type": "item_reference", "id": id} for id in (first.id, item.id)]
    assert create(api, [*ids, user]).output_text == whole.output_text
    assert create(api, [ids[1], user]).usage.input_tokens < whole.usage.input_tokens
    api.responses.delete(made.id)
    then = create(api, [ids[1], user])  # which others have too
    assert then.output
    assert api.responses.input_items.list(then.id, order="asc").data[0].id == item.id


def test_it_can_be_read_and_deleted(api: openai.OpenAI, client: httpx.Client) -> None:
    made = create(api, "Hello", metadata={"a": "b"})
    assert api.responses.retrieve(made.id).to_dict() == made.to_dict()
    assert client.get(f"/responses/{made.id}").json()["metadata"] == {"a": "b"}
    then = create(api, "And?", previous_response_id=made.id)
    deleted = client.delete(f"/v1/responses/{made.id}").json()
    assert deleted == {"id": made.id, "object": "response", "deleted": True}
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        api.responses.delete(made.id)
    with pytest.raises(openai.BadRequestError) as found:
        create(api, "And?", previous_response_id=made.id)
    assert found.value.code == "previous_response_not_found"
    assert found.value.param == "previous_response_id"
    assert create(api, "So?", previous_response_id=then.id).output  # has all that it needs
    assert client.get(f"/v1/responses/{then.id}?stream=true").status_code == 400
    assert client.put(f"/v1/responses/{then.id}").status_code == 405


def test_items_come_in_pages(api: openai.OpenAI, client: httpx.Client) -> None:
    given = [{"role": "user", "content": f"text {i}"} for i in range(7)]
    given[3] = {"role": "assistant", "content": "said"}
    made = create(api, given)
    found = list(api.responses.input_items.list(made.id, limit=2, order="asc"))  # all pages
    texts = [each.content[0].text for each in found]
    assert texts == [each["content"] for each in given]
    assert len({each.id for each in found}) == 7
    path = f"/v1/responses/{made.id}/input_items"
    page = client.get(path, params={"limit": 3}).json()
    assert [each["content"][0]["text"] for each in page["data"]] == ["text 6", "text 5", "text 4"]
    assert (page["object"], page["has_more"]) == ("list", True)
    assert (page["first_id"], page["last_id"]) == (found[6].id, found[4].id)
    for query in (
        {"limit": "0"},
        {"limit": "101"},
        {"limit": "x"},
        {"order": "up"},
        {"after": "x"},
    ):
        refused = client.get(path, params=query)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == next(iter(query))


def test_what_is_not_to_be_stored_is_not(api: openai.OpenAI, server: Server) -> None:
    n = len(server.app.state.service.responses)
    made = create(api, "Hello", store=False)
    assert made.store is False
    assert len(server.app.state.service.responses) == n
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve(made.id)


def test_others_do_not_see_it() -> None:
    settings = Settings(api_keys=frozenset({"mine", "yours"}))
    with running(settings) as server:

        def ask(method: str, path: str, key: str, **more: Any) -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}"}
            return httpx.request(method, server.url + path, headers=headers, timeout=60, **more)

        id = ask("POST", "/v1/responses", "mine", json={"input": "Hello", **MORE}).json()["id"]
        path = f"/v1/responses/{id}"
        for method, each in [("GET", path), ("DELETE", path), ("GET", f"{path}/input_items")]:
            assert ask(method, each, "yours").status_code == 404
            assert ask(method, each, "none").status_code == 401
        body = {"input": "And?", "previous_response_id": id, **MORE}
        assert ask("POST", "/v1/responses", "yours", json=body).status_code == 400
        assert ask("POST", "/v1/responses", "mine", json=body).status_code == 200
        assert ask("GET", path, "mine").json()["id"] == id
        item = ask("GET", path, "mine").json()["output"][0]["id"]
        body = {"input": [{"type": "item_reference", "id": item}], **MORE}
        assert ask("POST", "/v1/responses", "yours", json=body).status_code == 400
        assert ask("POST", "/v1/responses", "mine", json=body).status_code == 200


@pytest.mark.parametrize("most", [0, 3000])
def test_there_is_a_limit(most: int) -> None:
    with (
        running(Settings(max_stored_bytes=most)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        made = [
            client.post("/v1/responses", json={"input": "Hello", **MORE}).json() for _ in range(4)
        ]
        assert {each["store"] for each in made} == {most > 0}
        found = [client.get(f"/v1/responses/{each['id']}").status_code for each in made]
        assert found[0] == 404
        assert found[-1] == (200 if most else 404)
        assert server.app.state.service.responses.n_bytes <= most


@given(
    most=st.integers(0, 5),
    steps=st.lists(st.tuples(st.sampled_from("kfd"), st.integers(0, 5), st.integers(1, 3))),
)
def test_the_least_recently_used_one_goes_first(
    most: int, steps: list[tuple[str, int, int]]
) -> None:
    """Those that are kept are as many as `most` of the smallest take memory."""
    unit = stored("r00", 1).n_bytes
    store, kept = ResponseStore(most * unit), dict[str, StoredResponse]()  # by their last use
    names = iter(f"r{i:02}" for i in range(len(steps)))
    for step, i, n in steps:
        name = list(kept)[i % len(kept)] if kept else "x"
        if step == "k":
            made = stored(next(names), n)
            store.keep(made)
            kept |= {made.id: made} if made.n_bytes <= most * unit else {}
            while sum(each.n_bytes for each in kept.values()) > most * unit:
                del kept[next(iter(kept))]
            continue
        assert store.find(name, "you") is None
        assert store.find_with(f"{name}, 0", "you") is None
        assert store.find(name, "me") is kept.get(name)
        if name in kept:
            kept[name] = kept.pop(name)
            assert store.find_with(f"{name}, 0", "me") is kept[name]
            if step == "d":
                store.drop(kept.pop(name))
    assert (len(store), store.n_bytes) == (len(kept), sum(e.n_bytes for e in kept.values()))
    assert {each.id for each in store._of_items.values()} <= kept.keys()


def stored(name: str, n: int) -> StoredResponse:
    """With `n` items of output, and one of input that all have."""
    output = [{"id": f"{name}, {i}"} for i in range(n)]
    return StoredResponse.of({"id": name, "output": output}, [{"id": "x"}], "me")


def test_a_long_conversation_can_lose_its_beginning(api: openai.OpenAI, server: Server) -> None:
    given = [{"role": "user", "content": f"{i} " + "word " * 60} for i in range(20)]
    more: dict[str, Any] = {"instructions": "Be short."}
    with pytest.raises(openai.BadRequestError, match="prompt is too long"):
        create(api, given, **more)
    made = create(api, given, truncation="auto", **more)
    n_ctx = server.llm.n_ctx_seq()
    assert n_ctx - 130 < made.usage.input_tokens < n_ctx
    assert made.truncation == "auto"
    short = create(api, given[:1], truncation="auto", **more)
    assert short.usage.input_tokens == create(api, given[:1], **more).usage.input_tokens
    system = {"role": "system", "content": "Be short."}
    messages = [system, *given]
    left = fitting(server.llm, messages, {})
    assert left == [system, *given[len(messages) - len(left) :]]
    assert len(server.llm.chat_tokens(left)) == made.usage.input_tokens
    assert len(server.llm.chat_tokens([system, *given[-len(left) :]])) >= n_ctx
    long = [system, {"role": "user", "content": "word " * 2000}]
    assert fitting(server.llm, long, {}) == long


def test_results_go_with_their_calls(server: Server) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "a", "content": "word " * 50}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "word " * 200},
        {"role": "assistant", "content": "word " * 200, "tool_calls": [call]},
        result,
        result,
        {"role": "user", "content": "word " * 300},
    ]
    assert fitting(server.llm, messages, {}) == messages[-1:]
