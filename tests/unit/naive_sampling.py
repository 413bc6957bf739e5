"""Sampling in plain Python floats, step by step: what the sampler is judged by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy.sampling import Sampler, SamplingParams

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
