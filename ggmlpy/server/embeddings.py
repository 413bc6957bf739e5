"""What the APIs of embeddings and scores share: texts to tokens, and their turn in the engine."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from starlette.responses import Response

from ggmlpy.engine.embeddings import Pooling, Vector, pooling_of
from ggmlpy.llama import Llama
from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import invalid
from ggmlpy.server.events import as_json
from ggmlpy.server.fields import text, wrong
from ggmlpy.server.hosted import Hosted

_MOST_TEXTS = 2048
_MUST = "a string, a list of strings, a list of token ids, or a list of such lists"

Tokens = list[list[int]]


def pooling_for(call: Call, llm: Llama) -> Pooling:
    """The server's pooling, or else that of the model's file."""
    chosen = call.settings.pooling
    return pooling_of(llm.model) if chosen is None else Pooling.named(chosen)


def one_pooling_for(call: Call, llm: Llama) -> Pooling:
    """What makes one embedding of a text: `pooling_for`. Where that is none, the last token of a
    decoder, which has seen all others, and the mean of an encoder.

    Raises ApiError for a reranker.
    """
    found = pooling_for(call, llm)
    if found is Pooling.RANK:
        raise invalid("model", "the model is a reranker, which gives scores: use /v1/rerank")
    if found is not Pooling.NONE:
        return found
    return Pooling.LAST if llm.model.has_logits else Pooling.MEAN


def read_texts(llm: Llama, name: str, value: Any) -> Tokens:
    """The tokens of a text, of a list of texts, or of lists of tokens. Raises ApiError."""
    if isinstance(value, str):
        return [_tokens(llm, name, value)]
    if not isinstance(value, list):
        raise wrong(name, value, _MUST)
    if not value:
        raise invalid(name, f"{name} is an empty list: it must have a text")
    if _is_token(value[0]):
        return [_tokens(llm, name, value)]
    if len(value) > _MOST_TEXTS:
        raise invalid(name, f"{name} has {len(value)} texts: there may be {_MOST_TEXTS}")
    return [_tokens(llm, f"{name}[{i}]", each) for i, each in enumerate(value)]


def _tokens(llm: Llama, name: str, value: Any) -> list[int]:
    if isinstance(value, str):
        tokens = llm.tokenize(text(name, value), special=True)
        if not value or not tokens:
            raise invalid(name, f"{name} is empty: it must be a text")
        return tokens
    if not isinstance(value, list) or not all(map(_is_token, value)):
        raise wrong(name, value, "a string, or a list of token ids")
    if not value:
        raise invalid(name, f"{name} has no tokens: it must have one")
    n_vocab = llm.n_vocab()
    for token in value:
        if not 0 <= token < n_vocab:
            raise invalid(name, f"{name} has the token {token}: ids are 0 to {n_vocab - 1}")
    return value


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


async def embedded(
    call: Call, hosted: Hosted, texts: Tokens, pooling: Pooling, *, normalize: bool
) -> list[Vector]:
    """The embeddings, or scores, of texts, when it is their turn. Other requests go on between the
    batches of many texts."""
    await call.stack.enter_async_context(hosted.gate.admitted(call.client))
    llm, do = hosted.llm.llama, hosted.llm.answers.do
    kind = pooling.name.lower()
    batches = await do(lambda: llm.embed_batches(texts, pooling=kind, normalize=normalize))
    found: list[Vector] = []
    while len(found) < len(texts):
        found += await do(lambda: next(batches))
    return found


async def answer(
    call: Call,
    head: dict[str, Any] | None,
    rows: Sequence[Vector],
    made: Callable[[int, Vector], dict[str, Any]],
) -> Response:
    """The JSON of embeddings: a list of what `made` has for each, as `data` of `head` if there is
    one. It is written in the pool, a row at a time: they may be large."""

    def write() -> Response:
        listed = b"[" + b",".join(as_json(made(i, row)) for i, row in enumerate(rows)) + b"]"
        if head is not None:
            listed = as_json(head)[:-1] + b',"data":' + listed + b"}"
        return Response(listed, media_type="application/json")

    return await call.in_pool(write)


def as_base64(row: Vector) -> str:
    """The bytes of f32, little-endian, as OpenAI encodes them."""
    return base64.b64encode(np.ascontiguousarray(row, "<f4").tobytes()).decode()


def usage_of(texts: Tokens) -> dict[str, int]:
    n = sum(map(len, texts))
    return {"prompt_tokens": n, "total_tokens": n}
