"""The interface of what proposes tokens, and functions of users that do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.arguments import WrongKind, as_int, kind_of
from ggmlpy.errors import ArgumentError

DraftFunction = Callable[[NDArray[np.intc]], Sequence[int] | NDArray[np.integer]]


class Asked(NamedTuple):
    """A sequence that a draft is asked for."""

    seq: int  # its number, below n_seq_max
    tokens: list[int]  # all of them; to be read only
    n_most: int  # tokens of the draft, at least 1


class Drafter(Protocol):
    """Proposes what may follow sequences. That changes the speed alone, never a text."""

    @property
    def n_most(self) -> int:
        """The most tokens that a draft of it has."""

    def draft(self, asked: Sequence[Asked]) -> list[list[int]]:
        """A draft for each sequence; an empty one where nothing is proposed."""

    def close(self) -> None:
        """Give back what it has opened."""

    def __str__(self) -> str:
        """What it is, in a few words."""


class FunctionDrafter:
    """A function of the user: the tokens of a sequence [n] to those that may come next.

    llama-cpp-python's draft models are such functions. Raises ArgumentError for what is no token.
    """

    def __init__(self, function: DraftFunction, n_vocab: int) -> None:
        self.n_most = MOST_OF_FUNCTION
        self._function = function
        self._n_vocab = n_vocab

    def draft(self, asked: Sequence[Asked]) -> list[list[int]]:
        return [self._draft(each) for each in asked]

    def _draft(self, asked: Asked) -> list[int]:
        proposed = self._function(np.array(asked.tokens, np.intc))
        if not isinstance(proposed, Sequence | np.ndarray) or isinstance(proposed, str | bytes):
            raise ArgumentError(
                f"draft_model returned {kind_of(proposed)}: it must return a list or an array of"
                " tokens"
            )
        return [self._token(token) for token in proposed[: asked.n_most]]

    def _token(self, given: object) -> int:
        try:
            token = as_int(given)
        except WrongKind:
            raise ArgumentError(
                f"draft_model returned {kind_of(given)} as a token: it must be a whole number"
            ) from None
        if not 0 <= token < self._n_vocab:
            raise ArgumentError(
                f"draft_model returned token {token}: must be in 0 .. {self._n_vocab - 1}"
            )
        return token

    def close(self) -> None:
        """Nothing: it has opened nothing."""

    def __str__(self) -> str:
        return f"by {getattr(self._function, '__qualname__', type(self._function).__name__)}"


MOST_OF_FUNCTION = 16  # tokens of a function's draft that are looked at
