"""Recurrent layers: the error of a state that is carried from token to token.

Roundings of different tokens are independent, so that errors carried along add up as squares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ggmlpy.conformance.bounds.expected import (
    EPS,
    F64,
    Array,
    Magnitude,
    Rule,
    of_sum,
    rule,
    wide,
)
from ggmlpy.graph.op import Op
from ggmlpy.ops import activations
from ggmlpy.ops.hyper_connections import Dsv4HcComb, Dsv4HcPre
from ggmlpy.ops.linear_attention import GatedDeltaNet
from ggmlpy.ops.scan import SsmScan
from ggmlpy.ops.spans import Scan

_UNITS = 4  # of a function in f32, as in functions.py


def _values(op: Op, sources: Sequence[Array]) -> F64:
    values: F64 = wide(op.reference(*sources))
    return values


def _absolute(sources: Sequence[Array]) -> list[Array]:
    return [np.abs(x) for x in sources]


def _by_spans(of_one: Rule) -> Rule:
    """A rule for an op without spans, for those that have them too: sequence by sequence."""

    def rule_of(op: Op, sources: Sequence[Array]) -> Magnitude:
        if not isinstance(op, Scan) or op.room is None:
            return of_one(op, sources)
        values = _values(op, sources)
        size = op.by_spans(sources, lambda alone, parts: of_one(alone, parts).size)
        return Magnitude(values, size.reshape(values.shape))

    return rule_of


@rule("ssm_scan")
@_by_spans
def selective_scan(op: Op, sources: Sequence[Array]) -> Magnitude:
    """States carry their errors on as they decay, and a decay is wrong by its rounded exponent.

    Tokens and states may share a decay, and so its error: errors add up as magnitudes.
    """
    assert isinstance(op, SsmScan)
    s, x, dt, A, B, C, ids = sources
    x, B, C = wide(x), *(np.repeat(wide(t), x.shape[2] // t.shape[2], axis=2) for t in (B, C))
    d = activations.softplus(wide(dt)[0])  # [S, T, H]
    exponent = d[..., None] * wide(A)[0, 0]  # [S, T, H, N or 1]
    units = _UNITS + (_UNITS + 3) * np.abs(exponent)
    state = wide(s)[ids[0, 0, 0]]  # [S, H, D, N]
    size, outputs = np.zeros_like(state), np.empty_like(x)
    kept = np.zeros((op.K, *state.shape))
    for t in range(x.shape[1]):
        taken = (d[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None, :]
        decayed = np.exp(exponent[:, t, :, None, :]) * state
        size = np.exp(exponent[:, t, :, None, :]) * size
        size += units[:, t, :, None, :] * np.abs(decayed) + (_UNITS + 2) * np.abs(taken)
        state = decayed + taken
        size += np.abs(state)
        terms = np.abs(state * C[:, t, :, None, :]).sum(axis=3)
        y = (state * C[:, t, :, None, :]).sum(axis=3)
        outputs[:, t] = (size * np.abs(C[:, t, :, None, :])).sum(axis=3)
        outputs[:, t] += of_sum(terms, y, state.shape[3])
        if x.shape[1] - 1 - t < op.K:
            kept[x.shape[1] - 1 - t] = size
    values = _values(op, sources)
    return Magnitude(values, np.concatenate([outputs.ravel(), kept.ravel()]).reshape(values.shape))


@rule("gated_linear_attn")
@_by_spans
def linear_attention(op: Op, sources: Sequence[Array]) -> Magnitude:
    """A sum over the head's columns of states that are sums over the tokens."""
    values = _values(op, sources)
    n = sources[0].shape[3] + sources[0].shape[1]
    return Magnitude(values, of_sum(_values(op, _absolute(sources)), values, n))


@rule("rwkv_wkv6")
@_by_spans
def wkv6(op: Op, sources: Sequence[Array]) -> Magnitude:
    """A sum over the rows of states that are sums over the tokens."""
    values = _values(op, sources)
    n = sources[0].shape[3] + sources[0].shape[1]
    return Magnitude(values, of_sum(_values(op, _absolute(sources)), values, n))


@rule("rwkv_wkv7")
@_by_spans
def wkv7(op: Op, sources: Sequence[Array]) -> Magnitude:
    r, w, k, v, a, b = (wide(x[0]) for x in sources[:-1])
    n_seqs = sources[-1].shape[2]
    per_seq = (n_seqs, -1, *r.shape[1:])
    r, w, k, v, a, b = (x.reshape(per_seq) for x in (r, w, k, v, a, b))  # [S, T, H, D]
    states = wide(sources[-1]).reshape(n_seqs, r.shape[2], r.shape[3], r.shape[3])
    outputs, kept = _of_rows(states, (r, w, k, v, a, b), 1)
    size = np.concatenate([outputs.reshape(-1), kept[0].reshape(-1)])
    values = _values(op, sources)
    return Magnitude(values, size.reshape(values.shape))


@rule("gated_delta_net")
@_by_spans
def delta_net(op: Op, sources: Sequence[Array]) -> Magnitude:
    """As RWKV-7's rule with w = exp(g), a = w k, b = -beta k, v = beta v."""
    assert isinstance(op, GatedDeltaNet)
    q, k, v, g, beta, states = (wide(x) for x in sources)
    n_seqs, _, n_head, n = v.shape
    q, k = (
        np.tile(np.repeat(x, n_seqs // len(x), axis=0), (1, 1, n_head // x.shape[2], 1))
        for x in (q, k)
    )
    w = np.broadcast_to(np.exp(g), v.shape)
    exponent = _UNITS + 2 * float(np.abs(g).max())
    tokens = (q / np.sqrt(n), w, k, beta * v, w * k, -beta * k)
    outputs, kept = _of_rows(states, tokens, op.K, exponent)
    values = _values(op, sources)
    size = np.concatenate([outputs.reshape(-1), kept.reshape(-1)])
    return Magnitude(values, size.reshape(values.shape))


def _of_rows(
    states: F64, tokens: tuple[F64, ...], n_kept: int, w_units: float = 0
) -> tuple[F64, F64]:
    """Sizes of outputs [S, T, H, D] and kept states [K, S, H, D, D] of

        state = state * w + v k + (sum of state * a) b;    y = the sum of state * r

    where w itself is wrong by so many units.
    """
    r, n = tokens[0], states.shape[3]
    size, outputs = np.zeros_like(states), np.empty_like(r)
    kept = np.zeros((n_kept, *states.shape))
    for t in range(r.shape[1]):
        r_t, w, k, a, b = (x[:, t, :, None, :] for x in (r, *tokens[1:3], *tokens[4:]))
        v = tokens[3][:, t, :, :, None]
        read = (states * a).sum(axis=3, keepdims=True)
        of_read = of_sum(np.abs(states * a).sum(axis=3, keepdims=True), read, n)
        carried = 2 * np.sqrt(((size * a) ** 2).sum(axis=3, keepdims=True))
        size = np.hypot(size * w, carried * b) + (w_units + 1) * np.abs(states * w)
        size += np.abs(b) * of_read + 4 * np.abs(v * k) + (4 + w_units) * np.abs(read * b)
        states = states * w + v * k + read * b
        size += np.abs(states)
        y = (states * r_t).sum(axis=3)
        outputs[:, t] = 2 * np.sqrt(((size * r_t) ** 2).sum(axis=3))
        outputs[:, t] += of_sum(np.abs(states * r_t).sum(axis=3), y, n)
        slot = r.shape[1] - 1 - t
        if slot < n_kept:
            kept[slot] = size
    return outputs, kept


@rule("lightning_indexer")
def indexer(op: Op, sources: Sequence[Array]) -> Magnitude:
    """A sum over heads of products, each with the error of a sum; those below 0 have none.

    Heads are summed apart, so that their errors add up as squares. A masked cell is exactly -inf.
    """
    values = _values(op, sources)
    q, k, weights, mask = (wide(x) for x in sources)
    keys, w = (
        k[:, :, 0, :][:, None].swapaxes(2, 3),
        np.abs(weights[:, 0])[..., None],
    )  # [S, 1, D, N]
    products, magnitudes = q @ keys, np.abs(q) @ np.abs(keys)  # [S, T, H, N]
    of_products = of_sum(magnitudes, products, q.shape[3])
    may_count = products > -EPS * of_products
    products = w * np.maximum(products, 0)
    of_heads = np.sqrt(((w * may_count * of_products) ** 2).sum(axis=2)) + products.max(axis=2)
    total = products.sum(axis=2)
    bias = np.tile(np.abs(mask), (len(q) // len(mask), 1, 1, 1))
    size = of_heads[:, None] + of_sum(total, total, q.shape[2])[:, None] + bias
    return Magnitude(values, np.where(np.isneginf(values), 0, size))


@rule("dsv4_hc_comb")
def mixing_matrix(op: Op, sources: Sequence[Array]) -> Magnitude:
    """A softmax, then normalisations: each divides out most of the error before it."""
    assert isinstance(op, Dsv4HcComb)
    mixes, scale, base = (np.abs(wide(x)) for x in sources)
    values = _values(op, sources)
    logit = float((mixes * scale[0, 0, 0, 2] + base).max())
    units = 2 * _UNITS + 4 * logit + 4 * np.sqrt(2 * op.n_iter * values.shape[3])
    return Magnitude(values, units * values)


@rule("dsv4_hc_pre")
def streams_before(op: Op, sources: Sequence[Array]) -> Magnitude:
    assert isinstance(op, Dsv4HcPre)
    x, weights = sources
    values = _values(op, sources)
    if op.gated:
        units = _UNITS + 1 + 2 * float(np.abs(weights).max())
        sums = np.abs(_values(op, [np.abs(x), weights]))
        return Magnitude(values, of_sum(sums, values, x.shape[2]) + units * sums)
    sums = np.abs(_values(op, _absolute(sources)))
    return Magnitude(values, of_sum(sums, values, x.shape[2]))


@rule("dsv4_hc_post")
def streams_after(op: Op, sources: Sequence[Array]) -> Magnitude:
    values = _values(op, sources)
    sums = _values(op, _absolute(sources))
    return Magnitude(values, of_sum(sums, values, sources[1].shape[2] + 1))
