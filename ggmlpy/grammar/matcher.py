"""The state of a grammar in one answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import GrammarError
from ggmlpy.grammar.library import reason
from ggmlpy.graph.buffer import address_of

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Matcher:
    """Says which tokens may come next, and which must."""

    __slots__ = ("_last", "_matcher", "_n_bytes", "mask")

    def __init__(self, matcher: LLMatcher, n_vocab: int, n_extra: int = 0) -> None:
        """`n_vocab` tokens have bits in llguidance's masks, of which the last `n_extra` are none
        of the model's; fewer than 64."""
        self._matcher = matcher
        self._n_bytes = 4 * -(-n_vocab // 32)
        n_last = max(0, n_vocab - n_extra - (n_vocab - 1) // 64 * 64)
        self._last = np.uint64((1 << n_last) - 1)  # the model's tokens in the last word
        self.mask: NDArray[np.uint64] = np.zeros(-(-n_vocab // 64), np.uint64)
        """Token i is bit i % 64 of word i // 64, as `allowed` has found it."""

    def allowed(self) -> NDArray[np.uint64]:
        """The tokens that may come next; valid until the next call. Raises GrammarError."""
        self._matcher.unsafe_compute_mask_ptr(address_of(self.mask), self._n_bytes)
        if self._matcher.is_error():
            raise self._error()
        self.mask[-1] &= self._last
        return self.mask

    def accept(self, token: int) -> None:
        """Go on behind a token. Raises GrammarError for one that is not allowed."""
        if not self._matcher.consume_token(token):
            raise self._error()

    def force(self) -> list[int]:
        """Go on behind the tokens that have no alternative, and return them.

        None of them ends within what could become a longer token.
        """
        tokens = self._matcher.compute_ff_tokens()
        return tokens[: self._matcher.try_consume_tokens(tokens)] if tokens else tokens

    @property
    def is_finished(self) -> bool:
        """Whether the text is complete and nothing can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def is_accepting(self) -> bool:
        """Whether the text is complete; something may follow."""
        return self._matcher.is_accepting()

    def n_valid(self, tokens: Sequence[int]) -> int:
        """How many of the tokens, one after another, could follow."""
        return self._matcher.validate_tokens(list(tokens))

    def _error(self) -> GrammarError:
        error = reason(self._matcher.get_error())
        if error.startswith("NoExtension"):
            error = "no token of the vocabulary has what must come next"
        return GrammarError(f"the grammar: {error}")
