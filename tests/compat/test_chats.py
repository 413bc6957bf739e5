"""Answers to messages, and handlers of one's own."""

from __future__ import annotations

from typing import Any

import pytest

from ggmlpy.compat.llama_cpp import (
    Llama,
)
from tests.compat.models import make


def test_messages_are_answered(llm: Llama) -> None:
    assert llm.chat_format == "llama-2"
    messages = [{"role": "user", "content": "Hi"}]
    whole = llm.create_chat_completion(messages, max_tokens=6, temperature=0)
    chunks = list(llm.create_chat_completion(messages, max_tokens=6, temperature=0, stream=True))
    choice = whole["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert whole["object"] == "chat.completion"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"}
    assert "".join(delta.get("content", "") for delta in deltas) == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


def test_handlers_of_ones_own() -> None:
    def handler(*, llama: Llama, messages: Any, **options: Any) -> Any:
        return llama.n_ctx(), messages, options["temperature"]

    with make(chat_handler=handler) as model:
        assert model.create_chat_completion([{"role": "user", "content": "Hi"}]) == (
            128,
            [{"role": "user", "content": "Hi"}],
            0.2,
        )
    with make(chat_format="chatml") as model:
        answer = model.create_chat_completion([{"role": "user", "content": "Hi"}], max_tokens=2)
        assert answer["usage"]["completion_tokens"] == 2
    with make(chat_format="no such format") as model, pytest.raises(Exception, match="chatml"):
        model.create_chat_completion([{"role": "user", "content": "Hi"}])
