"""POST /v1/rerank: how well documents answer a query.

In the forms of Jina and Cohere, which llama-server has too (`documents`), and of Hugging Face's
text-embeddings-inference (`texts`). Scores are the model's, of any size, and the best comes first.
Sources: jina.ai/reranker, docs.cohere.com/reference/rerank, and tools/server/README.md of
llama.cpp.
"""

from __future__ import annotations

import uuid
from typing import Any

from ggmlpy.engine.embeddings import Pooling
from ggmlpy.server.embeddings import embedded, usage_of
from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import flag, integer, listed, needed, read, text, wrong
from ggmlpy.text.pairs import pair_tokens

_MOST_DOCUMENTS = 2048
_CALL = {
    "model": text,
    "top_n": integer(1),
    "return_documents": flag,
    "return_text": flag,
}


async def rerank(call: Call) -> dict[str, Any] | list[Any]:
    """The documents of a query with their scores, in descending order."""
    asked = read(call.body, _CALL)
    query = needed(call.body, "query", _text_of)
    is_tei = "documents" not in call.body and "texts" in call.body
    name = "texts" if is_tei else "documents"
    documents = needed(call.body, name, listed(_text_of, least=1, most=_MOST_DOCUMENTS))
    hosted = await call.stack.enter_async_context(call.models.using(asked.get("model")))
    llm = hosted.llm.llama
    if llm.model.classifier is None:
        raise invalid(
            "model",
            f'the model "{hosted.name}" is no reranker: it has no classifier that gives scores',
        )

    def tokenize() -> list[list[int]]:
        return [pair_tokens(llm.tokenizer, llm.metadata, query, each) for each in documents]

    pairs = await call.in_pool(tokenize)
    rows = await embedded(call, hosted, pairs, Pooling.RANK, normalize=False)
    scores = [float(row[0]) for row in rows]
    best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: asked.get("top_n")]
    if is_tei:
        with_text = asked.get("return_text", False)
        return [
            {"index": i, "score": scores[i]} | ({"text": documents[i]} if with_text else {})
            for i in best
        ]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in best]
    if asked.get("return_documents"):
        for each in results:
            each["document"] = {"text": documents[each["index"]]}
    return {
        "id": f"rerank-{uuid.uuid4()}",
        "object": "list",
        "model": hosted.name,
        "usage": usage_of(pairs),
        "results": results,
    }


def _text_of(name: str, value: Any) -> str:
    """A string, or {"text": a string}."""
    if isinstance(value, dict):
        value = value.get("text")
    if not isinstance(value, str):
        raise wrong(name, value, 'a string, or an object {"text": …}')
    return text(name, value)
