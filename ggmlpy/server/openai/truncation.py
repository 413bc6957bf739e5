"""`truncation: "auto"`: a conversation that is too long loses its oldest messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from ggmlpy.llama import Llama

Message = dict[str, Any]


def fitting(llm: Llama, messages: list[Message], options: Mapping[str, Any]) -> list[Message]:
    """The messages without the first ones, as many as the context has no room for. Those of the
    system and the last one stay; if these do not fit, all are left as they are."""
    n_most = sum(message["role"] != "system" for message in messages[:-1])

    def fits(n: int) -> bool:
        return len(llm.chat_tokens(_without(messages, n), **options)) < llm.n_ctx_seq()

    if fits(0):
        return messages
    n = bisect_left(range(1, n_most + 1), True, key=fits) + 1
    return _without(messages, n) if n <= n_most else messages


def _without(messages: list[Message], n: int) -> list[Message]:
    """Without the first `n` of those that may go, and without results whose calls these have."""
    left: list[Message] = []
    is_behind = n > 0
    for message in messages[:-1]:
        if message["role"] != "system":
            if n > 0 or (is_behind and message["role"] == "tool"):
                n -= 1
                continue
            is_behind = False
        left.append(message)
    return [*left, messages[-1]]
