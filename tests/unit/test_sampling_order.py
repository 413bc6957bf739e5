"""The order of steps, their names, and steps of one's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy.errors import SamplingError
from ggmlpy.sampling import (
    Candidates,
    Filter,
    LogitsProcessor,
    Sampler,
    SamplingParams,
    Setting,
    SparseProcessor,
)
from ggmlpy.sampling.names import DEFAULT_SAMPLERS, LETTERS, samplers_by_letters
from tests.unit import naive_sampling as naive
from tests.unit import naive_steps
from tests.unit.naive_sampling import OFF, Tokens, eighths, f32, kept, sampler

CUTS: dict[str, Any] = {
    "top_k": 5, "typical_p": 0.8, "top_p": 0.7, "min_p": 0.3, "temperature": 0.6,
    "repeat_penalty": 2.0, "frequency_penalty": 0.25, "top_n_sigma": 1.5, "xtc_probability": 1.0,
}  # fmt: skip


def applied(name: str, tokens: Tokens) -> Tokens:
    match name:
        case "top_k":
            return naive.only(tokens, naive.by_logit(tokens)[:5])
        case "typ_p":
            return naive.naive_typical(tokens, 0.8, 1)
        case "top_p":
            order = naive.by_logit(tokens)
            return naive.only(tokens, naive.until(order, naive.naive_probabilities(tokens), 0.7, 1))
        case "min_p":
            return naive.naive_min_p(tokens, 0.3, 1)
        case "temperature":
            return {i: x / 0.6 for i, x in tokens.items()}
        case "top_n_sigma":
            values = np.array(list(tokens.values()))
            assume(np.abs(values - (values.max() - 1.5 * values.std())).min() > 1e-6)
            return naive_steps.top_n_sigma(tokens, 1.5)
        case "xtc":
            tokens = naive_steps.ordered(tokens)
            assume(np.abs(naive_steps.probabilities(tokens) - 0.1).min() > 1e-6)
            return naive_steps.xtc(tokens, 0.1, 1)
        case "penalties":
            return _penalised(tokens)
    raise KeyError(name)


def _penalised(tokens: Tokens) -> Tokens:
    out = dict(tokens)
    for token, count in {1: 1, 2: 2, 5: 1, 7: 1}.items():
        if token in out:
            x = out[token]
            out[token] = (x * 2.0 if x <= 0 else x / 2.0) - 0.25 * count
    return out


NAMED = [
    "penalties", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
]  # fmt: skip


@settings(max_examples=200)
@given(
    logits=st.lists(eighths, min_size=12, max_size=12),
    order=st.permutations(NAMED),
    n=st.integers(0, len(NAMED)),
)
def test_any_order(logits: list[float], order: list[str], n: int) -> None:
    """Each step sees what the one before it left: penalties see logits that were divided."""
    s = sampler(12, samplers=order[:n], **CUTS)
    for token in (1, 2, 2, 5, 7):
        s.accept(token)
    tokens = dict(enumerate(logits))
    for name in order[:n]:
        tokens = applied(name, tokens)
    ids, probs = s.probabilities(f32(logits))
    want = naive.naive_probabilities(tokens)
    assert dict(zip(ids.tolist(), probs.tolist(), strict=True)) == pytest.approx(want, rel=2e-5)
    assert s.sample(f32(logits)) in want


def test_what_is_not_named_does_not_run() -> None:
    s = sampler(8, samplers=[], **CUTS | {"temperature": 0.0})
    assert (s.logits_processors, s.filters) == ([], [])
    assert len(s.probabilities(f32([0.0] * 8))[0]) == 8  # nor is it greedy: that is a temperature
    s = sampler(8, samplers=[], logit_bias={3: 100.0})  # which always comes first
    assert s.sample(f32([0.0] * 8)) == 3


def test_a_step_may_be_named_twice() -> None:
    s = sampler(3, samplers=["temperature", "temperature"], temperature=0.5)
    assert s.probabilities(f32([0.0, 0.25, 0.5]))[1].tolist() == pytest.approx(
        sampler(3, temperature=0.25).probabilities(f32([0.0, 0.25, 0.5]))[1].tolist()
    )


def test_the_default_is_llama_cpps() -> None:
    assert "".join(LETTERS[name] for name in DEFAULT_SAMPLERS) == "edskypmxt"
    assert SamplingParams().samplers == DEFAULT_SAMPLERS
    p = SamplingParams()
    assert (p.dry_multiplier, p.dry_base, p.dry_allowed_length) == (0.0, 1.75, 2)
    assert (p.dry_penalty_last_n, p.dry_sequence_breakers) == (64, ("\n", ":", '"', "*"))
    assert (p.xtc_probability, p.xtc_threshold, p.top_n_sigma) == (0.0, 0.1, -1.0)
    assert (p.dynatemp_range, p.dynatemp_exponent) == (0.0, 1.0)
    assert (p.mirostat_mode, p.mirostat_tau, p.mirostat_eta) == (0, 5.0, 0.1)
    assert (p.adaptive_target, p.adaptive_decay) == (-1.0, 0.9)


def test_names_are_taken_as_llama_cpp_takes_them() -> None:
    given_names = ["top-k", "TOPP", "min_p", "temp", "typ", "typical-p", "nucleus", "topnsigma"]
    want = ("top_k", "top_p", "min_p", "temperature", "typ_p", "typ_p", "top_p", "top_n_sigma")
    assert SamplingParams(samplers=given_names).samplers == want
    assert samplers_by_letters("kxia") == ("top_k", "xtc", "infill", "adaptive_p")
    hash(SamplingParams(samplers=given_names))


@pytest.mark.parametrize(
    ("samplers", "message"),
    [
        (
            ["top_kk"],
            "samplers names 'top_kk': did you mean top_k.*? Known are penalties, dry, top",
        ),
        (["mirostat"], "samplers names 'mirostat': known are penalties"),
        ("top_k", "samplers is 'top_k': must be a list"),
        (None, "samplers is None: must be a list"),
        ([3], r"samplers\[0\] is 3: must be a name, or an instance of Filter or LogitsProcessor"),
        ([Filter], r"samplers\[0\] is <class .*>: must be a name, or an instance"),
    ],
)
def test_samplers_that_are_none(samplers: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        SamplingParams(samplers=samplers)


def test_letters_that_are_none() -> None:
    with pytest.raises(SamplingError, match=r"has 'z': known are e \(penalties\), d \(dry\)"):
        samplers_by_letters("kz")


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("top_n_sigma", math.nan, "a finite number"),
        ("xtc_probability", 1.5, "a number in 0 .. 1"),
        ("xtc_threshold", -0.1, "a number in 0 .. 1"),
        ("dynatemp_range", -1, "a number of at least 0"),
        ("dynatemp_exponent", -0.5, "a number of at least 0"),
        ("dry_multiplier", math.inf, "a finite number"),
        ("dry_base", 0.9, "a number of at least 1"),
        ("dry_allowed_length", -1, "an integer >= 0"),
        ("dry_penalty_last_n", -2, "an integer >= -1; -1: all, 0: none"),
        ("dry_sequence_breakers", "\n", "a list of texts that are not empty"),
        ("dry_sequence_breakers", ["a", ""], "a list of texts that are not empty"),
        ("dry_sequence_breakers", [b"a"], "a list of texts that are not empty"),
        ("mirostat_mode", 3, "an integer in 0 .. 2; 0: no mirostat"),
        ("mirostat_tau", -1.0, "a number of at least 0"),
        ("mirostat_eta", "x", "a finite number"),
        ("adaptive_target", 1.5, "a number of at most 1; below 0: off"),
        ("adaptive_decay", 1.0, "a number in 0 .. 0.99"),
    ],
)
def test_parameters_out_of_range(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(SamplingError) as error:
        SamplingParams(**{name: value})
    assert str(error.value) == f"{name} is {value!r}: must be {wanted}"


def test_a_target_without_its_step_is_refused() -> None:
    with pytest.raises(SamplingError, match="samplers must name adaptive_p then"):
        SamplingParams(adaptive_target=0.5)
    s = sampler(3, samplers=["top_k", "adaptive-p"])  # off below 0
    assert s.filters == []


# --- greedy ---


def test_greedy_ignores_steps_that_may_drop_the_best_token() -> None:
    off = {"typical_p": 0.1, "xtc_probability": 1.0, "mirostat_mode": 1}
    s = sampler(4, temperature=0.0, top_k=3, min_p=0.1, top_n_sigma=1.0, **off)
    assert (s.logits_processors, s.filters) == ([], [])
    assert s.sample(f32([1.0, 3.0, 2.9, 3.0])) == 1


def test_greedy_penalises_what_a_cut_before_left() -> None:
    options = {"temperature": 0.0, "presence_penalty": 9.0, "top_k": 1}
    for order, token in ((["top_k", "penalties"], 1), (["penalties", "top_k"], 0)):
        s = sampler(3, samplers=[*order, "temperature"], **options)
        s.accept(1)
        assert s.sample(f32([1.0, 3.0, 0.0])) == token
        assert s.probabilities(f32([1.0, 3.0, 0.0]))[0].tolist() == [token]


# --- own steps ---


@dataclass
class Even(Filter):
    """Keep tokens of even ids, after so many of any kind."""

    n_free: int = 0
    n_accepted: int = 0

    def accept(self, token: int) -> None:
        self.n_accepted += 1

    def apply(self, candidates: Candidates) -> Candidates:
        if self.n_accepted < self.n_free:
            return candidates
        return candidates.keep(candidates.token_ids % 2 == 0)


class Halved(LogitsProcessor):
    """Halve all logits."""

    def apply(self, logits: NDArray[np.float32]) -> None:
        logits /= 2


class Seen(SparseProcessor):
    """Add 1 to the logit of token 2."""

    def touched(self) -> NDArray[np.int64]:
        return np.array([2])

    def apply_to(self, seen: NDArray[np.float32]) -> NDArray[np.float32]:
        return seen + np.float32(1)


@dataclass
class Coin(Filter):
    """Keep one of two, by the request's random numbers."""

    setting: Setting | None = None

    def begin(self, setting: Setting) -> None:
        self.setting = setting

    def apply(self, candidates: Candidates) -> Candidates:
        assert self.setting is not None
        assert self.setting.n_vocab == 4
        side = int(self.setting.uniform() < 0.5)
        return candidates.keep(candidates.token_ids % 2 == side)


def test_own_steps_run_where_they_stand() -> None:
    logits = [4.0, 5.0, 3.0, 1.0]
    assert kept(sampler(4, top_k=2, samplers=["top_k", Even()]), logits) == [0]
    assert kept(sampler(4, top_k=2, samplers=[Even(), "top_k"]), logits) == [0, 2]
    assert sampler(4, samplers=[Even(), "temperature"], temperature=0.0).sample(f32(logits)) == 0
    for t in (0.5, 1.0):
        orders: list[list[Any]] = [
            ["temperature", Halved(), Seen()],
            [Seen(), Halved(), "temperature"],
            [Even(), "temperature", Seen(), Halved()],
        ]
        below = []  # the logit of 2 against that of 0, which is larger by 1
        for order in orders:
            ids, probs = sampler(4, samplers=order, temperature=t).probabilities(f32(logits))
            below.append(float(np.log(probs[ids == 2] / probs[ids == 0])[0]))
        want = [-1 / t / 2 + 1, (-1 + 1) / 2 / t, (-1 / t + 1) / 2]
        assert below == pytest.approx(want, abs=1e-5)


def test_requests_do_not_share_the_state_of_steps() -> None:
    mine = Even(n_free=2)
    params = SamplingParams(**OFF, samplers=[mine, "temperature"])
    first, second = Sampler(params, 4), Sampler(params, 4)
    logits = [4.0, 5.0, 3.0, 1.0]
    for _ in range(2):
        first.accept(0)
    assert kept(first, logits) == [0, 2]
    assert kept(second, logits) == [0, 1, 2, 3]
    assert mine.n_accepted == 0


def test_own_steps_draw_from_the_request_s_numbers() -> None:
    def tokens(seed: int) -> list[int]:
        s = sampler(4, samplers=[Coin()], seed=seed)
        return [s.sample(f32([0.0] * 4)) for _ in range(40)]

    assert tokens(1) == tokens(1) != tokens(2)
    assert set(tokens(1)) == {0, 1, 2, 3}


@dataclass
class Broken(Filter):
    result: Any

    def apply(self, candidates: Candidates) -> Any:
        return self.result(candidates)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda c: None, "Broken.apply returned None: it must return Candidates, at least one"),
        (lambda c: c.keep(c.logits > 9), "a step of the sampler chain left no token"),
        (lambda c: c.keep(np.array([0, 1])), r"keeps by a mask int64 \[2\]: it must be bool \[3\]"),
        (lambda c: c.keep(np.ones(2, bool)), r"a mask bool \[2\]: it must be bool \[3\]"),
        (lambda c: c.with_logits(np.zeros(2)), r"logits of shape \[2\]: it must be \[3\]"),
        (lambda c: c.with_logits(c.logits * np.nan), "3 of 3 logits are NaN"),
        (lambda c: c.with_logits(c.logits - np.inf), "all logits are -inf"),
    ],
)
def test_steps_that_break_the_rules(result: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        sampler(3, samplers=[Broken(result)]).sample(f32([0.0, 1.0, 2.0]))


def test_a_processor_cannot_bring_back_what_was_dropped() -> None:
    class Favour(LogitsProcessor):
        def apply(self, logits: NDArray[np.float32]) -> None:
            assert logits.tolist() == [-math.inf, 1.0, 2.0]
            logits[0] = 100.0

    s = sampler(3, top_k=2, samplers=["top_k", Favour()])
    assert kept(s, [0.0, 1.0, 2.0]) == [1, 2]
