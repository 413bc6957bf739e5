"""Stop strings in pieces of text, against str.find on the whole text."""

from __future__ import annotations

import re
from itertools import product
from typing import Any, SupportsIndex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmlpy.errors import SamplingError
from ggmlpy.text.stopping import StopChecker

# Two letters: nearly every text has stop strings that overlap themselves and each other.
pieces_lists = st.lists(st.text("ab", max_size=6), max_size=8)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def first_start(text: str, stops: list[str]) -> int | None:
    starts = [text.find(stop) for stop in stops if stop in text]
    return min(starts, default=None)


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str, StopChecker]:
    checker = StopChecker(stops)
    shown = [checker.push(piece) for piece in pieces]
    return shown, checker.finish(), checker


@settings(max_examples=1000)
@given(pieces=pieces_lists, stops=stop_lists)
def test_shows_exactly_the_text_before_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    shown, rest, checker = run(stops, pieces)
    start = first_start(text, stops)
    assert "".join(shown) + rest == text[:start]
    if start is None:
        assert checker.stopped is None
    else:
        assert checker.stopped is not None
        assert text.startswith(checker.stopped, start)
        assert checker.stopped in stops


@given(text=st.text("ab", max_size=20), stops=stop_lists)
def test_one_piece_names_the_longest_stop_at_the_first_place(text: str, stops: list[str]) -> None:
    *_, checker = run(stops, [text])
    start = first_start(text, stops)
    if start is None:
        assert checker.stopped is None
    else:
        at_start = [stop for stop in stops if text.startswith(stop, start)]
        assert checker.stopped == max(at_start, key=len)


@given(pieces=pieces_lists, stops=stop_lists)
def test_holds_back_no_more_than_it_must(pieces: list[str], stops: list[str]) -> None:
    """Every held letter: some way in which the text goes on stops before it.

    A way to go on that matters completes a stop string, so those are all that need a try.
    """
    checker = StopChecker(stops)
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += checker.push(piece)
        if checker.stopped is not None:
            break
        endings = [stop[n:] for stop in stops for n in range(len(stop))]
        cuts = [first_start(text + ending, stops) for ending in ["", *endings]]
        assert len(shown) == min([len(text), *(cut for cut in cuts if cut is not None)])


@settings(max_examples=500)
@given(pieces=st.lists(st.text("a \t\n", max_size=5), max_size=8), n=st.integers(1, 3))
def test_a_line_that_begins_with_too_few_blanks_ends_the_text(pieces: list[str], n: int) -> None:
    """Behind its blanks, once something else comes, as in llama-server; the first line may."""
    text = "".join(pieces)
    checker = StopChecker([], n_indent=n)
    shown = "".join(checker.push(piece) for piece in pieces) + checker.finish()
    found = re.search(rf"\n[ \t]{{0,{n - 1}}}(?=[^ \t])", text)
    assert shown == (text if found is None else text[: found.end()])
    assert checker.stopped == (None if found is None else "")


def test_indentation_is_looked_at_in_what_stop_strings_leave() -> None:
    checker = StopChecker(["end"], n_indent=2)
    assert checker.push("a\n  b") == "a\n  b"
    assert checker.push("\n end of") == "\n "
    assert (checker.stopped, checker.push("x"), checker.finish()) == ("end", "", "")
    checker = StopChecker(["\nx"], n_indent=1)
    assert checker.push("a\n") == "a"
    assert checker.push("y") == "\n"
    assert checker.stopped == ""
    with pytest.raises(SamplingError, match="n_indent is -1"):
        StopChecker([], n_indent=-1)


def test_a_stop_string_that_spans_pieces() -> None:
    assert run(["</s>"], ["one <", "/", "s> two"])[:2] == (["one ", "", ""], "")


def test_a_beginning_that_comes_to_nothing_is_shown() -> None:
    assert run(["</s>"], ["one <", "/", "p>", "<"])[:2] == (["one ", "", "</p>", ""], "<")


def test_a_complete_stop_waits_for_an_earlier_one_that_may_come_true() -> None:
    shown, rest, checker = run(["b", "abc"], ["xab", "c"])
    assert (shown, rest, checker.stopped) == (["x", ""], "", "abc")
    shown, rest, checker = run(["b", "abc"], ["xab", "d"])
    assert (shown, rest, checker.stopped) == (["x", "a"], "", "b")
    shown, rest, checker = run(["b", "abc"], ["xab"])
    assert (shown, rest, checker.stopped) == (["x"], "a", "b")


def test_a_shorter_stop_at_the_same_place_does_not_wait() -> None:
    checker = StopChecker(["\n", "\n\n"])
    assert checker.push("line\n") == "line"
    assert checker.stopped == "\n"


def test_nothing_is_shown_after_the_stop() -> None:
    checker = StopChecker(["STOP"])
    assert checker.push("go STOP on") == "go "
    assert (checker.push("more"), checker.finish(), checker.stopped) == ("", "", "STOP")


def test_without_stops_everything_passes_at_once() -> None:
    assert run([], ["a", "", "b"])[:2] == (["a", "", "b"], "")


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ([""], r"stop\[0\] is '': must be a string that is not empty"),
        (["ok", 7], r"stop\[1\] is 7: must be a string"),
        ("abc", "stop is 'abc': must be a list of strings"),
    ],
)
def test_bad_stops(stop: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        StopChecker(stop)


class CountingStr(str):
    """Counts the characters that indexing and slicing read."""

    n_read = 0

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        read = super().__getitem__(key)
        CountingStr.n_read += len(read)
        return read


STOPS = ("a" * 99 + "b", "ab" * 50, "a" * 50 + "b" * 50)
TEXTS = ("a" * 1000, "ab" * 500, ("a" * 99 + "c") * 10, "a" * 50 + "b")


def test_each_character_is_compared_few_times() -> None:
    for stop, text in product(STOPS, TEXTS):
        CountingStr.n_read = 0
        checker = StopChecker([CountingStr(stop)])
        for char in text:
            checker.push(char)
        assert CountingStr.n_read <= 4 * (len(text) + len(stop))


def test_a_long_stop_costs_nothing_before_its_beginning_comes() -> None:
    CountingStr.n_read = 0
    checker = StopChecker([CountingStr("ab" * 100_000)])
    assert checker.push("xab" * 10) == ("xab" * 10)[:-2]
    assert CountingStr.n_read <= 200
