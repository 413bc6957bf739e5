"""Definitions of sampling steps in numpy float64: what the sampler's are judged by.

Each takes ids and logits of the tokens that can be drawn, descending by logit, ties by id.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Tokens = dict[int, float]  # id -> logit, in the order above


def ordered(tokens: Tokens) -> Tokens:
    possible = {i: x for i, x in tokens.items() if x > -math.inf}
    return dict(sorted(possible.items(), key=lambda item: (-item[1], item[0])))


def probabilities(tokens: Tokens) -> F64:
    logits = np.array(list(tokens.values()), np.float64)
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def top_n_sigma(tokens: Tokens, n: float) -> Tokens:
    logits = np.array(list(tokens.values()), np.float64)
    mean = logits.sum() / len(logits)
    sigma = math.sqrt(((logits - mean) ** 2).sum() / len(logits))
    return {i: x for i, x in tokens.items() if x >= logits.max() - n * sigma}


def xtc(tokens: Tokens, threshold: float, min_keep: int) -> Tokens:
    """What remains where XTC is applied."""
    ids = list(tokens)
    n_top = sum(p >= threshold for p in probabilities(tokens).tolist())
    if n_top < 2 or len(ids) - (n_top - 1) < min_keep:
        return tokens
    return {i: tokens[i] for i in ids[n_top - 1 :]}


def dynamic_temperature(tokens: Tokens, t: float, span: float, exponent: float) -> Tokens:
    if len(tokens) < 2:
        return tokens
    p = probabilities(tokens)
    entropy = -sum(q * math.log(q) for q in p.tolist() if q > 0)
    low, high = max(0.0, t - span), t + span
    t = low + (high - low) * (max(entropy, 0.0) / math.log(len(p))) ** exponent
    if t <= 0:
        return {next(iter(tokens)): 0.0}
    return {i: x / t for i, x in tokens.items()}


def mirostat_2(tokens: Tokens, mu: float) -> Tokens:
    p = probabilities(tokens)
    kept = [i for i, q in zip(tokens, p.tolist(), strict=True) if q > 0 and -math.log2(q) <= mu]
    return {i: tokens[i] for i in kept or list(tokens)[:1]}


def mirostat_1(tokens: Tokens, mu: float, n_vocab: int) -> Tokens:
    p = probabilities(tokens)[:100]
    if len(p) < 2:
        return tokens
    t = np.array([math.log((i + 2) / (i + 1)) for i in range(len(p) - 1)])
    b = np.log(p[:-1] / p[1:])
    s = float((t * b).sum() / (t * t).sum())
    e = s - 1
    try:
        k = ((e * 2**mu) / (1 - n_vocab**-e)) ** (1 / s)
    except OverflowError:  # nearly equal logits
        k = math.inf
    return {i: tokens[i] for i in list(tokens)[: max(int(min(k, len(tokens))), 1)]}


def adaptive_logits(p: F64, target: float) -> F64:
    distance = np.abs(p - target) / 0.3
    return np.asarray(5 - 10 * distance**2 / (1 + distance))


def dry(
    history: list[int],
    multiplier: float,
    base: float,
    allowed: int,
    last_n: int,
    texts: dict[int, str],
    breakers: list[str],
) -> dict[int, float]:
    """The penalties by token, from the definition: every earlier place, compared token by token."""
    window = history[max(len(history) - last_n, 0) :] if last_n >= 0 else history
    limit = len(window)
    for n in range(1, len(window) + 1):
        # The last n tokens, of which the first ends a breaker that may begin further back.
        before = "".join(texts[t] for t in window[: len(window) - n])
        text = before + texts[window[-n]]
        if any(text.find(each, max(len(before) - len(each) + 1, 0)) >= 0 for each in breakers):
            limit = n - 1
            break
    found: dict[int, float] = {}
    for end in range(len(window) - 1):
        n = 0
        while n < limit and n <= end and window[end - n] == window[len(window) - 1 - n]:
            n += 1
        token = window[end + 1]
        if n >= allowed and not any(each in texts[token] for each in breakers):
            found[token] = max(found.get(token, -math.inf), multiplier * base ** (n - allowed))
    return found


def infill(tokens: Tokens, texts: dict[int, bytes], eog: set[int], end: int) -> Tokens:
    ids = list(tokens)
    p = dict(zip(ids, probabilities(tokens).tolist(), strict=True))
    p_end = sum(p[i] for i in ids if i in eog)
    if 3 * p_end * len(ids) > sum(p[i] for i in ids if i not in eog):
        return {i: tokens[i] for i in ids if i in eog}
    left = set(ids)
    for a in ids:
        for b in ids:
            if a not in left:
                break
            if a == b or b not in left or not texts[a] or not texts[b].startswith(texts[a]):
                continue
            into, gone = (b, a) if p[b] > p[a] else (a, b)
            p[into] += p[gone]
            left.remove(gone)
    kept = [i for i in ids if i in left and (i in eog or p[i] >= 0.2)]
    n_text = sum(i not in eog for i in kept)
    if n_text == 0:
        return {end: 0.0}
    floor = sum(p[i] for i in kept) / (n_text + 1)
    return {i: tokens[i] for i in kept if i in eog or p[i] >= floor} or {end: 0.0}
