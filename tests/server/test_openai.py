"""Chat completions and completions, by OpenAI's client and as they go over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.server.conftest import MODEL, Server

PROMPT = "Once upon a time"
CHAT = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture
def api(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def post(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def events(client: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, without [DONE] at its end."""
    found = []
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        found.append(json.loads(line.removeprefix("data: ")))
    return found


def test_a_completion_is_that_of_the_model(api: openai.OpenAI, server: Server) -> None:
    made = api.completions.create(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0)
    wanted = server.llm.create_completion(PROMPT, max_tokens=12, temperature=0)
    assert made.choices[0].text == wanted["choices"][0]["text"]
    assert made.choices[0].finish_reason == "length"
    assert made.model == MODEL
    assert made.usage is not None
    assert made.usage.completion_tokens == 12
    assert made.usage.prompt_tokens == wanted["usage"]["prompt_tokens"]


def test_negative_seeds(client: httpx.Client) -> None:
    """Are seeds, but for -1."""
    asked = {"prompt": PROMPT, "max_tokens": 8, "temperature": 2}
    first, again, other = (
        post(client, "/v1/completions", **asked, seed=seed)["choices"][0]["text"]
        for seed in (-7, -7, -8)
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": CHAT})],
)
def test_the_usage_of_a_stream(client: httpx.Client, path: str, asked: dict[str, Any]) -> None:
    """Comes last, and all other chunks have null; the prompt's progress is in none of them."""
    more = {"max_tokens": 2, "return_progress": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(client, path, **asked, **more)
    assert "prompt_progress" in {name for chunk in chunks for name in chunk}
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert "prompt_progress" not in last
    assert last["usage"]["completion_tokens"] == 2
    shared = ("id", "object", "created", "model", "system_fingerprint")
    assert all(
        [chunk[name] for name in shared] == [last[name] for name in shared] for chunk in chunks
    )


def test_a_stream_is_the_whole_in_pieces(api: openai.OpenAI) -> None:
    more = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "seed": 5}
    whole = api.completions.create(**more)
    pieces = list(
        api.completions.create(**more, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(p.choices[0].text for p in pieces if p.choices) == whole.choices[0].text
    assert len({p.id for p in pieces}) == 1
    assert pieces[-1].choices == []
    assert pieces[-1].usage.completion_tokens == 12
    assert [p.choices[0].finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 2) + [
        "length"
    ]


def test_chat(api: openai.OpenAI, server: Server) -> None:
    more = {"model": MODEL, "messages": CHAT, "max_tokens": 10, "temperature": 0}
    made = api.chat.completions.create(**more)
    wanted = server.llm.create_chat_completion(CHAT, max_tokens=10, temperature=0)
    assert made.choices[0].message.content == wanted["choices"][0]["message"]["content"]
    assert made.object == "chat.completion"
    pieces = list(api.chat.completions.create(**more, stream=True))
    text = "".join(p.choices[0].delta.content or "" for p in pieces)
    assert text == made.choices[0].message.content
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[-1].choices[0].finish_reason == "length"


def test_fields_that_the_reference_asks_for(client: httpx.Client) -> None:
    """Of messages a refusal, of the first chunk content, of chunks before the usage null."""
    more = {"messages": CHAT, "max_tokens": 3}
    made = post(client, "/v1/chat/completions", **more)
    assert set(made["choices"][0]) == {"index", "message", "logprobs", "finish_reason"}
    assert made["choices"][0]["message"].keys() == {"role", "content", "refusal"}
    chunks = events(client, "/v1/chat/completions", **more, n=2)
    assert [c["choices"][0]["delta"] for c in chunks if "role" in c["choices"][0]["delta"]] == [
        {"role": "assistant", "content": ""}
    ] * 2
    assert not any("usage" in chunk for chunk in chunks)
    for path, fields in (("/v1/chat/completions", more), ("/v1/completions", {"prompt": "a"})):
        chunks = events(client, path, **fields, stream_options={"include_usage": True})
        assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 0}),
        ("/v1/chat/completions", {"messages": CHAT, "max_completion_tokens": 0}),
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 0, "n": 2}),
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 0, "echo": True}),
    ],
)
def test_no_token_is_asked_for(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    made = post(client, path, **body)
    assert made["usage"]["completion_tokens"] == 0
    for choice in made["choices"]:
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert (text, choice["finish_reason"]) == (PROMPT if body.get("echo") else "", "length")


def test_paths_without_v1(client: httpx.Client) -> None:
    """llama-server has them."""
    assert post(client, "/chat/completions", messages=CHAT, max_tokens=2)["choices"]
    assert post(client, "/responses", input="Hello.", max_output_tokens=2)["output"]


def test_tokens_of_a_chat_are_counted(client: httpx.Client, server: Server) -> None:
    path = "/v1/chat/completions"
    made = post(client, path, messages=CHAT, max_tokens=1)
    counted = post(client, f"{path}/input_tokens", messages=CHAT)
    assert counted["input_tokens"] == made["usage"]["prompt_tokens"]
    long = [{"role": "user", "content": "word " * 2000}]
    assert post(client, f"{path}/input_tokens", messages=long)["input_tokens"] > 2000


def test_prompts_and_choices_are_in_order(client: httpx.Client) -> None:
    """Choice i of prompt j is that of the same seed and prompt alone."""
    prompts = [PROMPT, "The cat"]
    more = {"max_tokens": 8, "seed": 7}
    made = post(client, "/v1/completions", prompt=prompts, n=3, **more)
    assert [choice["index"] for choice in made["choices"]] == list(range(6))
    for i, choice in enumerate(made["choices"]):
        alone = post(
            client,
            "/v1/completions",
            prompt=prompts[i // 3],
            max_tokens=8,
            seed=7 + i % 3,
        )
        assert choice["text"] == alone["choices"][0]["text"]
    each = [post(client, "/v1/completions", prompt=p, **more)["usage"] for p in prompts]
    assert made["usage"]["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in each)
    assert made["usage"]["completion_tokens"] == 48
    streamed = ["" for _ in range(6)]
    for chunk in events(client, "/v1/completions", prompt=prompts, n=3, **more):
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert streamed == [choice["text"] for choice in made["choices"]]


def test_best_of_is_the_most_likely(client: httpx.Client) -> None:
    more = {"prompt": PROMPT, "max_tokens": 6, "seed": 11, "temperature": 1.5}
    all_of_them = post(client, "/v1/completions", n=6, logprobs=0, **more)["choices"]

    def mean(choice: dict[str, Any]) -> float:
        values = choice["logprobs"]["token_logprobs"]
        return float(sum(values) / len(values))

    best = sorted(all_of_them, key=mean, reverse=True)[:2]
    made = post(client, "/v1/completions", n=2, best_of=6, **more)
    assert [choice["text"] for choice in made["choices"]] == [choice["text"] for choice in best]
    assert [choice["logprobs"] for choice in made["choices"]] == [None, None]
    assert made["usage"]["completion_tokens"] == 36


def test_best_of_looks_at_new_tokens_only(client: httpx.Client) -> None:
    """With an echo too: tokens of the prompt would favour short answers, or long ones."""
    prompt = "zq zq zq zq zq zq zq"
    asked = {
        "prompt": prompt,
        "max_tokens": 16,
        "stop": [".", " a", " the", ","],
        "seed": 3,
        "temperature": 1.5,
        "min_p": 0,
        "top_p": 1,
        "logprobs": 0,
        "echo": True,
    }
    all_of_them = post(client, "/v1/completions", **asked, n=8)["choices"]

    def mean(choice: dict[str, Any]) -> float:
        shown = choice["logprobs"]
        pairs = zip(shown["text_offset"], shown["token_logprobs"], strict=True)
        values = [value for offset, value in pairs if offset >= len(prompt)]
        return float(sum(values) / len(values))

    best = max(all_of_them, key=mean)
    (made,) = post(client, "/v1/completions", **asked, best_of=8)["choices"]
    assert made["text"] == best["text"]


def test_token_ids_echo_and_logprobs(client: httpx.Client, server: Server) -> None:
    tokens = server.llm.tokenize(PROMPT, special=True)
    made = post(
        client,
        "/v1/completions",
        prompt=tokens,
        echo=True,
        logprobs=2,
        max_tokens=3,
        temperature=0,
    )
    choice = made["choices"][0]
    assert choice["text"].startswith(PROMPT)
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == len(tokens) + 3


def test_stop_and_bias(client: httpx.Client, server: Server) -> None:
    free = post(client, "/v1/completions", prompt=PROMPT, max_tokens=12, temperature=0)
    text = free["choices"][0]["text"]
    word = text.split()[2]
    made = post(client, "/v1/completions", prompt=PROMPT, max_tokens=12, temperature=0, stop=word)
    assert made["choices"][0]["text"] == text[: text.index(word)]
    assert made["choices"][0]["finish_reason"] == "stop"
    first = server.llm.tokenize(text, add_bos=False)[0]
    for bias in ({str(first): -100}, [[first, False]]):
        other = post(
            client,
            "/v1/completions",
            prompt=PROMPT,
            max_tokens=1,
            temperature=0,
            logit_bias=bias,
        )
        assert other["choices"][0]["text"] != text[: len(other["choices"][0]["text"])]


def test_structured_output(api: openai.OpenAI) -> None:
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["age"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    pieces = api.chat.completions.create(
        model=MODEL,
        messages=CHAT,
        response_format=form,
        max_tokens=60,
        stream=True,
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert 1 <= json.loads(text)["age"] <= 9


def test_a_call_that_is_required_is_streamed(api: openai.OpenAI) -> None:
    pytest.importorskip("llguidance")
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Bonn", "Ulm"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    pieces = list(
        api.chat.completions.create(
            model=MODEL,
            messages=CHAT,
            tools=tools,
            tool_choice="required",
            max_tokens=100,
            stream=True,
        )
    )
    deltas = [call for p in pieces for call in p.choices[0].delta.tool_calls or []]
    assert deltas[0].function is not None
    assert deltas[0].function.name == "weather"
    arguments = "".join(d.function.arguments or "" for d in deltas if d.function)
    assert json.loads(arguments)["city"] in ("Bonn", "Ulm")
    assert pieces[-1].choices[0].finish_reason == "tool_calls"


def test_32_at_once_give_what_each_gives_alone(client: httpx.Client, server: Server) -> None:
    bodies: list[dict[str, Any]] = [
        {"prompt": f"{PROMPT} {i}", "max_tokens": 4 + i % 9, "seed": i, "temperature": i % 2}
        for i in range(32)
    ]
    alone = [server.llm.create_completion(**body)["choices"][0]["text"] for body in bodies]
    with ThreadPoolExecutor(32) as pool:
        texts = list(
            pool.map(
                lambda body: post(client, "/v1/completions", **body)["choices"][0]["text"], bodies
            )
        )
    assert texts == alone


def test_the_models(api: openai.OpenAI) -> None:
    assert [each.id for each in api.models.list()] == [MODEL]
    assert api.models.retrieve(MODEL).owned_by == "ggmlpy"
    with pytest.raises(openai.NotFoundError, match="no model"):
        api.models.retrieve("gpt")


def test_cached_tokens_and_timings(client: httpx.Client) -> None:
    prompt = "A long time ago there lived a king with three sons and a horse."
    first = post(client, "/v1/completions", prompt=prompt, max_tokens=4, temperature=0)
    again = post(client, "/v1/completions", prompt=prompt, max_tokens=4, temperature=0)
    n_prompt = first["usage"]["prompt_tokens"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1
    timings = again["timings"]
    assert (timings["cache_n"], timings["prompt_n"]) == (n_prompt - 1, 1)
    assert timings["predicted_n"] == 4
    assert timings["predicted_per_second"] > 0
