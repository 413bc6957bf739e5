"""Spans against Python's sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.memory.spans import Spans

POSITIONS = st.sets(st.integers(0, 30))
BOUNDS = st.integers(-2, 33)


def spans(positions: set[int]) -> Spans:
    made = Spans.of(np.array(sorted(positions, reverse=True), np.int32))
    assert in_form(made)
    assert as_set(made) == positions
    return made


def as_set(made: Spans) -> set[int]:
    return {p for r in made.ranges for p in r}


def in_form(made: Spans) -> bool:
    """In order, none empty, none touching the next: so equal sets are equal spans."""
    ends = [-1, *(r.stop for r in made.ranges)]
    return all(end < r.start < r.stop for end, r in zip(ends, made.ranges, strict=False))


@given(a=POSITIONS, b=POSITIONS, start=BOUNDS, stop=st.none() | BOUNDS)
def test_sets(a: set[int], b: set[int], start: int, stop: int | None) -> None:
    one, other = spans(a), spans(b)
    within = {p for p in range(31) if p >= start and (stop is None or p < stop)}
    for got, want in (
        (one.plus(other), a | b),
        (one.overlap(other), a & b),
        (one.between(start, stop), a & within),
        (one.without(start, stop), a - within),
        (one.moved(lambda p: p + start), {p + start for p in a if p + start >= 0}),
        (one.moved(lambda p: p // 3), {p // 3 for p in a}),
    ):
        assert as_set(got) == want
        assert in_form(got)
    assert bool(one) == bool(a)
    assert one.end == max(a, default=-1) + 1
    asked = np.arange(-3, 34)
    assert one.contains(asked).tolist() == [p in a for p in asked.tolist()]
    assert Spans.parse([(r.start, r.stop) for r in one.ranges]) == one


def test_they_are_shown_as_one_would_say_them() -> None:
    assert str(spans({1, 2, 3, 7, 9, 10})) == "1 to 3, 7, 9 to 10"


@pytest.mark.parametrize(
    "pairs", [[(3, 3)], [(-2, 4)], [(0, 2), (2, 4)], [(5, 6), (1, 2)], [(4, 1)]]
)
def test_pairs_that_are_no_spans(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="positions"):
        Spans.parse(pairs)
