"""Each step of sampling and the whole chain, against the naive implementation."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ggmlpy.sampling import Sampler, SamplingParams
from tests.unit.naive_sampling import (
    OFF,
    check_chain,
    eighths,
    f32,
    logit_lists,
    naive_chain,
    shares,
)


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
