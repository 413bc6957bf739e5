"""Steps of the chain against their definitions, and draws that follow the tokens drawn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ggmlpy.sampling import Sampler, SamplingParams
from ggmlpy.sampling.feedback import zipf_k
from tests.unit import naive_steps as naive
from tests.unit.naive_sampling import f32, kept, logit_lists, sampler
from tests.unit.naive_steps import Tokens, ordered, probabilities

cuts = st.sampled_from([0, 7])  # top_k before the step: another form of the candidates


def of(logits: list[float], k: int) -> Tokens:
    tokens = ordered(dict(enumerate(logits)))
    return dict(list(tokens.items())[: k or None])


def check(s: Sampler, logits: list[float], want: Tokens, rel: float = 1e-5) -> None:
    """The same tokens with the same probabilities."""
    ids, probs = s.probabilities(f32(logits))
    found = {i: p for i, p in zip(ids.tolist(), probs.tolist(), strict=True) if p > 1e-30}
    expected = dict(zip(want, probabilities(want).tolist(), strict=True))
    assert found == pytest.approx({i: p for i, p in expected.items() if p > 1e-30}, rel=rel)


@given(logits=logit_lists, k=cuts, n=st.floats(0.05, 4))
def test_top_n_sigma(logits: list[float], k: int, n: float) -> None:
    tokens = of(logits, k)
    values = np.array(list(tokens.values()))
    assume(np.abs(values - (values.max() - n * values.std())).min() > 1e-9)
    order = ["top_k", "top_n_sigma"]
    s = sampler(len(logits), top_k=k, samplers=order, top_n_sigma=n)
    check(s, logits, naive.top_n_sigma(tokens, n))


def test_top_n_sigma_looks_at_possible_tokens_only() -> None:
    logits = [3.0, 2.0, 1.0, -math.inf, -math.inf]
    assert kept(sampler(5, top_n_sigma=1.0), logits) == [0]
    assert kept(sampler(5, top_n_sigma=1.3), logits) == [0, 1]
    assert kept(sampler(5, top_n_sigma=100.0), logits) == [0, 1, 2]
    assert kept(sampler(2, top_n_sigma=1.0), [5.0, -math.inf]) == [0]


@given(logits=logit_lists, k=cuts, threshold=st.floats(0, 0.5), keep=st.integers(0, 5))
def test_xtc(logits: list[float], k: int, threshold: float, keep: int) -> None:
    tokens = of(logits, k)
    assume(np.abs(probabilities(tokens) - threshold).min() > 1e-6)
    s = sampler(len(logits), top_k=k, xtc_probability=1.0, xtc_threshold=threshold, min_keep=keep)
    check(s, logits, naive.xtc(tokens, threshold, keep))


def test_xtc_is_applied_as_often_as_asked_for() -> None:
    """4,000 draws of one of two equal tokens and an unlikely one: within four deviations."""
    for p in (0.0, 0.25, 0.7, 1.0):
        s = sampler(3, xtc_probability=p, seed=5)
        n = sum(s.sample(f32([0.0, 0.0, -2.0])) == 0 for _ in range(4000))
        share = (1 - p) * 1 / (2 + math.exp(-2))  # token 0 is excluded before token 1
        assert abs(n / 4000 - share) <= 4 * math.sqrt(share * (1 - share) / 4000)


@pytest.mark.parametrize("threshold", [0.500001, 1.0])
def test_xtc_is_off_above_one_half(threshold: float) -> None:
    s = sampler(2, xtc_probability=1.0, xtc_threshold=threshold)
    assert s.filters == []


@given(
    logits=logit_lists,
    k=cuts,
    t=st.floats(0.05, 3),
    span=st.floats(0.01, 3),
    exponent=st.sampled_from([0.0, 0.5, 1.0, 2.5]),
)
def test_dynamic_temperature(
    logits: list[float], k: int, t: float, span: float, exponent: float
) -> None:
    tokens = of(logits, k)
    want = naive.dynamic_temperature(tokens, t, span, exponent)
    assume(max(map(abs, want.values())) < 1e4)  # an error of the entropy grows with it
    s = sampler(
        len(logits), top_k=k, temperature=t, dynatemp_range=span, dynatemp_exponent=exponent
    )
    check(s, logits, want, rel=2e-3)


def test_dynamic_temperature_counts_tokens_that_can_be_drawn() -> None:
    """Two equal tokens: the entropy is at its maximum, whatever else is impossible."""
    s = sampler(4, temperature=1.0, dynatemp_range=0.5, dynatemp_exponent=3.0)
    _, probs = s.probabilities(f32([1.0, 1.0, -math.inf, -math.inf]))
    assert probs.tolist() == [0.5, 0.5, 0.0, 0.0]
    s = sampler(3, temperature=1.0, dynatemp_range=0.5, samplers=["top_n_sigma", "temperature"],
                top_n_sigma=0.1)  # fmt: skip
    assert s.probabilities(f32([1.0, 1.0, -3.0]))[1].tolist() == [0.5, 0.5]


def test_dynamic_temperature_of_0_may_be_above_0() -> None:
    assert SamplingParams(temperature=0.0).is_greedy
    s = sampler(2, temperature=0.0, dynatemp_range=2.0)  # 0 .. 2, and the entropy is maximal
    assert s.probabilities(f32([1.0, 1.0]))[1].tolist() == [0.5, 0.5]
    assert not s.params.is_greedy


# --- steps that follow what was drawn ---


@given(logits=logit_lists, tau=st.floats(0.1, 6), eta=st.floats(0.01, 1), k=cuts)
def test_mirostat_2(logits: list[float], tau: float, eta: float, k: int) -> None:
    """top_k is not used with it."""
    s = sampler(len(logits), top_k=k, mirostat_mode=2, mirostat_tau=tau, mirostat_eta=eta, seed=3)
    tokens, mu = of(logits, 0), 2 * tau
    for _ in range(5):
        surprise = -np.log2(probabilities(tokens))
        assume(np.abs(surprise - mu).min() > 1e-5)
        want = naive.mirostat_2(tokens, mu)
        check(s, logits, want)
        token = s.sample(f32(logits))
        s.accept(token)
        p = dict(zip(want, probabilities(want).tolist(), strict=True))[token]
        mu -= eta * (-math.log2(p) - tau)


unlike = st.integers(-20480, 20480).map(lambda i: i / 1024)


@given(
    logits=st.lists(unlike, min_size=1, max_size=150, unique=True),
    tau=st.floats(0.1, 6),
    eta=st.floats(0.01, 1),
)
def test_mirostat_1(logits: list[float], tau: float, eta: float) -> None:
    s = sampler(len(logits), mirostat_mode=1, mirostat_tau=tau, mirostat_eta=eta, seed=3)
    tokens, mu = of(logits, 0), 2 * tau
    for _ in range(5):
        want = naive.mirostat_1(tokens, mu, len(logits))
        low, high = (naive.mirostat_1(tokens, mu + d, len(logits)) for d in (-1e-6, 1e-6))
        assume(low == high)  # no test of how k is rounded
        check(s, logits, want, rel=1e-4)
        token = s.sample(f32(logits))
        s.accept(token)
        p = dict(zip(want, probabilities(want).tolist(), strict=True))[token]
        mu -= eta * (-math.log2(p) - tau)


@pytest.mark.parametrize("n", [2, 32_000, 151_936])
@pytest.mark.parametrize("s", [0.01, 0.5, 0.999, 1.001, 1.7, 30.0])
@pytest.mark.parametrize("mu", [-3.0, 0.5, 10.0])
def test_the_k_of_zipf(n: int, s: float, mu: float) -> None:
    e = s - 1
    try:
        want = ((e * 2**mu) / (1 - n**-e)) ** (1 / s)
    except OverflowError:
        want = math.inf
    assert zipf_k(s, mu, n) == pytest.approx(want, rel=1e-9)


def test_the_k_of_zipf_at_its_limits() -> None:
    """Where the formula divides by 0: at s = 1, where it is continuous, and for equal logits."""
    assert zipf_k(1.0, 3.0, 1000) == pytest.approx(8 / math.log(1000))
    assert zipf_k(1.0, 3.0, 1000) == pytest.approx(zipf_k(1 + 1e-7, 3.0, 1000), rel=1e-5)
    assert (zipf_k(0.0, 20.0, 1000), zipf_k(0.0, 1.0, 1000)) == (math.inf, 1.0)
    assert kept(sampler(3, mirostat_mode=1, mirostat_tau=6.0), [1.0, 1.0, 1.0]) == [0, 1, 2]
    assert kept(sampler(1, mirostat_mode=1), [1.0]) == [0]


@given(logits=logit_lists, k=cuts, target=st.floats(0, 1), decay=st.sampled_from([0.0, 0.5, 0.99]))
def test_adaptive_p(logits: list[float], k: int, target: float, decay: float) -> None:
    s = sampler(len(logits), top_k=k, samplers=["adaptive_p", "top_k"], seed=1,
                adaptive_target=target, adaptive_decay=decay)  # fmt: skip
    tokens = of(logits, k)
    p = probabilities(tokens)
    past = np.full(1500, target)  # the mean begins as if all before had been at the target
    for _ in range(6):
        weights = decay ** np.arange(len(past), dtype=np.float64)
        mean = float(past @ weights / weights.sum())
        logits_now = naive.adaptive_logits(p, min(max(2 * target - mean, 0.0), 1.0))
        check(s, logits, dict(zip(tokens, logits_now.tolist(), strict=True)), rel=1e-4)
        token = s.sample(f32(logits))
        s.accept(token)
        past = np.concatenate([[p[list(tokens).index(token)]], past])


@pytest.mark.parametrize("options", [
    {"mirostat_mode": 1, "mirostat_tau": 0.3, "mirostat_eta": 10.0},
    {"mirostat_mode": 2, "mirostat_tau": 0.3, "mirostat_eta": 10.0},
    {"samplers": ["adaptive_p"], "adaptive_target": 0.2},
])  # fmt: skip
def test_only_tokens_that_were_drawn_teach(options: dict[str, Any]) -> None:
    """Not those of the prompt, and not one that was never a candidate."""
    logits = f32([3.0, 2.0, 1.0, -math.inf])
    fresh, told = (sampler(4, seed=2, **options) for _ in range(2))
    for token in (0, 1, 2, 3, 0):
        told.accept(token)
    told.probabilities(logits)
    told.accept(3)
    assert told.probabilities(logits)[1].tolist() == fresh.probabilities(logits)[1].tolist()
    told.accept(0)
    assert told.probabilities(logits)[1].tolist() != fresh.probabilities(logits)[1].tolist()


def test_mirostat_finds_its_surprise() -> None:
    """The mean surprise of 3,000 tokens of a Zipf distribution, of 6.3 bits without it."""
    logits = f32((-1.1 * np.log(np.arange(1, 5001))).tolist())
    p = probabilities(dict(enumerate(logits.tolist())))
    for mode in (1, 2):
        for tau in (2.0, 4.0):
            s = sampler(5000, mirostat_mode=mode, mirostat_tau=tau, seed=4)
            surprises = []
            for _ in range(1500):
                ids, probs = s.probabilities(logits)
                token = s.sample(logits)
                s.accept(token)
                surprises.append(-math.log2(probs[(ids == token).argmax()]))
            assert np.mean(surprises[300:]) == pytest.approx(tau, abs=0.15)
    assert float(-(p * np.log2(p)).sum()) > 6


def test_the_same_seed_gives_the_same_tokens() -> None:
    logits = f32(np.random.default_rng(7).normal(0, 2, 64).tolist())
    for options in ({"xtc_probability": 0.5}, {"mirostat_mode": 1}, {"mirostat_mode": 2},
                    {"samplers": ["adaptive_p"], "adaptive_target": 0.3}):  # fmt: skip

        def tokens(seed: int, options: dict[str, Any] = options) -> list[int]:
            s = sampler(64, seed=seed, **options)
            drawn = []
            for _ in range(40):
                s.probabilities(logits)  # takes nothing from the stream
                drawn.append(s.sample(logits))
                s.accept(drawn[-1])
            return drawn

        assert tokens(11) == tokens(11) != tokens(12)
