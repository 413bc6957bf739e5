"""Completions as answers of a chat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Dict = dict[str, Any]


def as_chat(completion: Any, *, stream: bool) -> Any:
    """A completion, or its chunks, as those of a chat."""
    return chunks_of_chat(completion) if stream else chat_of(completion)


def chat_of(completion: Dict) -> Dict:
    """A completion as that of a chat."""
    choice = completion["choices"][0]
    return {
        **_envelope(completion, "chat.completion"),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": choice["text"]},
                "logprobs": chat_logprobs(choice["logprobs"]),
                "finish_reason": choice["finish_reason"],
            }
        ],
        "usage": completion["usage"],
    }


def chunks_of_chat(chunks: Iterator[Dict]) -> Iterator[Dict]:
    """The chunks of a completion as those of a chat."""
    for i, chunk in enumerate(chunks):
        choice = chunk["choices"][0]
        if i == 0:
            yield _chunk(chunk, {"role": "assistant"})
        reason = choice["finish_reason"]
        delta = {"content": choice["text"]} if reason is None else {}
        yield _chunk(chunk, delta, choice["logprobs"], reason)


def as_call(name: str, completion: Any, *, stream: bool) -> Any:
    """A completion, or its chunks, whose text is the arguments of a call of the tool `name`."""
    return _call_chunks(name, completion) if stream else _call(name, completion)


def _call(name: str, completion: Dict) -> Dict:
    choice = completion["choices"][0]
    call = {"name": name, "arguments": choice["text"]}
    message = {
        "role": "assistant",
        "content": None,
        "function_call": call,
        "tool_calls": [{"id": call_id(completion, name), "type": "function", "function": call}],
    }
    return {
        **_envelope(completion, "chat.completion"),
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": chat_logprobs(choice["logprobs"]),
                "finish_reason": "tool_calls",
            }
        ],
        "usage": completion["usage"],
    }


def _call_chunks(name: str, chunks: Iterator[Dict]) -> Iterator[Dict]:
    none: Dict = {"content": None, "function_call": None, "tool_calls": None}
    last: Dict | None = None
    for chunk in chunks:
        if last is None:
            yield _chunk(chunk, {"role": "assistant", **none})
        last = chunk
        choice = chunk["choices"][0]
        call = {"name": name, "arguments": choice["text"]}
        entry = {"index": 0, "id": call_id(chunk, name), "type": "function", "function": call}
        delta = {"role": None, "content": None, "function_call": call, "tool_calls": [entry]}
        yield _chunk(chunk, delta, choice["logprobs"])
    if last is not None:
        yield _chunk(last, {"role": None, **none}, None, "tool_calls")


def call_id(completion: Dict, name: str, i: int = 0) -> str:
    """The id of the i-th call of an answer."""
    return f"call__{i}_{name}_{completion['id']}"


def _chunk(chunk: Dict, delta: Dict, logprobs: Any = None, reason: str | None = None) -> Dict:
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": chat_logprobs(logprobs),
        "finish_reason": reason,
    }
    return {
        "id": "chat" + chunk["id"],  # the order of llama-cpp-python's chunks
        "model": chunk["model"],
        "created": chunk["created"],
        "object": "chat.completion.chunk",
        "choices": [choice],
    }


def _envelope(completion: Dict, object_name: str) -> Dict:
    return {
        "id": "chat" + completion["id"],
        "object": object_name,
        "created": completion["created"],
        "model": completion["model"],
    }


def chat_logprobs(logprobs: Dict | None) -> Dict | None:
    """The log-probabilities of a completion in the form of a chat."""
    if logprobs is None:
        return None
    entries = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    content = [
        {
            "token": token,
            "bytes": None,
            "logprob": logprob,
            "top_logprobs": [
                {"token": other, "logprob": value, "bytes": None}
                for other, value in (top or {}).items()
            ],
        }
        for token, logprob, top in entries
    ]
    return {"content": content, "refusal": None}
