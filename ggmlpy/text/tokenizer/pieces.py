"""Looking up the tokens that begin at a position, in a vocabulary of strings or bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import AnyStr, Generic


class Beginnings(Generic[AnyStr]):
    """The lengths of texts by their first two elements.

    With 250,000 tokens of up to 40 characters few lengths are left to look up at each position,
    and unlike in a trie nothing is stored for the beginnings that are no tokens.
    """

    def __init__(self, texts: Iterable[AnyStr]) -> None:
        found: dict[AnyStr, set[int]] = {}
        for text in texts:
            found.setdefault(text[:2], set()).add(len(text))
        for first in [text for text in found if len(text) == 2 and text[:1] in found]:
            found[first].add(1)
        shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._lengths: dict[AnyStr, tuple[int, ...]] = {}
        for first, lengths in found.items():
            listed = tuple(sorted(lengths, reverse=True))
            self._lengths[first] = shared.setdefault(listed, listed)

    def lengths(self, text: AnyStr, at: int) -> tuple[int, ...]:
        """The lengths that a text at this position may have, from the longest."""
        found = self._lengths.get(text[at : at + 2])
        return self._lengths.get(text[at : at + 1], ()) if found is None else found
