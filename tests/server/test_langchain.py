"""LangChain's models of chats, completions and embeddings, against a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
import pytest

pytest.importorskip("langchain_openai", reason="the extra ggmlpy[clients] is not installed")
pytest.importorskip("langchain_anthropic", reason="the extra ggmlpy[clients] is not installed")
import anthropic
import openai
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from tests.server.conftest import MODEL, Server

pytestmark = pytest.mark.usefixtures("local_only")
APIS = ("chat", "responses", "messages")
CHAT = [SystemMessage("Be short."), HumanMessage("Tell me a story.")]
N_TOKENS = 12


class City(Enum):
    BONN = "Bonn"
    ULM = "Ulm"


class Weather(BaseModel):  # type: ignore[misc]
    """How the weather is in a city."""

    city: City


def make(server: Server, api: str, **options: Any) -> Any:
    """LangChain's model of a chat, for one of the APIs."""
    more = {"model": MODEL, "api_key": "none", "max_retries": 0, "temperature": 0, **options}
    if api == "messages":
        return ChatAnthropic(**{"base_url": server.url, "max_tokens": N_TOKENS, **more})
    more["use_responses_api"] = api == "responses"
    return ChatOpenAI(**{"base_url": f"{server.url}/v1", "max_tokens": N_TOKENS, **more})


def told(server: Server, messages: list[Any]) -> str:
    """The text of the model itself."""
    roles = {"system": "system", "human": "user", "ai": "assistant"}
    given = [{"role": roles[each.type], "content": each.content} for each in messages]
    made = server.llm.create_chat_completion(given, max_tokens=N_TOKENS, temperature=0)
    return str(made["choices"][0]["message"]["content"])


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def test_an_answer_is_that_of_the_model(server: Server, api: str) -> None:
    made = make(server, api).invoke(CHAT)
    assert made.text == told(server, CHAT)
    assert made.usage_metadata["output_tokens"] == N_TOKENS
    assert made.response_metadata["model_name"] == MODEL


def test_a_stream_is_the_whole_in_pieces(server: Server, api: str) -> None:
    pieces = list(make(server, api, **_with_usage(api)).stream(CHAT))
    assert sum(bool(each.text) for each in pieces) > N_TOKENS / 2
    whole = pieces[0]
    for each in pieces[1:]:
        whole += each
    assert whole.text == told(server, CHAT)
    assert whole.usage_metadata["output_tokens"] == N_TOKENS


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One loop for all tests: LangChain keeps the connections of one for later models."""
    with asyncio.Runner() as made:
        yield made


def test_many_at_once(server: Server, runner: asyncio.Runner, api: str) -> None:
    chats = [[HumanMessage(f"Tell me about {i} dogs.")] for i in range(6)]
    model = make(server, api)
    wanted = [told(server, each) for each in chats]
    assert [each.text for each in model.batch(chats)] == wanted

    async def ask() -> list[AIMessage]:
        found: list[AIMessage] = await model.abatch(chats)
        return found

    assert [each.text for each in runner.run(ask())] == wanted


def test_a_tool_is_called_and_its_result_answered(server: Server, api: str) -> None:
    pytest.importorskip("llguidance")
    model = make(server, api, max_tokens=100)
    asked = HumanMessage("How is it in Ulm?")
    forced = model.bind_tools([Weather], tool_choice="Weather")
    answer = forced.invoke([asked])
    (call,) = answer.tool_calls
    assert call["name"] == "Weather"
    City(call["args"]["city"])
    given = [asked, answer, ToolMessage("rain", tool_call_id=call["id"])]
    assert model.bind_tools([Weather]).invoke(given).usage_metadata["input_tokens"] > 20
    pieces = list(forced.stream(given))
    whole = pieces[0]
    for each in pieces[1:]:
        whole += each
    (call,) = whole.tool_calls
    assert call["name"] == "Weather"
    City(call["args"]["city"])


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_structured_output(server: Server, api: str, method: str) -> None:
    pytest.importorskip("llguidance")
    model = make(server, api, max_tokens=100)
    made = model.with_structured_output(Weather, method=method).invoke(CHAT)
    assert isinstance(made, Weather)


def test_errors_are_those_of_the_api(server: Server, api: str) -> None:
    error = (anthropic if api == "messages" else openai).NotFoundError
    with pytest.raises(error, match="no model"):
        make(server, api, model="gpt").invoke(CHAT)
    with pytest.raises(ContextOverflowError, match="512"):
        make(server, api).invoke([HumanMessage("word " * 600)])


def test_completions(server: Server) -> None:
    more = {"model": MODEL, "base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0}
    model = OpenAI(**more, max_tokens=N_TOKENS, temperature=0)
    wanted = server.llm.create_completion("The dog", max_tokens=N_TOKENS, temperature=0)
    assert model.invoke("The dog") == wanted["choices"][0]["text"]
    assert "".join(model.stream("The dog")) == wanted["choices"][0]["text"]


def test_embeddings(server: Server) -> None:
    """Texts go out as they are: for token ids LangChain fetches a file of tiktoken."""
    more = {"model": MODEL, "base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0}
    model = OpenAIEmbeddings(**more, check_embedding_ctx_length=False)
    made = np.asarray(model.embed_documents(["a dog", "a cat"]))
    assert np.allclose(made[0], model.embed_query("a dog"), atol=1e-6)
    assert np.allclose(np.linalg.norm(made, axis=1), 1, atol=1e-5)
    assert not np.allclose(made[0], made[1], atol=1e-2)


def test_tokens_are_counted(server: Server) -> None:
    model = make(server, "messages")
    counted = model.get_num_tokens_from_messages(CHAT)
    assert counted == model.invoke(CHAT).usage_metadata["input_tokens"]


def test_thinking_is_accepted(server: Server) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    model = ChatAnthropic(
        model=MODEL,
        base_url=server.url,
        api_key="none",
        max_tokens=1100,
        thinking=thinking,
        stop=["."],
    )
    assert model.invoke(CHAT).response_metadata["stop_reason"]
    for is_response in (False, True):
        options: Any = {"reasoning_effort": "low", "use_responses_api": is_response}
        assert make(server, "chat", **options).invoke(CHAT).text


def _with_usage(api: str) -> dict[str, Any]:
    return {"stream_usage": True} if api != "responses" else {}
