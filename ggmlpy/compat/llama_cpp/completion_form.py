"""The dicts of completions, as llama-cpp-python builds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ggmlpy.engine.completion import Echo, TextForm
from ggmlpy.engine.generation import Piece, TokenLogprob
from ggmlpy.text.tokenizer import Tokenizer


class CompletionForm:
    """Those of ggmlpy, but: text offsets count from the prompt's beginning also where it is not
    echoed; a stream has no echo, and ends with a chunk without text that says why; a suffix."""

    shows_end = False  # as there

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        n_prompt: int,
        *,
        offset: int,
        echo: Echo | None = None,
        suffix: str = "",
    ) -> None:
        self._whole = TextForm(model, tokenizer, n_prompt, echo=echo)
        self._chunks = TextForm(model, tokenizer, n_prompt)
        self._offset = offset if echo is None else 0
        self._suffix = suffix

    def whole(
        self, text: str, logprobs: list[TokenLogprob], reason: str, n_decoded: int
    ) -> dict[str, Any]:
        """The whole completion."""
        result = self._whole.whole(text, logprobs, reason, n_decoded)
        choice = result["choices"][0]
        choice["text"] += self._suffix
        _move(choice, self._offset)
        return result

    def chunks(self, pieces: Iterator[Piece]) -> Iterator[dict[str, Any]]:
        """One chunk for each piece with text, then one with the reason of the end."""
        for chunk in self._chunks.chunks(pieces):
            choice = chunk["choices"][0]
            _move(choice, self._offset)
            reason, choice["finish_reason"] = choice["finish_reason"], None
            if choice["text"] or choice["logprobs"]:
                yield chunk
            if reason is not None:
                end = {"text": "", "index": 0, "logprobs": None, "finish_reason": reason}
                yield {**chunk, "choices": [end]}


def _move(choice: dict[str, Any], n: int) -> None:
    """Add n to the offsets of a choice."""
    if choice["logprobs"]:
        choice["logprobs"]["text_offset"] = [n + at for at in choice["logprobs"]["text_offset"]]
