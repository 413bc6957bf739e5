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

    def draft(self, asked: Sequence[Asked]) -> Sequence[list[int] | Exception]:
        """A draft for each sequence, empty where nothing is proposed; or the error that ends its
        request."""

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
        self._arrays: dict[int, _Growing] = {}  # by sequence

    def draft(self, asked: Sequence[Asked]) -> list[list[int] | Exception]:
        return [self._drafted(each) for each in asked]

    def _drafted(self, asked: Asked) -> list[int] | Exception:
        try:
            return self._draft(asked)
        except Exception as error:  # the function may raise anything
            return error

    def _draft(self, asked: Asked) -> list[int]:
        array = self._arrays.get(asked.seq)
        if array is None or array.tokens is not asked.tokens:
            array = self._arrays[asked.seq] = _Growing(asked.tokens)
        proposed = self._function(array.view())
        is_flat = isinstance(proposed, Sequence) or getattr(proposed, "ndim", 0) == 1
        if not is_flat or isinstance(proposed, str | bytes):
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
        """Forget the sequences."""
        self._arrays.clear()

    def __str__(self) -> str:
        return f"by {getattr(self._function, '__qualname__', type(self._function).__name__)}"


class _Growing:
    """A list of tokens that grows, as an array that is not made anew each time."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self._array = np.array(tokens, np.intc)
        self._n = len(tokens)

    def view(self) -> NDArray[np.intc]:
        """The tokens [n], which the reader cannot change."""
        n = len(self.tokens)
        if n < self._n:  # some were cut
            self._n = 0
        if n > len(self._array):
            grown = np.empty(2 * n, np.intc)
            grown[: self._n] = self._array[: self._n]
            self._array = grown
        self._array[self._n : n] = self.tokens[self._n :]
        self._n = n
        found = self._array[:n]
        found.flags.writeable = False
        return found


MOST_OF_FUNCTION = 16  # tokens of a function's draft that are looked at
