"""Results as llama-cpp-python's dicts, which are OpenAI's: whole, or in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator
from typing import Any, Protocol

from ggmlpy.engine.generation import Piece, TokenLogprob
from ggmlpy.text.tokenizer import Tokenizer


class Form(Protocol):
    """The form of a whole result."""

    def whole(
        self, text: str, logprobs: list[TokenLogprob], reason: str, n_decoded: int
    ) -> Any: ...


class _Envelope:
    """The fields that all dicts of one answer share: id, time, model."""

    def __init__(self, prefix: str, model: str, tokenizer: Tokenizer, n_prompt: int) -> None:
        self._id = f"{prefix}-{uuid.uuid4()}"
        self._created = int(time.time())
        self._model = model
        self._tokenizer = tokenizer
        self._n_prompt = n_prompt

    def _wrap(self, object_name: str, choice: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": object_name,
            "created": self._created,
            "model": self._model,
            "choices": [choice],
        }

    def _usage(self, n_decoded: int) -> dict[str, int]:
        return {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": n_decoded,
            "total_tokens": self._n_prompt + n_decoded,
        }

    def _text_of(self, token: int) -> str:
        return self._tokenizer.decode([token], special=True, start=False)


class TextForm(_Envelope):
    """`text_completion`."""

    def __init__(self, model: str, tokenizer: Tokenizer, n_prompt: int, *, echo: str = "") -> None:
        super().__init__("cmpl", model, tokenizer, n_prompt)
        self._echo = echo

    def whole(
        self, text: str, logprobs: list[TokenLogprob], reason: str, n_decoded: int
    ) -> dict[str, Any]:
        choice = self._choice(self._echo + text, logprobs, reason, len(self._echo))
        return {**self._wrap("text_completion", choice), "usage": self._usage(n_decoded)}

    def chunks(self, pieces: Iterator[Piece]) -> Generator[dict[str, Any], None, None]:
        offset = len(self._echo)
        if self._echo:
            yield self._wrap("text_completion", self._choice(self._echo, [], None, 0))
        for piece in pieces:
            choice = self._choice(piece.text, piece.logprobs, piece.finish_reason, offset)
            offset += len(piece.text)
            yield self._wrap("text_completion", choice)

    def _choice(
        self, text: str, logprobs: list[TokenLogprob], reason: str | None, offset: int
    ) -> dict[str, Any]:
        shown = self._logprobs(logprobs, offset) if logprobs else None
        return {"text": text, "index": 0, "logprobs": shown, "finish_reason": reason}

    def _logprobs(self, logprobs: list[TokenLogprob], offset: int) -> dict[str, Any]:
        texts = [self._text_of(p.token) for p in logprobs]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        tops = [{self._text_of(t): v for t, v in p.top.items()} for p in logprobs]
        return {
            "tokens": texts,
            "text_offset": offsets,
            "token_logprobs": [p.logprob for p in logprobs],
            "top_logprobs": tops,
        }


class ChatForm(_Envelope):
    """`chat.completion`."""

    def __init__(self, model: str, tokenizer: Tokenizer, n_prompt: int) -> None:
        super().__init__("chatcmpl", model, tokenizer, n_prompt)

    def whole(
        self, text: str, logprobs: list[TokenLogprob], reason: str, n_decoded: int
    ) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        choice = self._choice("message", message, logprobs, reason)
        return {**self._wrap("chat.completion", choice), "usage": self._usage(n_decoded)}

    def chunks(self, pieces: Iterator[Piece]) -> Generator[dict[str, Any], None, None]:
        name = "chat.completion.chunk"
        yield self._wrap(name, self._choice("delta", {"role": "assistant"}, [], None))
        for piece in pieces:
            if piece.text or piece.logprobs:
                delta = {"content": piece.text}
                yield self._wrap(name, self._choice("delta", delta, piece.logprobs, None))
            if piece.finish_reason is not None:
                yield self._wrap(name, self._choice("delta", {}, [], piece.finish_reason))

    def _choice(
        self, key: str, value: dict[str, str], logprobs: list[TokenLogprob], reason: str | None
    ) -> dict[str, Any]:
        shown = {"content": [self._logprob(p) for p in logprobs]} if logprobs else None
        return {"index": 0, key: value, "logprobs": shown, "finish_reason": reason}

    def _logprob(self, logprob: TokenLogprob) -> dict[str, Any]:
        top = [self._entry(token, value) for token, value in logprob.top.items()]
        return {**self._entry(logprob.token, logprob.logprob), "top_logprobs": top}

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token, special=True)
        return {"token": self._text_of(token), "logprob": value, "bytes": list(raw)}


def collect(pieces: Iterator[Piece], form: Form) -> Any:
    """The whole result; runs the request to its end."""
    text: list[str] = []
    logprobs: list[TokenLogprob] = []
    n_decoded, reason = 0, "length"
    for piece in pieces:
        text.append(piece.text)
        logprobs += piece.logprobs
        n_decoded += piece.token is not None
        reason = piece.finish_reason or reason
    return form.whole("".join(text), logprobs, reason, n_decoded)
