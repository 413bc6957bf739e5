"""The pieces of answers that run together, which no draft may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ggmlpy import Llama
from ggmlpy.engine.generation import Piece

PROMPT = "Once upon a time, there was a little girl named Lily. Lily"
NO_END = {1: -1000.0, 2: -1000.0}  # bans the end of texts of both models in conftest.py

Answer = list[tuple[int | None, str, str | None, Any]]


def answers(llm: Llama, prompts: Sequence[Any], **options: Any) -> list[Answer]:
    """All that the pieces of each answer have, which run together."""
    each = options.pop("each", [{}] * len(prompts))
    requests = [llm.request(p, **(options | own)) for p, own in zip(prompts, each, strict=True)]
    ids = [llm.engine.add(request) for request in requests]
    found: dict[int, Answer] = {id: [] for id in ids}
    while llm.engine.has_work:
        for output in llm.engine.step():
            piece = output.piece
            assert isinstance(piece, Piece), piece
            found[output.id].append((piece.token, piece.text, piece.finish_reason, piece.logprobs))
    return [found[id] for id in ids]


def tokens_of(answer: Answer) -> list[int]:
    return [token for token, *_ in answer if token is not None]
