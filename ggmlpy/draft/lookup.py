"""Prompt lookup: what followed the last tokens where they occurred before.

Summaries, edits and code repeat much of what stands in the prompt or in the text so far. A draft
from there costs almost nothing. Source: Saxena, Prompt Lookup Decoding, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ggmlpy.common.arguments import as_int, parsed
from ggmlpy.draft.base import Asked
from ggmlpy.runtime.context_sizes import check_least


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Drafts from the sequence itself, for `Llama(draft_model=PromptLookup())`.

    Looks for the latest place where the last `max_ngram_size` tokens occurred before, then for that
    of fewer, down to `min_ngram_size`, and proposes up to `num_pred_tokens` tokens that followed
    there; behind the end of the text they go on as a repetition would. Raises ArgumentError for a
    number below 1, and for sizes in the wrong order.
    """

    max_ngram_size: int = 3
    num_pred_tokens: int = 10
    min_ngram_size: int = 2

    def __post_init__(self) -> None:
        for name in ("max_ngram_size", "num_pred_tokens", "min_ngram_size"):
            parsed(as_int, "PromptLookup", name, getattr(self, name))
        check_least("num_pred_tokens", self.num_pred_tokens, 1)
        check_least("min_ngram_size", self.min_ngram_size, 1)
        check_least("max_ngram_size", self.max_ngram_size, self.min_ngram_size)


class LookupDrafter:
    """A PromptLookup for the sequences of one engine."""

    def __init__(self, lookup: PromptLookup) -> None:
        self.n_most = lookup.num_pred_tokens
        self._lookup = lookup
        self._indices: dict[int, _Index] = {}  # by sequence

    def draft(self, asked: Sequence[Asked]) -> list[list[int]]:
        drafts = []
        for seq, tokens, n_most in asked:
            index = self._indices.get(seq)
            if index is None or index.tokens is not tokens:
                lookup = self._lookup
                index = _Index(tokens, lookup.min_ngram_size, lookup.max_ngram_size)
                self._indices[seq] = index
            drafts.append(index.draft(n_most))
        return drafts

    def close(self) -> None:
        """Forget the sequences."""
        self._indices.clear()

    def __str__(self) -> str:
        sizes = f"{self._lookup.min_ngram_size} to {self._lookup.max_ngram_size}"
        return f"prompt lookup by {sizes} tokens, up to {self.n_most} at a time"


class _Index:
    """Where the n-grams of a growing list of tokens occurred last."""

    def __init__(self, tokens: list[int], shortest: int, longest: int) -> None:
        self.tokens = tokens
        self._sizes = range(longest, shortest - 1, -1)
        self._behind: dict[tuple[int, ...], int] = {}  # an n-gram: the index of what followed it
        self._n_known = 0  # tokens before which all n-grams end that are known

    def draft(self, n_most: int) -> list[int]:
        """What followed the longest n-gram that the tokens end with, as far as it occurred."""
        tokens = self.tokens
        n = len(tokens)
        for end in range(max(1, self._n_known), n):
            for size in self._sizes:
                if size <= end:
                    self._behind[tuple(tokens[end - size : end])] = end
        self._n_known = n
        for size in self._sizes:
            start = self._behind.get(tuple(tokens[n - size :])) if size < n else None
            if start is not None:
                period = n - start
                return [tokens[start + i % period] for i in range(n_most)]
        return []
