"""Requests that arrive at random, and what is made of the times of their tokens."""

from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise

import pytest

from benchmarks.arrivals import (
    N_SPARE,
    Arrival,
    Lengths,
    arrivals,
    in_step,
    percentile,
    speed,
    waste,
)

LENGTHS = Lengths(prompt=50, answer=20, sigma=0.5, n_ctx_seq=4096)


def test_the_same_seed_gives_the_same_requests() -> None:
    made = arrivals(50, 4.0, LENGTHS, 100, seed=3)
    assert made == arrivals(50, 4.0, LENGTHS, 100, seed=3)
    assert made[:20] == arrivals(20, 4.0, LENGTHS, 100, seed=3)
    other = arrivals(50, 4.0, LENGTHS, 100, seed=4)
    assert [a.prompt for a in made] != [a.prompt for a in other]
    assert [a.at_s for a in made] != [a.at_s for a in other]


def test_the_rate_changes_times_only() -> None:
    slow, fast, at_once = (
        arrivals(50, rate, LENGTHS, 100, seed=3) for rate in (2.0, 8.0, math.inf)
    )
    assert [a.prompt for a in slow] == [a.prompt for a in fast] == [a.prompt for a in at_once]
    assert [a.n_predict for a in slow] == [a.n_predict for a in at_once]
    assert [a.at_s for a in slow] == pytest.approx([4 * a.at_s for a in fast])
    assert {a.at_s for a in at_once} == {0.0}


def test_arrivals_are_a_poisson_process() -> None:
    """The gaps have the mean, deviation and median of an exponential distribution."""
    made = arrivals(4000, 5.0, Lengths(1, 1, 0.1, 16), 10, seed=1)
    assert made[0].at_s == 0
    gaps = [b.at_s - a.at_s for a, b in pairwise(made)]
    assert min(gaps) > 0
    assert statistics.fmean(gaps) == pytest.approx(1 / 5, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(1 / 5, rel=0.05)
    assert statistics.median(gaps) == pytest.approx(math.log(2) / 5, rel=0.05)


def test_lengths_are_log_normal() -> None:
    rng = random.Random(0)
    pairs = [LENGTHS.draw(rng) for _ in range(4000)]
    for lengths, median in zip(zip(*pairs, strict=True), (50, 20), strict=True):
        logs = [math.log(length) for length in lengths]
        assert statistics.median(lengths) == pytest.approx(median, rel=0.05)
        assert statistics.stdev(logs) == pytest.approx(0.5, rel=0.05)


def test_lengths_fit_a_sequence() -> None:
    rng = random.Random(0)
    tight = Lengths(prompt=40, answer=40, sigma=1.5, n_ctx_seq=64)
    pairs = [tight.draw(rng) for _ in range(1000)]
    assert min(min(pair) for pair in pairs) == 1
    assert max(sum(pair) for pair in pairs) == 64 - N_SPARE
    assert all(0 <= t < 7 for a in arrivals(9, 1.0, tight, 7, seed=0) for t in a.prompt)


def test_in_step_all_have_the_mean_lengths() -> None:
    mixed = [Arrival(0.0, (1,) * 10, 3), Arrival(1.0, (1,) * 20, 7)]
    wave = in_step(mixed, 4, 1000, seed=0)
    assert [(a.at_s, len(a.prompt), a.n_predict) for a in wave] == [(0.0, 15, 5)] * 4
    assert len({a.prompt for a in wave}) == 4


def test_speed_of_three_requests() -> None:
    requests = [Arrival(0.0, (1,), 3), Arrival(1.0, (1,), 2), Arrival(2.0, (1,), 1)]
    found = speed(requests, [[0.5, 1.5, 4.0], [3.0, 5.0], [2.5]])
    assert found.tokens_per_s == 6 / 5
    assert found.loaded_tokens_per_s == 4 / 3  # the last first token is at 3.0
    assert found.first_token_p50_s == 0.5  # of 0.5, 2.0, 0.5
    assert found.first_token_p99_s == pytest.approx(0.5 + 0.98 * 1.5)
    assert found.between_tokens_p50_s == 2.0  # of 1.0, 2.5, 2.0
    assert found.between_tokens_p99_s == pytest.approx(2.0 + 0.98 * 0.5)


def test_percentiles() -> None:
    assert percentile(list(range(101)), 99) == 99
    assert percentile([3.0], 99) == 3
    assert percentile([2.0, 1.0], 50) == 1.5
    assert percentile([], 50) == 0


def test_waste_is_the_mean_share_without_a_token() -> None:
    assert waste([(100, 25), (200, 150)]) == (0.75 + 0.25) / 2
    assert waste([(100, 25), (0, 0)]) == 0.75
    assert waste([]) == 0
