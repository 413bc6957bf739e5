"""Draws: seeds, frequencies, borders, and vocabularies so large that they are cut in blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy.sampling import Sampler, SamplingParams
from ggmlpy.sampling.candidates import draw, largest
from tests.unit.naive_sampling import f32, sampler


def naive_draw(probs: list[float], u: float) -> int:
    total = 0.0
    for i, q in enumerate(probs):
        total += q
        if total > u:
            return i
    raise AssertionError("the probabilities do not reach u")


@pytest.mark.parametrize("seed", [0, 1, 1234, 2**64 - 1])
def test_draws_follow_numpy_generator_and_inverse_cdf(seed: int) -> None:
    logits = f32(np.random.default_rng(5).normal(0, 2, 100).tolist())
    s = Sampler(SamplingParams(seed=seed), 100)
    ids, probs = s.probabilities(logits)
    uniform = np.random.Generator(np.random.PCG64(seed))
    want = [int(ids[naive_draw(probs.tolist(), uniform.random())]) for _ in range(200)]
    assert [s.sample(logits) for _ in range(200)] == want


def test_the_same_seed_gives_the_same_tokens() -> None:
    logits = f32(np.random.default_rng(7).normal(0, 2, 64).tolist())

    def tokens(seed: int | None) -> list[int]:
        s = Sampler(SamplingParams(seed=seed), 64)
        return [s.sample(logits) for _ in range(50)]

    assert tokens(11) == tokens(11)
    assert tokens(11) != tokens(12)


def test_a_fresh_seed_is_readable_and_repeats_the_run() -> None:
    logits = f32(np.random.default_rng(7).normal(0, 2, 64).tolist())
    first = Sampler(SamplingParams(seed=None), 64)
    again = Sampler(SamplingParams(seed=first.seed), 64)
    assert [first.sample(logits) for _ in range(50)] == [again.sample(logits) for _ in range(50)]
    assert first.seed != Sampler(SamplingParams(seed=None), 64).seed


def chi_square(counts: NDArray[np.int64], probs: NDArray[np.float64]) -> float:
    expected = probs * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_frequencies_of_draws() -> None:
    """12 kept tokens: the 99.9 % point of chi-square with 11 degrees of freedom is 31.3."""
    logits = f32(np.random.default_rng(3).normal(0, 1.5, 40).tolist())
    s = Sampler(SamplingParams(seed=2, top_k=12, top_p=1.0, min_p=0.0, temperature=0.9), 40)
    ids, probs = s.probabilities(logits)
    n_drawn = np.bincount([s.sample(logits) for _ in range(20_000)], minlength=40)
    assert n_drawn.sum() == n_drawn[ids].sum()
    assert chi_square(n_drawn[ids], probs) < 31.3
    _, colder = sampler(40, top_k=12, temperature=0.8).probabilities(logits)
    assert chi_square(n_drawn[ids], colder) > 31.3


@given(
    weights=st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=30),
    u=st.floats(0, 1, exclude_max=True),
)
def test_draw_never_takes_weight_zero(weights: list[float], u: float) -> None:
    assume(any(weights))
    for scale in (1, 200):  # 200: several blocks
        repeated = np.repeat(f32(weights), scale)
        position = draw(repeated, u)
        assert repeated[position] > 0
        before = float(repeated[:position].sum(dtype=np.float64))
        total = float(repeated.sum(dtype=np.float64))
        assert before <= u * total < before + float(repeated[position])


def test_draw_on_the_border_of_a_block_takes_the_next() -> None:
    ones = np.ones(4096, np.float32)
    assert [draw(ones, u) for u in (0.0, 0.25, 0.5, 1 - 2**-53)] == [0, 1024, 2048, 4095]


def test_draws_use_53_bits() -> None:
    numpy_generator = np.random.Generator(np.random.PCG64(3))
    s = Sampler(SamplingParams(seed=3), 2)
    assert [s._uniform() for _ in range(50)] == numpy_generator.random(50).tolist()


def test_draw_from_a_large_vocabulary_with_weights_that_round() -> None:
    rng = np.random.default_rng(1)
    weights = np.exp(rng.normal(0, 6, 50_000)).astype(np.float32)
    weights[rng.random(50_000) < 0.5] = 0
    reached = np.cumsum(weights, dtype=np.float64) / weights.sum(dtype=np.float64)
    for u in [0.0, *rng.random(500), 1 - 2**-53]:
        position = draw(weights, float(u))
        assert weights[position] > 0
        before = reached[position - 1] if position else 0.0
        assert before - 1e-9 <= u <= reached[position] + 1e-9


@pytest.mark.parametrize("n", [8192, 32_000, 128_256])
@pytest.mark.parametrize("k", [1, 40, 300, 5000])
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_largest_among_many(n: int, k: int, step: float) -> None:
    values = np.random.default_rng(n + k).normal(0, 3, n).astype(np.float32)
    if step:
        values = np.round(values / step).astype(np.float32) * np.float32(step)  # many ties
    want = sorted(range(n), key=lambda i: (-values[i], i))[:k]
    assert largest(values, k).tolist() == want


def test_largest_where_nearly_everything_is_impossible() -> None:
    values = np.full(100_000, -np.inf, np.float32)
    values[[70_000, 5, 99_999]] = [1, 2, 1]
    assert largest(values, 40).tolist() == [5, 70_000, 99_999]


@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])  # nucleus: most of, thousands of, few tokens
@pytest.mark.parametrize("p", [0.3, 0.9, 0.999])
def test_top_p_over_a_large_vocabulary(spread: float, p: float) -> None:
    logits = np.random.default_rng(4).normal(0, spread, 20_000).astype(np.float32)
    order = np.argsort(-logits, kind="stable")
    probs = np.exp(logits[order].astype(np.float64) - logits.max())
    probs /= probs.sum()
    n = int(np.sum(np.cumsum(probs) < p)) + 1
    ids, _ = sampler(20_000, top_p=p).probabilities(logits)
    # The total is a sum of f32 exponentials, so the last token may differ.
    assert abs(len(ids) - n) <= max(1, n // 10_000)
    assert ids.tolist() == order[: len(ids)].tolist()
