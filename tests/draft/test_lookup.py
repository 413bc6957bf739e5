"""Prompt lookup, and the lengths of drafts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy import PromptLookup
from ggmlpy.draft.base import Asked
from ggmlpy.draft.length import DraftLength
from ggmlpy.draft.lookup import LookupDrafter
from ggmlpy.errors import ArgumentError


def looked_up(tokens: list[int], longest: int, shortest: int, n: int) -> list[int]:
    """What a search from the end finds, for the longest n-gram first."""
    for size in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[len(tokens) - size :]:
                draft = list(tokens)
                for i in range(n):
                    draft.append(draft[end + i])
                return draft[len(tokens) :]
    return []


@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=60),
    cuts=st.sets(st.integers(1, 60)),
    shortest=st.integers(1, 3),
    more=st.integers(0, 2),
    n=st.integers(1, 12),
)
def test_the_latest_longest_match(
    tokens: list[int], cuts: set[int], shortest: int, more: int, n: int
) -> None:
    """As the tokens grow, by one or several at a time."""
    lookup = PromptLookup(shortest + more, n, shortest)
    drafter, growing = LookupDrafter(lookup), list[int]()
    for cut in sorted({*(cut for cut in cuts if cut < len(tokens)), len(tokens)}):
        growing += tokens[len(growing) : cut]
        (draft,) = drafter.draft([Asked(0, growing, n)])
        assert draft == looked_up(growing, shortest + more, shortest, n)


def test_sequences_do_not_mix() -> None:
    drafter = LookupDrafter(PromptLookup(num_pred_tokens=2))
    a, b = [1, 2, 3, 4, 1, 2], [1, 2, 7, 8, 1, 2]
    assert drafter.draft([Asked(0, a, 2), Asked(1, b, 2)]) == [[3, 4], [7, 8]]
    assert drafter.draft([Asked(0, b, 2), Asked(1, a, 1)]) == [[7, 8], [3]]
    drafter.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_pred_tokens": 0}, "num_pred_tokens is 0: it must be a whole number, at least 1"),
        ({"min_ngram_size": 0}, "min_ngram_size is 0"),
        ({"max_ngram_size": 1}, "max_ngram_size is 1: it must be a whole number, at least 2"),
        ({"max_ngram_size": "3"}, "PromptLookup: max_ngram_size is a str"),
    ],
)
def test_wrong_sizes(options: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        PromptLookup(**options)


def lengths(outcomes: list[int], n_most: int = 10) -> list[int]:
    """The lengths of drafts of which these many tokens are accepted, at most all; 0 in a pause."""
    length, found = DraftLength(), []
    for n_accepted in outcomes:
        n = length.next(n_most)
        found.append(n)
        if n:
            length.note(n, min(n, n_accepted), n_most)
    return found


def test_drafts_follow_what_is_accepted() -> None:
    assert lengths([9] * 4) == [4, 8, 10, 10]
    assert lengths([9, 2, 1, 2, 2]) == [4, 8, 3, 2, 4]
    assert lengths([0] * 12) == [4, 2, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0]
    assert lengths([0, 0, 0, 0, 9, 9, 0, 0, 0]) == [4, 2, 1, 0, 1, 2, 4, 2, 1]


@given(outcomes=st.lists(st.integers(0, 20), max_size=200), n_most=st.integers(1, 16))
def test_lengths_stay_in_bounds(outcomes: list[int], n_most: int) -> None:
    assert all(0 <= n <= n_most for n in lengths(outcomes, n_most))


def test_what_cannot_be_predicted_costs_little() -> None:
    """Of 1000 steps fewer than 50 have a draft, each of one token."""
    found = lengths([0] * 1000)
    assert 20 < sum(n > 0 for n in found) < 50
    assert max(found[3:]) == 1
