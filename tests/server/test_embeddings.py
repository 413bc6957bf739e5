"""Embeddings and scores over HTTP: those of `Llama.embed` and `Llama.rank`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from ggmlpy import Llama
from ggmlpy.server import Settings
from tests.engine.test_embeddings import with_words
from tests.models.seeded import write_seeded
from tests.models.seeded_specs import SPECS
from tests.server.conftest import Server, running, wait_for

TEXTS = ["hello", "hello world", "world"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A small encoder with mean pooling."""
    with running(open=lambda: opened(tmp_path_factory.mktemp("encoder"), pooling_type=1)) as made:
        yield made


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(open=lambda: opened(tmp_path_factory.mktemp("rank"), pooling_type=4)) as made:
        yield made


def opened(folder: Path, **keys: Any) -> Llama:
    path = write_seeded(folder, "model", with_words(SPECS["bert"], **keys))
    return Llama(path, n_ctx=64, n_ubatch=64, n_threads=2)


def test_the_servers_pooling(tmp_path: Path) -> None:
    """In place of the file's, for both APIs."""
    settings = Settings(pooling="cls")
    with running(settings, open=lambda: opened(tmp_path, pooling_type=1)) as made:
        wanted = made.llm.embed(TEXTS[1], pooling="cls")
        [first] = post(made, "/v1/embeddings", input=TEXTS[1])["data"]
        assert first["embedding"] == wanted.tolist()
        [second] = post(made, "/embedding", content=TEXTS[1])
        assert second["embedding"] == [wanted.tolist()]
        assert wanted.tolist() != made.llm.embed(TEXTS[1], pooling="mean").tolist()


def post(server: Server, path: str, **body: Any) -> Any:
    response = httpx.post(server.url + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
    wait_for(server.is_idle)
    return response.json()


def refusal(server: Server, path: str, **body: Any) -> dict[str, Any]:
    response = httpx.post(server.url + path, json=body, timeout=60)
    assert response.status_code == 400, response.text
    wait_for(server.is_idle)
    error: dict[str, Any] = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


def test_openais_client(encoder: Server) -> None:
    """Which asks for base64, unless it is told what to ask for."""
    with openai.OpenAI(base_url=f"{encoder.url}/v1", api_key="none", max_retries=0) as api:
        made = api.embeddings.create(model="stories", input=TEXTS)
        as_numbers = api.embeddings.create(model="stories", input=TEXTS, encoding_format="float")
    wanted = encoder.llm.embed(TEXTS, pooling="mean")
    assert [each.index for each in made.data] == [0, 1, 2]
    np.testing.assert_array_equal([each.embedding for each in made.data], np.stack(wanted))
    assert made.model == "stories"
    n_tokens = sum(len(encoder.llm.tokenize(text)) for text in TEXTS)
    assert made.usage.prompt_tokens == made.usage.total_tokens == n_tokens
    np.testing.assert_array_equal([e.embedding for e in as_numbers.data], np.stack(wanted))


def test_forms_of_input(encoder: Server) -> None:
    tokens = encoder.llm.tokenize("hello world")
    (row,) = encoder.llm.embed(["hello world"])
    for given in ("hello world", ["hello world"], tokens, [tokens]):
        made = post(encoder, "/v1/embeddings", input=given)
        assert made["object"] == "list"
        assert made["data"][0]["object"] == "embedding"
        assert made["data"][0]["embedding"] == row.tolist()
    made = post(encoder, "/v1/embeddings", input="hello world", encoding_format="base64")
    raw = base64.b64decode(made["data"][0]["embedding"])
    np.testing.assert_array_equal(np.frombuffer(raw, "<f4"), row)
    same = {"input": "hello world", "dimensions": len(row), "user": "someone"}
    assert post(encoder, "/v1/embeddings", **same)["data"][0]["embedding"] == row.tolist()


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "is missing"),
        ({"input": ""}, "input", "is empty"),
        ({"input": []}, "input", "empty list"),
        ({"input": ["hello", 3]}, "input[1]", "a string, or a list of token ids"),
        ({"input": ["hello", ""]}, "input[1]", "is empty"),
        ({"input": [[1], []]}, "input[1]", "has no tokens"),
        ({"input": [1, 100_000]}, "input", "100000"),
        ({"input": [1, True]}, "input", "token ids"),
        ({"input": {"text": "hello"}}, "input", "a list of strings"),
        ({"input": "hello", "encoding_format": "int8"}, "encoding_format", "float"),
        ({"input": "hello", "dimensions": 5}, "dimensions", "embeddings of this model have"),
        ({"input": ["hello", "hello " * 100]}, "input", "text 1 has 102 tokens"),
    ],
)
def test_what_cannot_be_embedded(
    encoder: Server, body: dict[str, Any], param: str, message: str
) -> None:
    error = refusal(encoder, "/v1/embeddings", **body)
    assert error["param"] == param
    assert message in error["message"]


def test_embeddings_of_llama_server(encoder: Server) -> None:
    (exact,) = encoder.llm.embed(["hello"], normalize=False)
    for path, name in (("/embedding", "content"), ("/embeddings", "input")):
        (made,) = post(encoder, path, **{name: "hello"}, embd_normalize=-1)
        assert made == {"index": 0, "embedding": [exact.tolist()]}
        ((row,),) = [each["embedding"] for each in post(encoder, path, **{name: "hello"})]
        np.testing.assert_allclose(row, exact / np.linalg.norm(exact), rtol=1e-6)
        ((row,),) = [
            e["embedding"] for e in post(encoder, path, **{name: "hello"}, embd_normalize=1)
        ]
        np.testing.assert_allclose(row, exact / np.abs(exact).sum(), rtol=1e-6)


def test_a_model_that_generates(server: Server) -> None:
    """Has embeddings too: of a text that of its last token, in llama-server's API of all tokens."""
    (row,) = server.llm.embed(["Once upon a time"], pooling="last")
    made = post(server, "/v1/embeddings", input="Once upon a time")
    assert made["data"][0]["embedding"] == row.tolist()
    (all_rows,) = server.llm.embed(["Once upon"], normalize=False)
    assert post(server, "/embedding", content="Once upon") == [
        {"index": 0, "embedding": all_rows.tolist()}
    ]
    error = refusal(server, "/v1/rerank", query="a", documents=["b"])
    assert "is no reranker" in error["message"]


def test_answers_go_on_beside_embeddings(server: Server) -> None:
    """And neither changes the other."""
    body = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
    alone = post(server, "/v1/completions", **body)["choices"][0]["text"]
    texts = [f"Text number {i} of many." for i in range(100)]
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=60)
        made = pool.submit(
            httpx.post, f"{server.url}/v1/embeddings", json={"input": texts}, timeout=60
        )
        assert answer.result().json()["choices"][0]["text"] == alone
        rows = [each["embedding"] for each in made.result().json()["data"]]
    wait_for(server.is_idle)
    np.testing.assert_array_equal(rows, np.stack(server.llm.embed(texts, pooling="last")))


def test_scores(reranker: Server) -> None:
    """The best first, in the forms of Jina, Cohere and Hugging Face."""
    scores = reranker.llm.rank("hello", TEXTS)
    order = [int(i) for i in np.argsort(-np.array(scores), kind="stable")]
    wanted: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in order]
    for path in ("/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking"):
        made = post(reranker, path, query="hello", documents=TEXTS)
        assert made["results"] == wanted
        assert made["model"] == "stories"
        assert made["usage"]["total_tokens"] > 6
    documents = [{"text": text} for text in TEXTS]
    body = {"query": {"text": "hello"}, "documents": documents, "top_n": 2}
    made = post(reranker, "/v1/rerank", **body, return_documents=True)
    assert made["results"] == [
        {**each, "document": {"text": TEXTS[i]}} for i, each in zip(order, wanted[:2], strict=False)
    ]
    made = post(reranker, "/rerank", query="hello", texts=TEXTS, return_text=True)
    assert made == [{"index": i, "score": scores[i], "text": TEXTS[i]} for i in order]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "hello"}, "documents"),
        ({"query": "hello", "documents": []}, "documents"),
        ({"query": "hello", "documents": ["a", {"title": "b"}]}, "documents[1]"),
        ({"query": "hello", "documents": ["a"], "top_n": 0}, "top_n"),
    ],
)
def test_what_cannot_be_ranked(reranker: Server, body: dict[str, Any], param: str) -> None:
    assert refusal(reranker, "/v1/rerank", **body)["param"] == param


def test_a_reranker_has_no_embeddings(reranker: Server) -> None:
    assert "/v1/rerank" in refusal(reranker, "/v1/embeddings", input="hello")["message"]
