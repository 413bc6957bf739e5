"""Scans, linear attention, the indexer and hyper-connections, by loops over single numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched.compute import compute
from tests.ops.values import close, leaf, run, uniform


def made(function: Callable[..., Tensor], *arrays: NDArray[Any], **params: Any) -> Tensor:
    """The function of leafs with these values."""
    return function(*(leaf(x) for x in arrays), **params)


def near(got: float, want: float) -> None:
    close(np.array(got), np.array(want))


def wide(x: NDArray[Any]) -> NDArray[np.float64]:
    return x.astype(np.float64)


@pytest.mark.parametrize("n_decays", [1, 3])
@pytest.mark.parametrize("K", [1, 2])
def test_ssm_scan(n_decays: int, K: int) -> None:
    n, size, heads, tokens, seqs, groups = 3, 2, 4, 3, 2, 2
    s = uniform(1, n, size, heads, 3)
    x, dt = uniform(2, size, heads, tokens, seqs), uniform(3, heads, tokens, seqs, low=-3, high=3)
    a = uniform(4, n_decays, heads, low=-2, high=0)
    b, c = uniform(5, n, groups, tokens, seqs), uniform(6, n, groups, tokens, seqs)
    ids = [2, 0]
    y = made(ops.ssm_scan, s, x, dt, a, b, c, np.array(ids, np.int32), K=K)
    got = run(y).reshape(-1)
    outputs, states = np.split(got, [x.size])
    outputs = outputs.reshape(seqs, tokens, heads, size)
    states = states.reshape(K, seqs, heads, size, n)
    for q, h, r in np.ndindex(seqs, heads, size):
        state = [float(v) for v in s[ids[q], h, r]]
        for t in range(tokens):
            d = math.log1p(math.exp(dt[0, q, t, h]))
            total = 0.0
            for i in range(n):
                decay = math.exp(d * a[0, 0, h, i % n_decays])
                state[i] = decay * state[i] + d * x[q, t, h, r] * b[q, t, h // 2, i]
                total += state[i] * c[q, t, h // 2, i]
            near(outputs[q, t, h, r], total)
            if tokens - 1 - t < K:
                close(states[tokens - 1 - t, q, h, r], np.array(state))


def test_ssm_scan_by_hand() -> None:
    """softplus(ln(e - 1)) = 1, exp(-ln 2) = 1/2: 8 -> 4 + 3 = 7; the states of before are 0."""
    one, two = np.ones((1, 1), np.float32), np.full((1, 1), 2, np.float32)
    dt, a = one * math.log(math.e - 1), -one * math.log(2)
    given = [t.astype(np.float32) for t in (8 * one, 3 * one, dt, a, one, two)]
    close(
        run(made(ops.ssm_scan, *given, np.zeros(1, np.int32), K=3)).reshape(-1),
        np.array([14, 7, 0, 0]),
    )


@pytest.mark.parametrize("bad", [-1, 3])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_ssm_scan_of_a_state_that_is_not_there(bad: int, backend: str) -> None:
    shapes = (2, 1, 1, 3), (1, 1, 1, 2), (1, 1, 2), (1, 1), (2, 1, 1, 2), (2, 1, 1, 2)
    ids = np.array([0, bad], np.int32)
    y = made(ops.ssm_scan, *(uniform(1, *ne) for ne in shapes), ids)
    with pytest.raises(IndexOutOfRange, match=rf"{bad}"):
        compute(y, backend=backend)


def heads_of(x: NDArray[Any], s: int, h: int, per_seq: int) -> NDArray[np.float64]:
    """The tokens of a sequence for one head, from [1, T, H, D]."""
    return wide(x[0, s * per_seq : (s + 1) * per_seq, h])


def test_rwkv_wkv6_is_a_decayed_sum_over_the_past() -> None:
    size, heads, steps, seqs = 3, 2, 4, 2
    k, v, r = (uniform(i, size, heads, steps * seqs) for i in range(3))
    tf, td = uniform(3, size, heads), uniform(4, size, heads, steps * seqs, low=0.5)
    state = uniform(5, size * size * heads, seqs)
    got = run(made(ops.rwkv_wkv6, k, v, r, tf, td, state))[0, 0]
    new = got[steps * seqs :].reshape(seqs, heads, size, size)
    start = wide(state).reshape(seqs, heads, size, size)
    for s, h in np.ndindex(seqs, heads):
        ks, vs, rs, ds = (heads_of(x, s, h, steps) for x in (k, v, r, td))
        for t in range(steps + 1):
            past = start[s, h] * np.prod(ds[:t], axis=0)[:, None]
            for u in range(t):
                past = past + np.outer(ks[u] * np.prod(ds[u + 1 : t], axis=0), vs[u])
            if t < steps:
                now = np.outer(wide(tf[0, 0, h]) * ks[t], vs[t])
                close(got[s * steps + t, h * size : (h + 1) * size], rs[t] @ (past + now))
        close(new[s, h], past)


def test_rwkv_wkv7_multiplies_the_state_by_a_matrix() -> None:
    size, heads, steps, seqs = 3, 2, 4, 2
    r, w, k, v, a, b = (uniform(i, size, heads, steps * seqs) for i in range(6))
    state = uniform(6, size * size * heads, seqs)
    got = run(made(ops.rwkv_wkv7, r, w, k, v, a, b, state))[0, 0]
    new = got[steps * seqs :].reshape(seqs, heads, size, size)
    for s, h in np.ndindex(seqs, heads):
        m = wide(state).reshape(seqs, heads, size, size)[s, h]
        rs, ws, ks, vs, as_, bs = (heads_of(x, s, h, steps) for x in (r, w, k, v, a, b))
        for t in range(steps):
            m = m @ (np.diag(ws[t]) + np.outer(as_[t], bs[t])) + np.outer(vs[t], ks[t])
            close(got[s * steps + t, h * size : (h + 1) * size], m @ rs[t])
        close(new[s, h], m)


@pytest.mark.parametrize("n_gates", [1, 4])
@pytest.mark.parametrize("K", [1, 3, 6])
def test_gated_delta_net_multiplies_the_state_by_a_matrix(n_gates: int, K: int) -> None:
    """(I - beta k k^T) exp(g): two heads of keys for four, one sequence of keys for two."""
    size, heads, steps, seqs = 4, 4, 5, 2
    q, k = uniform(1, size, 2, steps), uniform(2, size, 2, steps, seqs)
    v, g = uniform(3, size, heads, steps, seqs), uniform(4, n_gates, heads, steps, seqs, high=0)
    beta, state = uniform(5, 1, heads, steps, seqs), uniform(6, size, size, heads, seqs)
    got = run(made(ops.gated_delta_net, q, k, v, g, beta, state, K=K)).reshape(-1)
    outputs, states = np.split(got, [v.size])
    outputs, states = outputs.reshape(v.shape), states.reshape(K, *state.shape)
    for s, h in np.ndindex(seqs, heads):
        m = wide(state[s, h])  # [j, i]
        for t in range(steps):
            key, step = wide(k[s, t, h % 2]), float(beta[s, t, h, 0])
            gates = np.diag(np.exp(np.broadcast_to(wide(g[s, t, h]), size)))
            m = m @ gates @ (np.eye(size) - step * np.outer(key, key))
            m = m + step * np.outer(wide(v[s, t, h]), key)
            close(outputs[s, t, h], m @ wide(q[0, t, h % 2]) / 2)
            if steps - 1 - t < K:
                close(states[steps - 1 - t, s, h], m)
    assert (states[steps:] == 0).all()


def test_lightning_indexer() -> None:
    q, k = uniform(1, 3, 2, 4, 2), uniform(2, 3, 1, 5, 2)
    weights, mask = uniform(3, 2, 4, 1, 2), uniform(4, 5, 4).astype(np.float16)
    mask[0, 0, 1, 2] = -np.inf
    k[0, 4] = np.nan  # a key that no token sees
    mask[0, 0, :, 4] = -np.inf
    k[1, 4] = np.inf
    got = run(made(ops.lightning_indexer, q, k, weights, mask))
    assert got.shape == (2, 1, 4, 5)
    for s, t, c in np.ndindex(2, 4, 5):
        if math.isinf(mask[0, 0, t, c]):
            assert got[s, 0, t, c] == -np.inf
            continue
        want = float(mask[0, 0, t, c])
        for h in range(2):
            product = math.fsum(float(q[s, t, h, i]) * float(k[s, c, 0, i]) for i in range(3))
            want += max(product, 0) * float(weights[s, 0, t, h])
        near(got[s, 0, t, c], want)


def comb(mixes: Any, n_iter: int, eps: float = 1e-6) -> Tensor:
    zeros, ones = np.zeros(mixes.shape[-1], np.float32), np.ones(3, np.float32)
    return ops.dsv4_hc_comb(leaf(mixes), leaf(ones), leaf(zeros), eps, n_iter)


def test_mixing_matrices_come_near_doubly_stochastic() -> None:
    m = run(comb(uniform(1, 24, 5, low=-2, high=2), 30))[0]
    close(m.sum(axis=1), np.ones((5, 4)) - 1e-6)  # over sources, the last to be divided by
    np.testing.assert_allclose(m.sum(axis=2), 1, atol=1e-4)


def test_a_mixing_matrix_by_hand() -> None:
    """Logits ln(1 3; 1 1) of 2 streams, times 2 and shifted: softmax, one division by columns."""
    mixes = np.zeros((1, 8), np.float32)
    mixes[0, 4:] = np.log([1, 3, 1, 1]) / 2 - 0.5
    scale, base = np.array([0, 0, 2], np.float32), np.ones(8, np.float32)
    got = run(ops.dsv4_hc_comb(leaf(mixes), leaf(scale), leaf(base), 0.0, 1))
    close(got[0, 0], np.array([[1 / 3, 3 / 5], [2 / 3, 2 / 5]]))


def test_streams_before_and_after_a_layer() -> None:
    n, c, tokens = 5, 3, 2
    x, weights, gate = uniform(1, n, c, tokens), uniform(2, c, tokens), uniform(3, n, c, tokens)
    out, post, mix = uniform(4, n, tokens), uniform(5, c, tokens), uniform(6, c, c, tokens)
    before = run(ops.dsv4_hc_pre(leaf(x), leaf(weights)))[0, 0]
    gated = run(ops.dsv4_hc_pre_gated(leaf(x), leaf(gate), 0.25))[0, 0]
    given = leaf(out), leaf(x), leaf(post)
    after, kept = (run(ops.dsv4_hc_post(*given, m))[0] for m in (leaf(mix), None))
    for t, i in np.ndindex(tokens, n):
        streams = [float(v) for v in x[0, t, :, i]]
        near(before[t, i], sum(v * w for v, w in zip(streams, weights[0, 0, t], strict=True)))
        gates = [1 / (1 + math.exp(-g)) for g in gate[0, t, :, i]]
        near(gated[t, i], sum(v * g for v, g in zip(streams, gates, strict=True)) / 4)
        for d in range(c):
            given_back = float(out[0, 0, t, i]) * float(post[0, 0, t, d])
            near(kept[t, d, i], given_back + streams[d])
            mixed = sum(v * m for v, m in zip(streams, mix[0, t, :, d], strict=True))
            near(after[t, d, i], given_back + mixed)


def test_swiglu_clamp() -> None:
    gate, up = (np.array([values], np.float32) for values in ([9, -9, 1, 2], [-7, 7, 0.5, 3]))
    got = run(ops.swiglu_clamp(leaf(gate), leaf(up), 2.0)).ravel()
    silu = [g / (1 + math.exp(-g)) for g in (2, -9, 1, 2)]
    close(got, np.array(silu) * [-2, 2, 0.5, 2])
