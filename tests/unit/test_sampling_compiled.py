"""Chains in compiled code choose what the steps one after another do."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy.errors import SamplingError
from ggmlpy.sampling import Sampler, SamplingParams
from ggmlpy.sampling.candidates import Candidates, draw
from ggmlpy.sampling.compiled import CompiledChain, _function
from ggmlpy.sampling.filters import MinP, TopK, TopP
from ggmlpy.sampling.steps import Filter
from tests.unit.naive_sampling import OFF, f32, logit_lists, shares


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Before the first test, whose deadline it would exceed."""
    _function()


def sampler(n_vocab: int, *, compiled: bool = True, **params: Any) -> Sampler:
    made = Sampler(SamplingParams(**{**OFF, "seed": 3, **params}), n_vocab)
    assert made._compiled is not None
    if not compiled:
        made._compiled = None
    return made


def check(logits: NDArray[np.float32], n_draws: int = 5, **params: Any) -> None:
    fast, slow = (sampler(len(logits), compiled=c, **params) for c in (True, False))
    assert [fast.sample(logits) for _ in range(n_draws)] == [
        slow.sample(logits) for _ in range(n_draws)
    ]


@settings(max_examples=300)
@given(
    logits=logit_lists,
    k=st.integers(1, 45),
    top_p=st.one_of(st.just(1.0), shares),
    min_p=st.one_of(st.just(0.0), shares),
    temperature=st.sampled_from([1e-3, 0.5, 0.8, 1.0, 2.0, 50.0]),
    keep=st.integers(0, 5),
)
def test_the_same_tokens(
    logits: list[float], k: int, top_p: float, min_p: float, temperature: float, keep: int
) -> None:
    options: dict[str, Any] = {"top_k": k, "top_p": top_p, "min_p": min_p, "min_keep": keep}
    check(f32(logits), temperature=temperature, **options)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 40, 41, 56, 57, 1000, 32_003, 128_256])
@pytest.mark.parametrize("k", [1, 40, 1024])
def test_vocabularies_of_any_size(n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(3):
        check(rng.normal(0, 2, n).astype(np.float32), top_k=k, top_p=0.95, min_p=0.05)
    # Many equal ones at the edge: the lowest ids are in.
    check(rng.integers(-3, 3, n).astype(np.float32), n_draws=20, top_k=k)
    check(np.sort(rng.normal(0, 2, n)).astype(np.float32), n_draws=20, top_k=k)


@given(logits=logit_lists, u=st.floats(0, 1, exclude_max=True), k=st.integers(1, 45))
def test_every_random_number(logits: list[float], u: float, k: int) -> None:
    """The first and the last of them too."""
    values = f32(logits)
    for drawn in (u, 0.0, 1 - 2.0**-53):
        s = sampler(len(values), top_k=k)
        assert s._compiled is not None
        candidates = s._filtered(values)
        assert candidates.ids is not None
        want = candidates.ids[draw(candidates.weights(), drawn)]
        assert s._compiled.sample(values, drawn) == want


LAST = 1 - 2.0**-53  # the largest random number: draws the last token that is left


@pytest.mark.parametrize("n", [2, 8, 64])
def test_sums_that_are_exact(n: int) -> None:
    """Of n equal tokens k hold k / n of all, to the last bit: no more are kept for top_p = k / n,
    and the first k are drawn by the numbers below that."""
    logits = f32([1.5] * n)
    for k in range(1, n):
        fast, slow = (sampler(n, compiled=c, top_k=n, top_p=k / n) for c in (True, False))
        assert fast._compiled is not None
        assert fast._compiled.sample(logits, LAST) == k - 1
        assert slow.probabilities(logits)[0].tolist() == list(range(k))
        everything = sampler(n, top_k=n)._compiled
        assert everything is not None
        assert everything.sample(logits, k / n) == draw(np.ones(n), k / n) == k
        assert everything.sample(logits, k / n - 2.0**-53) == k - 1


def test_what_equals_the_largest_is_as_probable() -> None:
    chain = sampler(4, top_k=4, min_p=1.0)._compiled
    assert chain is not None
    assert chain.sample(f32([2, 1, 2, 2]), LAST) == 3


def test_weights_are_those_of_f64() -> None:
    """Seen where they decide: the draw changes within the last bits of the border."""
    for below in (0.1, 0.3465, 0.3466, 1.0, 5.5, 30.0):
        logits = f32([0.0, -below])
        s = sampler(2, top_k=2)
        assert s._compiled is not None
        first = 1 / (1 + np.exp(np.float64(logits[1])))
        assert s._compiled.sample(logits, first - 2.0**-51) == 0
        assert s._compiled.sample(logits, first + 2.0**-51) == 1


def test_tokens_that_are_impossible_are_never_drawn() -> None:
    logits = np.full(100, -np.inf, np.float32)
    logits[[7, 70]] = 1.0, 0.5
    s = sampler(100, top_k=40)
    assert {s.sample(logits) for _ in range(50)} == {7, 70}


@pytest.mark.parametrize("at", [0, 39, 40, 50, 99])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_none(at: int, bad: float) -> None:
    logits = np.zeros(100, np.float32)
    logits[at] = bad
    with pytest.raises(SamplingError, match=f"the first for token {at}:"):
        sampler(100, top_k=40).sample(logits)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_error_draws_nothing(bad: float) -> None:
    """Who catches it and goes on gets the tokens that the steps give."""
    logits = np.random.default_rng(0).normal(0, 2, 100).astype(np.float32)
    fast, slow = (sampler(100, compiled=c, top_k=40) for c in (True, False))
    for s in (fast, slow):
        with pytest.raises(SamplingError):
            s.sample(np.full(100, bad, np.float32))
    assert [fast.sample(logits) for _ in range(20)] == [slow.sample(logits) for _ in range(20)]


def test_more_to_keep_than_a_record_holds() -> None:
    check(f32([3.0, 2.0, 1.0]), n_draws=20, top_k=2, top_p=0.1, min_p=0.9, min_keep=2**63)


def test_nothing_but_impossible_tokens() -> None:
    with pytest.raises(SamplingError, match="all logits are -inf"):
        sampler(100, top_k=40).sample(np.full(100, -np.inf, np.float32))


def test_logits_that_are_a_column() -> None:
    logits = np.random.default_rng(0).normal(0, 2, (300, 2)).astype(np.float32)[:, 1]
    check(logits, top_k=40, n_draws=20)


@dataclass(frozen=True)
class Without(Filter):
    """A step of a user's own."""

    token: int

    def apply(self, candidates: Candidates) -> Candidates:
        assert candidates.ids is not None
        return candidates.take(np.flatnonzero(candidates.ids != self.token), is_sorted=True)


def test_a_changed_list_of_filters_counts() -> None:
    logits = f32([3.0, 2.0, 1.0])
    s = sampler(3, top_k=2, min_p=0.01)
    s.filters.insert(1, Without(0))
    assert {s.sample(logits) for _ in range(30)} == {1}
    del s.filters[1]
    assert {s.sample(logits) for _ in range(30)} == {0, 1}
    s.filters.append(Without(1))
    assert {s.sample(logits) for _ in range(30)} == {0}
    del s.filters[1:]
    s.filters[0] = TopK(1)
    assert {s.sample(logits) for _ in range(30)} == {0}
    s = sampler(3, top_k=3, min_p=0.9)
    del s.filters[1]
    assert {s.sample(logits) for _ in range(60)} == {0, 1, 2}


@pytest.mark.parametrize(
    "params",
    [{}, {"top_k": 0, "top_p": 0.9}, {"top_k": 5, "typical_p": 0.9}, {"top_k": 1025}],
)
def test_other_chains_are_not_compiled(params: dict[str, Any]) -> None:
    s = Sampler(SamplingParams(**{**OFF, **params}), 10)
    assert s._compiled is None
    assert 0 <= s.sample(np.zeros(10, np.float32)) < 10


def test_steps_that_keep_unlike_numbers_are_not_compiled() -> None:
    assert CompiledChain.of([TopK(5), TopP(0.5, 3), MinP(0.1, 3)]) is not None
    assert CompiledChain.of([TopK(5), TopP(0.5, 3), MinP(0.1, 1)]) is None


def test_a_copy_works_on_its_own() -> None:
    logits = np.random.default_rng(0).normal(0, 2, 50).astype(np.float32)
    s = sampler(50, top_k=20, top_p=0.9)
    assert s._compiled is not None
    copies = [copy.deepcopy(s._compiled), pickle.loads(pickle.dumps(s._compiled))]
    want = s._compiled.sample(logits, 0.12345)
    del s
    assert [c.sample(logits, 0.12345) for c in copies] == [want, want]
