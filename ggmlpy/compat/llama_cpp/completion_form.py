"""The dicts of completions, as llama-cpp-python builds them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from ggmlpy.engine.generation import Piece, TokenLogprob


class CompletionForm:
    """The dicts of one completion."""

    def __init__(
        self,
        model: str,
        n_prompt: int,
        text_of: Callable[[int], str],
        *,
        offset: int,
        echo: str = "",
        suffix: str = "",
    ) -> None:
        """`text_of` is the text of a token; `offset` where the first one is reported to begin."""
        self._id = f"cmpl-{uuid.uuid4()}"
        self._created = int(time.time())
        self._model = model
        self._n_prompt = n_prompt
        self._text_of = text_of
        self._offset = offset
        self._echo = echo
        self._suffix = suffix

    def whole(
        self, text: str, logprobs: list[TokenLogprob], reason: str, n_decoded: int
    ) -> dict[str, Any]:
        """The whole completion."""
        choice = {
            "text": self._echo + text + self._suffix,
            "index": 0,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": reason,
        }
        usage = {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": n_decoded,
            "total_tokens": self._n_prompt + n_decoded,
        }
        return {**self._envelope(choice), "usage": usage}

    def chunks(self, pieces: Iterator[Piece]) -> Iterator[dict[str, Any]]:
        """One chunk for each piece with text, then one with the reason of the end."""
        reason: str | None = None
        for piece in pieces:
            reason = piece.finish_reason
            if piece.text or piece.logprobs:
                logprobs = self._logprobs(piece.logprobs) if piece.logprobs else None
                yield self._chunk(piece.text, logprobs, None)
        yield self._chunk("", None, reason)

    def _chunk(self, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}
        return self._envelope(choice)

    def _envelope(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [choice],
        }

    def _logprobs(self, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        """Of each token, with itself among the most likely ones. Moves the offset behind them."""
        tokens = [self._text_of(each.token) for each in logprobs]
        offsets = []
        for text in tokens:
            offsets.append(self._offset)
            self._offset += len(text)
        tops = []
        for each, text in zip(logprobs, tokens, strict=True):
            top = {self._text_of(token): value for token, value in each.top.items()}
            tops.append({**top, text: each.logprob})
        return {
            "tokens": tokens,
            "text_offset": offsets,
            "token_logprobs": [each.logprob for each in logprobs],
            "top_logprobs": tops,
        }
