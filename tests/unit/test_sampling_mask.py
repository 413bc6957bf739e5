"""Sampling under a mask: the same as of logits that are -inf elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy.errors import SamplingError
from ggmlpy.sampling import Sampler, SamplingParams
from ggmlpy.sampling.compiled import _function, _keep_allowed, masked
from ggmlpy.sampling.steps import LogitsProcessor

CHAINS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"temperature": 0},
    "greedy, penalties": {"temperature": 0, "repeat_penalty": 1.7, "frequency_penalty": 0.3},
    "penalties": {"repeat_penalty": 1.7, "logit_bias": {0: 5.0}},
    "no top_k": {"top_k": 0},
    "typical": {"typical_p": 0.7},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "all": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "many": {"top_k": 2000},
    "mirostat": {"mirostat_mode": 2},
}
SIZES = [1, 15, 16, 17, 63, 64, 65, 100, 127, 1000, 4099]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Before the first test, whose deadline it would exceed."""
    _function()
    _keep_allowed()


def mask_of(allowed: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """The bits behind the last token are set: they must not matter."""
    bits = np.ones(-(-len(allowed) // 64) * 64, bool)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view(np.uint64)


def draws(logits: NDArray[np.float32], allowed: NDArray[np.bool_], **params: Any) -> list[int]:
    """Tokens that a sampler draws under a mask; another one must draw the same of -inf."""
    expected = np.where(allowed, logits, -np.inf).astype(np.float32)
    with_mask, without = (Sampler(SamplingParams(seed=5, **params), len(logits)) for _ in "12")
    mask, drawn = mask_of(allowed), []
    before = logits.copy()
    for _ in range(6):
        token = with_mask.sample(logits, mask)
        assert token == without.sample(expected)
        with_mask.accept(token)
        without.accept(token)
        drawn.append(token)
    assert np.array_equal(logits, before, equal_nan=True)
    return drawn


@pytest.mark.parametrize("params", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("n", SIZES)
def test_the_same_as_without_the_other_tokens(n: int, params: dict[str, Any]) -> None:
    rng = np.random.default_rng(n)
    for share in (0.02, 0.5, 1.0):
        allowed = rng.random(n) < share
        allowed[rng.integers(n)] = True
        logits = rng.normal(0, 2, n).astype(np.float32)
        assert all(allowed[token] for token in draws(logits, allowed, **params))
        draws(np.round(logits), allowed, **params)  # many equal ones


@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"top_k": 0}])
def test_logits_outside_the_mask_may_be_anything(params: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    for bad in (np.nan, np.inf, 3e38):
        logits = rng.normal(0, 2, 333).astype(np.float32)
        allowed = np.zeros(333, bool)
        allowed[[0, 100, 330]] = True
        logits[~allowed] = bad
        assert all(allowed[token] for token in draws(logits, allowed, **params))


@settings(max_examples=100)
@given(data=st.data(), n=st.integers(1, 200))
def test_any_mask(data: st.DataObject, n: int) -> None:
    numbers = st.floats(-30, 30, width=32) | st.just(-np.inf)
    logits = np.array(data.draw(st.lists(numbers, min_size=n, max_size=n)), np.float32)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    copy = masked(logits, mask_of(allowed))
    assert np.array_equal(copy, np.where(allowed, logits, np.float32(-np.inf)))
    if np.isfinite(copy).any():
        draws(logits, allowed, top_k=data.draw(st.integers(1, 45)))


@pytest.mark.parametrize("params", CHAINS.values(), ids=CHAINS)
def test_nothing_allowed(params: dict[str, Any]) -> None:
    s = Sampler(SamplingParams(seed=1, **params), 70)
    with pytest.raises(SamplingError):
        s.sample(np.zeros(70, np.float32), np.zeros(2, np.uint64))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"top_k": 0}])
def test_allowed_logits_must_be_numbers(bad: float, params: dict[str, Any]) -> None:
    logits = np.zeros(70, np.float32)
    logits[69] = bad
    s = Sampler(SamplingParams(seed=1, **params), 70)
    with pytest.raises(SamplingError, match="token 69"):
        s.sample(logits, mask_of(np.ones(70, bool)))


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"top_k": 5, "temperature": 0.7},
        {"top_p": 0.8, "min_p": 0.01},
        {"repeat_penalty": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.05, "top_k": 9},
    ],
)
def test_probabilities_under_a_mask_are_those_of_what_it_allows(params: dict[str, Any]) -> None:
    logits = np.random.default_rng(1).normal(0, 2, 70).astype(np.float32)
    allowed = np.arange(70) % 3 == 0
    s, other = (Sampler(SamplingParams(seed=5, **params), 70) for _ in "12")
    ids, found = s.probabilities(logits, mask_of(allowed))
    want_ids, want = other.probabilities(masked(logits, mask_of(allowed)))
    kept = want > 0
    assert ids[found > 0].tolist() == want_ids[kept].tolist()
    assert found[found > 0] == pytest.approx(want[kept])
    assert s.sample(logits, mask_of(allowed)) in ids[found > 0]


def test_a_mask_that_is_too_short() -> None:
    with pytest.raises(SamplingError, match="too short"):
        Sampler(SamplingParams(), 70).sample(np.zeros(70, np.float32), np.ones(1, np.uint64))


class Raises(LogitsProcessor):
    """Sets all logits."""

    def apply(self, logits: NDArray[np.float32]) -> None:
        logits[:] = np.arange(len(logits))


@pytest.mark.parametrize("params", [{}, {"temperature": 0}])
def test_own_steps_cannot_allow_a_token(params: dict[str, Any]) -> None:
    s = Sampler(SamplingParams(seed=1, samplers=(Raises(), "top_k", "temperature"), **params), 70)
    allowed = np.zeros(70, bool)
    allowed[[3, 40]] = True
    assert {s.sample(np.zeros(70, np.float32), mask_of(allowed)) for _ in range(9)} <= {3, 40}
