"""Ends the reasoning of an answer after a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ggmlpy.engine.options import LogitsCallback
from ggmlpy.text.tokenizer import Tokenizer


class ReasoningBudget:
    """A logits processor that forces the marker behind reasoning once the budget is used up.

    Tokens count from behind the marker that begins the reasoning, which is the first of an answer,
    or the last of its prompt. Only the first reasoning of an answer is limited. It is for one
    answer, and called once for each of its tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        markers: tuple[str, str],
        budget: int,
        *,
        thinks: bool,
        before: LogitsCallback | None,
    ) -> None:
        """`thinks`: the prompt ends within the reasoning. `before` runs first."""
        self._tokenizer = tokenizer
        self._begin, self._end = (marker.encode() for marker in markers)
        self._left = budget
        self._before = before
        self._is_open: bool | None = True if thinks else None  # None: it may begin yet
        self._text = b""  # that may become a marker
        self._forced: list[int] = []  # tokens of the marker that are left
        self._end_tokens = tokenizer.encode_part(markers[1], special=True)
        self._is_first = True

    def __call__(self, seen: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits of the token behind `seen`."""
        if self._before is not None:
            logits = self._before(seen, logits)
        if not self._is_first:
            self._take(seen[-1])
        self._is_first = False
        if self._is_open and self._left <= 0:
            self._is_open = False
            self._forced = list(self._end_tokens)
        if self._forced:
            token = self._forced.pop(0)
            logits[:] = -np.inf
            logits[token] = 0
        return logits

    def _take(self, token: int) -> None:
        """Take note of a token of the answer."""
        if self._is_open is False:
            return
        self._text += self._tokenizer.token_bytes(token, special=True)
        if self._is_open:
            self._left -= 1
            if self._end in self._text:
                self._is_open = False
            self._text = self._text[-len(self._end) :]
            return
        start = self._text.lstrip()
        if start.startswith(self._begin):
            self._is_open, self._text = True, start[len(self._begin) :]
        elif not self._begin.startswith(start):
            self._is_open = False
