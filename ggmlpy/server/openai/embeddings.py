"""POST /v1/embeddings."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from ggmlpy.engine.embeddings import Vector
from ggmlpy.server.embeddings import (
    answer,
    as_base64,
    embedded,
    one_pooling_for,
    read_texts,
    usage_of,
)
from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import anything, integer, needed, one_of, read, text

_CALL = {
    "model": text,
    "encoding_format": one_of("float", "base64"),
    "dimensions": integer(1),
}


async def embeddings(call: Call) -> Response:
    """The embedding of a text, or of each of several."""
    asked = read(call.body, _CALL)
    given = needed(call.body, "input", anything)
    hosted = await call.stack.enter_async_context(call.models.using(asked.get("model")))
    llm = hosted.llm.llama
    pooling = one_pooling_for(call, llm)
    n_embd = llm.n_embd()
    if asked.get("dimensions", n_embd) != n_embd:
        raise invalid(
            "dimensions",
            f"dimensions is {asked['dimensions']}: the embeddings of this model have {n_embd}, and"
            " its file does not say that they may be cut",
        )
    texts = await call.in_pool(lambda: read_texts(llm, "input", given))
    rows = await embedded(call, hosted, texts, pooling, normalize=True)
    is_base64 = asked.get("encoding_format") == "base64"

    def made(i: int, row: Vector) -> dict[str, Any]:
        shown = as_base64(row) if is_base64 else row.tolist()
        return {"object": "embedding", "index": i, "embedding": shown}

    head = {"object": "list", "model": hosted.name, "usage": usage_of(texts)}
    return await answer(call, head, rows, made)
