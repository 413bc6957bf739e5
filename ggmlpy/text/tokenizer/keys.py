"""Typed access to the tokenizer's metadata; errors name the key.

The metadata may be a GGUF file's or any mapping, with lists or numpy arrays for its arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import TokenizerError

PREFIX = "tokenizer.ggml."
NO_TOKEN = 0xFFFF_FFFF  # converters write this for a token that does not exist


class Keys:
    """The keys below `tokenizer.ggml.`; `where` begins every message ("model.gguf: ")."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self.metadata = metadata
        self.where = where

    def text(self, key: str, default: str) -> str:
        value = self.metadata.get(PREFIX + key, default)
        if isinstance(value, str):
            return value
        raise self.error(key, f"is {_shown(value)}, must be a string")

    def optional_text(self, key: str) -> str | None:
        return self.text(key, "") if PREFIX + key in self.metadata else None

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(PREFIX + key, default)
        if isinstance(value, bool | np.bool_):
            return bool(value)
        raise self.error(key, f"is {_shown(value)}, must be true or false")

    def token(self, key: str) -> int | None:
        """A token id; None if the key is missing or means that there is no such token."""
        value = self.metadata.get(PREFIX + key)
        if value is None:
            return None
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise self.error(key, f"is {_shown(value)}, must be a token id")
        token = operator.index(value)
        return None if token in (-1, NO_TOKEN) else token

    def array(self, key: str) -> Sequence[Any] | None:
        """An array whose elements are not read or checked yet."""
        value = self.metadata.get(PREFIX + key)
        if value is None:
            return None
        if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
            raise self.error(key, f"is {_shown(value)}, must be an array")
        array: Sequence[Any] = value
        return array

    def strings(self, key: str, array: Sequence[Any], begin: int = 0) -> list[str]:
        """The elements of an array of strings, which begins at `begin` in the file's array."""
        listed = _listed(array)
        if not set(map(type, listed)) <= {str}:
            i = next(i for i, value in enumerate(listed) if not isinstance(value, str))
            wrong = f"{_shown(listed[i])} at {begin + i}"
            raise self.error(key, f"holds {wrong}, must hold strings")
        return listed

    def chunks(self, key: str, array: Sequence[Any], n: int) -> Iterator[tuple[int, list[str]]]:
        """The strings in chunks of up to `n`, each with its position."""
        for begin in range(0, len(array), n):
            yield begin, self.strings(key, array[begin : begin + n], begin)

    def numbers(self, key: str, array: Sequence[Any]) -> NDArray[Any]:
        """The elements of an array of numbers."""
        numpy = getattr(array, "numpy", None)
        try:
            values = np.asarray(array if numpy is None else numpy())
        except ValueError as error:  # lists of different lengths
            raise self.error(key, "must hold numbers") from error
        if values.ndim != 1 or (len(values) and values.dtype.kind not in "iuf"):
            raise self.error(key, "must hold numbers")
        return values

    def error(self, key: str, message: str) -> TokenizerError:
        return TokenizerError(f"{self.where}{PREFIX}{key} {message}")


def _listed(array: Sequence[Any]) -> list[Any]:
    tolist = getattr(array, "tolist", None)
    return tolist() if tolist is not None else list(array)


def _shown(value: object) -> str:
    return f"{value!r:.40}"
