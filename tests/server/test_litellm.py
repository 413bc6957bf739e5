"""LiteLLM against a server, by the providers that speak its APIs."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else a list of prices is fetched
pytest.importorskip("litellm", reason="the extra ggmlpy[clients] is not installed")
import litellm

from tests.server.conftest import MODEL, Server, running
from tests.server.test_embeddings import TEXTS, opened

pytestmark = [
    pytest.mark.usefixtures("local_only"),
    pytest.mark.filterwarnings("ignore"),  # its own
]
PROVIDERS = ("openai", "hosted_vllm", "llamafile", "litellm_proxy", "anthropic")
PROMPT = "The dog"
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello."}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Ulm"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
N_TOKENS = 12


def to(server: Server, provider: str, **options: Any) -> dict[str, Any]:
    """The arguments that lead a request to a server."""
    base = server.url if provider == "anthropic" else f"{server.url}/v1"
    more = {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": "none"}
    return {**more, "max_retries": 0, **options}


def chat(server: Server, provider: str, **options: Any) -> dict[str, Any]:
    more = {"messages": CHAT, "max_tokens": N_TOKENS, "temperature": 0, **options}
    return to(server, provider, **more)


def told(server: Server) -> str:
    made = server.llm.create_chat_completion(CHAT, max_tokens=N_TOKENS, temperature=0)
    return str(made["choices"][0]["message"]["content"])


@pytest.mark.parametrize("provider", PROVIDERS)
def test_answers_are_those_of_the_model(server: Server, provider: str) -> None:
    made = litellm.completion(**chat(server, provider))
    assert made.choices[0].message.content == told(server)
    assert made.choices[0].finish_reason == "length"
    assert made.usage.completion_tokens == N_TOKENS


@pytest.mark.parametrize("provider", PROVIDERS)
def test_streams(server: Server, provider: str) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True}}
    pieces = list(litellm.completion(**chat(server, provider, **more)))
    texts = [each.choices[0].delta.content for each in pieces if each.choices]
    assert "".join(text or "" for text in texts) == told(server)
    assert sum(bool(text) for text in texts) > N_TOKENS / 2
    assert pieces[-1].usage.completion_tokens == N_TOKENS


@pytest.mark.parametrize("provider", PROVIDERS)
def test_in_an_event_loop(server: Server, provider: str) -> None:
    async def ask() -> list[str]:
        made = [litellm.acompletion(**chat(server, provider)) for _ in range(3)]
        texts = [each.choices[0].message.content for each in await asyncio.gather(*made)]
        text = ""
        async for piece in await litellm.acompletion(**chat(server, provider, stream=True)):
            text += piece.choices[0].delta.content or ""
        return [*texts, text]

    assert asyncio.run(ask()) == [told(server)] * 4


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_tool_is_called_and_its_result_answered(server: Server, provider: str) -> None:
    pytest.importorskip("llguidance")
    more = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 100}
    answer = litellm.completion(**chat(server, provider, **more)).choices[0].message
    (call,) = answer.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Bonn", "Ulm")
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    given = [*CHAT, answer.model_dump(), result]
    made = litellm.completion(**chat(server, provider, tools=[TOOL], messages=given))
    assert made.usage.completion_tokens > 0
    pieces = list(litellm.completion(**chat(server, provider, stream=True, **more)))
    whole = litellm.stream_chunk_builder(pieces, messages=CHAT)
    (call,) = whole.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Bonn", "Ulm")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_structured_output(server: Server, provider: str) -> None:
    pytest.importorskip("llguidance")
    schema = {"name": "place", "schema": PARAMETERS, "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    made = litellm.completion(**chat(server, provider, response_format=form, max_tokens=100))
    assert json.loads(made.choices[0].message.content)["city"] in ("Bonn", "Ulm")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_errors_are_those_of_the_api(server: Server, provider: str) -> None:
    with pytest.raises(litellm.NotFoundError, match="no model"):
        litellm.completion(**chat(server, provider, model=f"{provider}/gpt"))
    long = [{"role": "user", "content": "word " * 600}]
    with pytest.raises(litellm.ContextWindowExceededError, match="512"):
        litellm.completion(**chat(server, provider, messages=long))


def test_completions(server: Server) -> None:
    more = to(server, "text-completion-openai", prompt=PROMPT, max_tokens=N_TOKENS, temperature=0)
    wanted = server.llm.create_completion(PROMPT, max_tokens=N_TOKENS, temperature=0)
    text = wanted["choices"][0]["text"]
    assert litellm.text_completion(**more).choices[0].text == text
    pieces = litellm.text_completion(**more, stream=True)
    assert "".join(each.choices[0].text or "" for each in pieces) == text


def test_responses(server: Server) -> None:
    n = 20  # LiteLLM asks for 16 at least
    more = to(server, "openai", input="Hello.", max_output_tokens=n, temperature=0)
    made = litellm.responses(**more)
    text = made.output[-1].content[0].text
    assert text
    assert made.usage.output_tokens == n
    events = list(litellm.responses(**more, stream=True))
    deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
    assert "".join(deltas) == text


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "llamafile"])
def test_embeddings(server: Server, provider: str) -> None:
    made = litellm.embedding(**to(server, provider, input=["a dog", "a cat"])).data
    wanted = server.llm.embed(["a dog", "a cat"], pooling="last")
    for mine, its in zip(made, wanted, strict=True):
        np.testing.assert_allclose(mine["embedding"], its, atol=1e-6)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(open=lambda: opened(tmp_path_factory.mktemp("rank"), pooling_type=4)) as made:
        yield made


@pytest.mark.parametrize("provider", ["hosted_vllm", "jina_ai", "cohere"])
def test_rerank(reranker: Server, provider: str) -> None:
    more = to(reranker, provider, query="hello", documents=TEXTS, top_n=2)
    made = litellm.rerank(**{**more, "api_base": reranker.url})
    scores = reranker.llm.rank("hello", TEXTS)
    best = sorted(range(len(TEXTS)), key=lambda i: -scores[i])[:2]
    assert [(each["index"], each["relevance_score"]) for each in made.results] == [
        (i, pytest.approx(scores[i])) for i in best
    ]
