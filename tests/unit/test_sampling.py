"""Sampling: each step and the whole chain against a naive implementation in plain Python floats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy.errors import GgmlpyError, SamplingError
from ggmlpy.sampling import Sampler, SamplingParams
from ggmlpy.sampling.candidates import draw, largest

OFF: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
}


def sampler(n_vocab: int, **params: Any) -> Sampler:
    """A sampler in which everything is off except `params`."""
    return Sampler(SamplingParams(**{**OFF, **params}), n_vocab)


def f32(values: list[float]) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def kept(s: Sampler, logits: list[float]) -> list[int]:
    return sorted(s.probabilities(f32(logits))[0].tolist())


# ---------------------------------------------------------------- the naive chain


Tokens = dict[int, float]  # id -> logit


def naive_probabilities(tokens: Tokens) -> dict[int, float]:
    largest_logit = max(tokens.values())
    weights = {i: math.exp(x - largest_logit) for i, x in tokens.items()}
    total = math.fsum(weights.values())
    return {i: w / total for i, w in weights.items()}


def by_logit(tokens: Tokens) -> list[int]:
    return sorted(tokens, key=lambda i: (-tokens[i], i))


def only(tokens: Tokens, ids: list[int]) -> Tokens:
    return {i: tokens[i] for i in ids}


def naive_penalties(tokens: Tokens, history: list[int], p: SamplingParams) -> Tokens:
    if p.penalty_last_n == 0:
        return tokens
    window = history if p.penalty_last_n < 0 else history[-p.penalty_last_n :]
    out = dict(tokens)
    for i in set(window):
        x = out[i]
        x = x * p.repeat_penalty if x <= 0 else x / p.repeat_penalty
        out[i] = x - window.count(i) * p.frequency_penalty - p.presence_penalty
    return out


def until(order: list[int], probs: Mapping[int, float], p: float, keep: int) -> list[int]:
    """The head of `order` whose probabilities first reach p, at least `keep` long."""
    total = 0.0
    for n, i in enumerate(order, start=1):
        total += probs[i]
        assume(abs(total - p) > 1e-6)  # no test of how a sum is rounded
        if total > p and n >= keep:
            return order[:n]
    return order


def naive_typical(tokens: Tokens, p: float, keep: int) -> Tokens:
    probs = naive_probabilities(tokens)
    entropy = -math.fsum(q * math.log(q) for q in probs.values() if q > 0)
    shift = {i: abs(-math.log(q) - entropy) for i, q in probs.items()}
    order = sorted(by_logit(tokens), key=lambda i: shift[i])
    for a, b in pairwise(order):
        assume(tokens[a] == tokens[b] or abs(shift[a] - shift[b]) > 1e-6)
    return only(tokens, until(order, probs, p, keep))


def naive_min_p(tokens: Tokens, p: float, keep: int) -> Tokens:
    order = by_logit(tokens)
    floor = tokens[order[0]] + math.log(p)
    assume(all(abs(x - floor) > 1e-5 for x in tokens.values()))
    n = sum(x >= floor for x in tokens.values())
    return only(tokens, order[: max(n, keep)])


def naive_chain(logits: list[float], history: list[int], p: SamplingParams) -> dict[int, float]:
    """Probabilities of the tokens that can be drawn."""
    keep = max(p.min_keep, 1)
    bias = p.logit_bias or {}
    tokens = {i: x + bias.get(i, 0.0) for i, x in enumerate(logits)}
    tokens = naive_penalties(tokens, history, p)
    if p.temperature <= 0:
        return {by_logit(tokens)[0]: 1.0}
    if p.top_k > 0:
        tokens = only(tokens, by_logit(tokens)[: p.top_k])
    if p.typical_p < 1:
        tokens = naive_typical(tokens, p.typical_p, keep)
    if p.top_p < 1:
        order = until(by_logit(tokens), naive_probabilities(tokens), p.top_p, keep)
        tokens = only(tokens, order)
    if p.min_p > 0:
        tokens = naive_min_p(tokens, p.min_p, keep)
    return naive_probabilities({i: x / p.temperature for i, x in tokens.items()})


# Eighths and penalties by powers of two are exact in f32, so ties are common and stay ties.
eighths = st.integers(-64, 64).map(lambda n: n / 8)
logit_lists = st.lists(eighths, min_size=1, max_size=40)
shares = st.floats(0.02, 0.98)


def check_chain(logits: list[float], history: list[int], params: SamplingParams) -> None:
    want = naive_chain(logits, history, params)
    s = Sampler(params, len(logits))
    for token in history:
        s.accept(token)
    given_logits = f32(logits)
    ids, probs = s.probabilities(given_logits)
    assert dict(zip(ids.tolist(), probs.tolist(), strict=True)) == pytest.approx(want, rel=1e-6)
    assert math.fsum(probs.tolist()) == pytest.approx(1.0)
    assert s.sample(given_logits) in want
    assert given_logits.tolist() == logits  # not modified


@given(logits=logit_lists, k=st.integers(-1, 45))
def test_top_k(logits: list[float], k: int) -> None:
    check_chain(logits, [], SamplingParams(**{**OFF, "top_k": k}))


@given(logits=logit_lists, p=shares, keep=st.integers(0, 5), k=st.sampled_from([0, 7]))
def test_top_p(logits: list[float], p: float, keep: int, k: int) -> None:
    check_chain(logits, [], SamplingParams(**{**OFF, "top_p": p, "min_keep": keep, "top_k": k}))


@given(logits=logit_lists, p=shares, keep=st.integers(0, 5), k=st.sampled_from([0, 7]))
def test_min_p(logits: list[float], p: float, keep: int, k: int) -> None:
    check_chain(logits, [], SamplingParams(**{**OFF, "min_p": p, "min_keep": keep, "top_k": k}))


@given(logits=logit_lists, p=shares, keep=st.integers(0, 5), k=st.sampled_from([0, 7]))
def test_typical_p(logits: list[float], p: float, keep: int, k: int) -> None:
    check_chain(logits, [], SamplingParams(**{**OFF, "typical_p": p, "min_keep": keep, "top_k": k}))


@given(logits=logit_lists, temperature=st.floats(0.05, 20))
def test_temperature(logits: list[float], temperature: float) -> None:
    # Without a cut the exponentials are f32, to which a low temperature passes 20 times the error.
    params = SamplingParams(**{**OFF, "temperature": temperature})
    ids, probs = Sampler(params, len(logits)).probabilities(f32(logits))
    want = naive_chain(logits, [], params)
    assert ids.tolist() == list(want)
    assert probs.tolist() == pytest.approx(list(want.values()), rel=1e-3, abs=1e-30)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    logits = draw(logit_lists)
    tokens = st.integers(0, len(logits) - 1)
    return logits, draw(st.lists(tokens, max_size=20))


@given(
    case=histories(),
    repeat=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    frequency=eighths,
    presence=eighths,
    last_n=st.sampled_from([-1, 0, 1, 3, 64]),
    greedy=st.booleans(),
)
def test_penalties(
    case: tuple[list[float], list[int]],
    repeat: float,
    frequency: float,
    presence: float,
    last_n: int,
    greedy: bool,
) -> None:
    params = {
        **OFF,
        "repeat_penalty": repeat,
        "frequency_penalty": frequency,
        "presence_penalty": presence,
        "penalty_last_n": last_n,
        "temperature": 0.0 if greedy else 1.0,
    }
    check_chain(*case, SamplingParams(**params))


@settings(max_examples=300)
@given(
    case=histories(),
    bias=st.dictionaries(st.integers(0, 3), eighths, max_size=3),
    k=st.integers(0, 20),
    typical=st.one_of(st.just(1.0), shares),
    p=st.one_of(st.just(1.0), shares),
    min_p=st.one_of(st.just(0.0), shares),
    temperature=st.sampled_from([-1.0, 0.0, 0.5, 0.8, 1.0, 2.0]),
    keep=st.integers(0, 3),
)
def test_whole_chain_in_order(
    case: tuple[list[float], list[int]],
    bias: dict[int, float],
    k: int,
    typical: float,
    p: float,
    min_p: float,
    temperature: float,
    keep: int,
) -> None:
    logits, history = case
    params = SamplingParams(
        temperature=temperature,
        top_p=p,
        top_k=k,
        min_p=min_p,
        typical_p=typical,
        repeat_penalty=2.0,
        frequency_penalty=0.125,
        presence_penalty=0.25,
        penalty_last_n=5,
        logit_bias={i: b for i, b in bias.items() if i < len(logits)},
        min_keep=keep,
    )
    assume(not (k == 0 and typical == 1 and p == 1 and min_p == 0))  # f32 then: tested above
    check_chain(logits, history, params)


# ---------------------------------------------------------------- single facts


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


# ---------------------------------------------------------------- draws


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


# ---------------------------------------------------------------- large vocabularies


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


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([0, math.nan, math.nan, 1], "2 of 4 logits are NaN, the first for token 1"),
        ([0, 1, 2, math.inf], "1 of 4 logits are .inf, the first for token 3"),
        ([-math.inf] * 4, "all logits are -inf"),
    ],
)
def test_bad_logits(temperature: float, top_k: int, bad: list[float], message: str) -> None:
    s = sampler(4, temperature=temperature, top_k=top_k)
    with pytest.raises(SamplingError, match=message):
        s.sample(f32(bad))
    with pytest.raises(SamplingError, match=message):
        s.probabilities(f32(bad))


def test_nan_in_a_large_vocabulary_is_found() -> None:
    logits = np.zeros(128_256, np.float32)
    logits[128_255] = np.nan
    with pytest.raises(SamplingError, match="token 128255"):
        Sampler(SamplingParams(), 128_256).sample(logits)


def test_banning_every_token_is_an_error() -> None:
    s = sampler(2, logit_bias={0: -math.inf, 1: -math.inf})
    with pytest.raises(SamplingError, match="all logits are -inf"):
        s.sample(f32([0, 0]))


@pytest.mark.parametrize("shape", [(3,), (5,), (1, 4), ()])
def test_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(SamplingError, match=r"must be \(4,\)"):
        sampler(4).sample(np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("temperature", math.nan, "a finite number; 0 or less is greedy"),
        ("temperature", math.inf, "a finite number"),
        ("temperature", "0.8", "a finite number"),
        ("temperature", True, "a finite number"),
        ("top_k", 1.5, "an integer; 0 or less keeps all"),
        ("top_k", None, "an integer"),
        ("top_p", 1.01, "a number in 0 .. 1"),
        ("top_p", -0.1, "a number in 0 .. 1"),
        ("min_p", math.nan, "a number in 0 .. 1"),
        ("typical_p", 2, "a number in 0 .. 1"),
        ("repeat_penalty", 0.0, "a number greater than 0"),
        ("repeat_penalty", -1.0, "a number greater than 0"),
        ("frequency_penalty", math.inf, "a finite number"),
        ("presence_penalty", "1", "a finite number"),
        ("penalty_last_n", -2, "an integer >= -1; -1: all, 0: none"),
        ("seed", -1, "an integer in 0 .. 18446744073709551615, or None"),
        ("seed", 2**64, "an integer in 0 .. 18446744073709551615, or None"),
        ("seed", 1.0, "an integer in 0 .. 18446744073709551615, or None"),
        ("min_keep", -1, "an integer >= 0"),
        ("logit_bias", [(0, 1.0)], "a mapping of token id to number"),
    ],
)
def test_parameters_out_of_range(name: str, value: object, wanted: str) -> None:
    with pytest.raises(SamplingError) as error:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert str(error.value).startswith(f"{name} is {value!r}: must be {wanted}")
    assert isinstance(error.value, GgmlpyError)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        ({"7": 1.0}, "a token id of logit_bias is '7': must be an integer >= 0"),
        ({-1: 1.0}, "a token id of logit_bias is -1"),
        ({3: math.nan}, r"logit_bias\[3\] is nan: must be a number, or -inf"),
        ({3: math.inf}, r"logit_bias\[3\] is inf: must be a number, or -inf"),
    ],
)
def test_bad_bias(bias: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        SamplingParams(logit_bias=bias)


def test_tokens_outside_the_vocabulary() -> None:
    with pytest.raises(SamplingError, match=r"logit_bias\[4\]: the vocabulary has 4 tokens"):
        sampler(4, logit_bias={4: 1.0})
    s = sampler(4)
    for token in (-1, 4):
        with pytest.raises(SamplingError, match=r"must be in 0 \.\. 3"):
            s.accept(token)
    with pytest.raises(SamplingError, match="n_vocab is 0"):
        sampler(0)


def test_numpy_scalars_are_numbers() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(3),  # type: ignore[arg-type]
        seed=np.uint32(9),  # type: ignore[arg-type]
    )
    assert Sampler(params, 4).sample(f32([0, 0, 0, 0])) < 3


def test_defaults_are_those_of_llama_cpp_python() -> None:
    p = SamplingParams()
    assert (p.temperature, p.top_p, p.top_k, p.min_p) == (0.8, 0.95, 40, 0.05)
    assert (p.typical_p, p.repeat_penalty) == (1.0, 1.0)
    assert (p.frequency_penalty, p.presence_penalty, p.penalty_last_n) == (0.0, 0.0, 64)
