"""Sampling: single facts, with logits for which the answer is plain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ggmlpy.sampling import Sampler, SamplingParams
from tests.unit.naive_sampling import f32, kept, sampler


def test_the_token_that_crosses_top_p_is_kept() -> None:
    logits = [math.log(0.5), math.log(0.25), math.log(0.15), math.log(0.1)]
    assert kept(sampler(4, top_p=0.6), logits) == [0, 1]
    assert kept(sampler(4, top_p=0.49), logits) == [0]
    assert kept(sampler(4, top_p=0.0), logits) == [0]
    assert kept(sampler(2, top_p=0.5), [0.0, 0.0]) == [0]  # reached, not only exceeded


def test_top_k_keeps_the_lowest_ids_of_equal_logits() -> None:
    assert kept(sampler(6, top_k=3), [1, 2, 1, 2, 1, 1]) == [0, 1, 3]


def test_top_p_counts_what_top_k_left() -> None:
    """Of four equal tokens top_k leaves two, of which one already holds half."""
    assert kept(sampler(4, top_k=2, top_p=0.4), [0, 0, 0, 0]) == [0]
    assert kept(sampler(4, top_p=0.4), [0, 0, 0, 0]) == [0, 1]


def test_top_p_keeps_as_many_as_are_asked_for() -> None:
    """However many that is, and however few hold p."""
    logits = [1000.0, *range(600)]
    for n in (1, 255, 257, 500):
        assert kept(sampler(601, top_p=0.5, min_keep=n), logits) == sorted(
            [0, *range(602 - n, 601)]
        )


def test_min_p_looks_at_probabilities_before_the_temperature() -> None:
    logits = [0.0, math.log(0.2)]
    assert kept(sampler(2, min_p=0.1, temperature=0.1), logits) == [0, 1]
    assert kept(sampler(2, min_p=0.3, temperature=10.0), logits) == [0]


def test_min_p_of_one_keeps_what_equals_the_maximum() -> None:
    assert kept(sampler(3, min_p=1.0), [2, 1, 2]) == [0, 2]


def test_typical_may_drop_the_most_probable_token() -> None:
    """One token of 0.4 and 64 that share 0.6: the entropy is nearer to the small ones' surprise."""
    logits = [math.log(0.4)] + [math.log(0.6 / 64)] * 64
    assert 0 not in kept(sampler(65, typical_p=0.3), logits)


def test_typical_keeps_until_p_is_exceeded_not_only_reached() -> None:
    assert kept(sampler(4, typical_p=0.5), [0, 0, 0, 0]) == [0, 1, 2]
    assert kept(sampler(4, typical_p=0.49), [0, 0, 0, 0]) == [0, 1]


def test_bias_comes_before_penalties() -> None:
    s = sampler(2, logit_bias={0: 5.0}, repeat_penalty=2.0)
    s.accept(0)
    _, probs = s.probabilities(f32([-1, 0]))
    assert probs[0] / probs[1] == pytest.approx(math.exp((-1 + 5) / 2), rel=1e-6)


def test_bias_can_ban_and_force() -> None:
    assert sampler(3, temperature=0.0, logit_bias={1: -math.inf}).sample(f32([0, 9, 1])) == 2
    s = sampler(3, logit_bias={1: -math.inf}, seed=1)
    assert {s.sample(f32([0, 9, 0])) for _ in range(64)} == {0, 2}
    assert sampler(3, top_k=1, logit_bias={0: 100.0}).sample(f32([0, 9, 1])) == 0


@pytest.mark.parametrize("n", [1, 8, 9, 20])
def test_every_bias_counts(n: int) -> None:
    """Few are added one by one, many at once."""
    s = sampler(21, logit_bias={i: float(i) for i in range(n)})
    _, probs = s.probabilities(f32([0.0] * 21))
    weights = [math.exp(i) if i < n else 1.0 for i in range(21)]
    assert probs.tolist() == pytest.approx([w / math.fsum(weights) for w in weights])


def test_penalties_forget_beyond_the_window() -> None:
    s = sampler(3, temperature=0.0, presence_penalty=10.0, penalty_last_n=2)
    logits = f32([3, 2, 1])
    chosen = []
    for _ in range(6):
        chosen.append(s.sample(logits))
        s.accept(chosen[-1])
    assert chosen == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("penalty", ["repeat_penalty", "frequency_penalty", "presence_penalty"])
def test_penalties_keep_impossible_tokens_impossible(penalty: str) -> None:
    s = sampler(2, **{penalty: 1.5})
    s.accept(0)
    assert kept(s, [-math.inf, 0.0]) in ([1], [0, 1])
    assert s.probabilities(f32([-math.inf, 0.0]))[1].tolist() == [0.0, 1.0]


def test_greedy_takes_the_lowest_id_of_equal_logits_and_ignores_filters() -> None:
    s = Sampler(SamplingParams(temperature=0.0, typical_p=0.1, seed=3), 5)
    assert s.sample(f32([0, 7, 7, -1, 7])) == 1
    ids, probs = s.probabilities(f32([0, 7, 7, -1, 7]))
    assert (ids.tolist(), probs.tolist()) == ([1], [1.0])
    assert Sampler(SamplingParams(temperature=-2.0), 2).sample(f32([0, 1])) == 1


def test_an_extreme_temperature_stays_finite() -> None:
    logits = f32([3e38, -3e38, 1, 0])
    for temperature in (5e-324, 1e-30, 1e30):
        for k in (0, 2):
            _, probs = sampler(4, temperature=temperature, top_k=k).probabilities(logits)
            assert np.isfinite(probs).all()
            assert probs.sum() == pytest.approx(1.0)


def test_read_only_logits_are_fine() -> None:
    logits = f32([0, 1, 2])
    logits.flags.writeable = False
    s = Sampler(SamplingParams(repeat_penalty=1.3, logit_bias={0: 1.0}, seed=0), 3)
    s.accept(2)
    assert 0 <= s.sample(logits) < 3
