"""POST /embedding and /embeddings: pooled as the file says, or of all tokens."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from ggmlpy.engine.embeddings import Pooling, Vector, scaled
from ggmlpy.server.embeddings import (
    answer,
    as_base64,
    embedded,
    pooling_for,
    read_texts,
)
from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import anything, integer, needed, one_of, read, text

_CALL = {
    "model": text,
    "encoding_format": one_of("float", "base64"),
    "embd_normalize": integer(-1),
}
_EUCLIDEAN = 2


async def embedding(call: Call) -> Response:
    """The embeddings of a text or of several: of each a list, with as many as pooling leaves."""
    asked = read(call.body, _CALL)
    name = "input" if call.body.get("input") is not None else "content"
    given = needed(call.body, name, anything)
    hosted = await call.stack.enter_async_context(call.models.using(asked.get("model")))
    llm = hosted.llm.llama
    pooling = pooling_for(call, llm)
    is_base64 = asked.get("encoding_format") == "base64"
    if is_base64 and pooling is Pooling.NONE:
        raise invalid("encoding_format", "encoding_format is base64: without pooling it is float")
    texts = await call.in_pool(lambda: read_texts(llm, name, given))
    rows = await embedded(call, hosted, texts, pooling, normalize=False)
    kind = -1
    if pooling not in (Pooling.NONE, Pooling.RANK):
        kind = asked.get("embd_normalize", _EUCLIDEAN)

    def made(i: int, row: Vector) -> dict[str, Any]:
        each = scaled(row, kind)
        if is_base64:
            return {"index": i, "embedding": as_base64(each), "encoding_format": "base64"}
        return {"index": i, "embedding": each.reshape(-1, each.shape[-1]).tolist()}

    return await answer(call, None, rows, made)
