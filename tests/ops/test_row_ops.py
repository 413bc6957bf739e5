"""Normalisations, reductions, orders and recurrent steps, by plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.errors import IndexOutOfRange
from tests.ops.values import close, leaf, run, uniform


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_row_norms(eps: float) -> None:
    x = uniform(1, 7, 3, 2, 2, low=-3, high=3)
    rms, norm, l2 = (run(f(leaf(x), eps)) for f in (ops.rms_norm, ops.norm, ops.l2_norm))
    for place in np.ndindex(x.shape[:3]):
        row = [float(v) for v in x[place]]
        mean = math.fsum(row) / 7
        square = math.fsum(v * v for v in row)
        variance = math.fsum((v - mean) ** 2 for v in row) / 7
        close(rms[place], np.array(row) / math.sqrt(square / 7 + eps))
        close(norm[place], (np.array(row) - mean) / math.sqrt(variance + eps))
        close(l2[place], np.array(row) / max(math.sqrt(square), eps))


def test_l2_norm_of_a_short_row_is_divided_by_eps() -> None:
    x = np.full((1, 4), 1e-3, np.float32)
    close(run(ops.l2_norm(leaf(x), 0.5)).ravel(), np.full(4, 2e-3))


def test_group_norm_with_a_smaller_last_group() -> None:
    x = uniform(2, 3, 2, 7, 2)
    got = run(ops.group_norm(leaf(x), 3, 1e-5))
    for n in range(2):
        for channels in ([0, 1, 2], [3, 4, 5], [6]):
            group = [float(v) for c in channels for v in x[n, c].ravel()]
            mean = math.fsum(group) / len(group)
            variance = math.fsum((v - mean) ** 2 for v in group) / len(group)
            want = (x[n, channels] - mean) / math.sqrt(variance + 1e-5)
            close(got[n, channels], want)


def test_reductions() -> None:
    x = uniform(3, 5, 4, 3, 2)
    total = run(ops.sum(leaf(x)))
    assert total.shape == (1, 1, 1, 1)
    assert total.item() == pytest.approx(math.fsum(x.ravel().tolist()), rel=1e-6, abs=1e-6)
    rows, means, sums = (run(f(leaf(x))) for f in (ops.sum_rows, ops.mean, ops.cumsum))
    for place in np.ndindex(x.shape[:3]):
        row = [float(v) for v in x[place]]
        assert rows[place].item() == pytest.approx(math.fsum(row), rel=1e-6, abs=1e-6)
        assert means[place].item() == pytest.approx(math.fsum(row) / 5, rel=1e-6, abs=1e-6)
        close(sums[place], np.array([math.fsum(row[: i + 1]) for i in range(5)]))


def test_argmax_takes_the_first_of_equals() -> None:
    x = np.array([[1, 3, 3, 2], [5, 5, 5, 5], [-1, -2, -1, -3], [0, 1, 2, 3]], np.float32)
    assert run(ops.argmax(leaf(x))).ravel().tolist() == [1, 0, 0, 3]


@pytest.mark.parametrize("order", [0, 1])
def test_argsort_is_stable_both_ways(order: int) -> None:
    x = np.round(uniform(4, 50, 3, 2) * 4)  # nine values: many ties
    got = run(ops.argsort(leaf(x), order))
    assert got.dtype == np.int32
    for place in np.ndindex(x.shape[:3]):
        row = x[place].tolist()
        want = sorted(range(50), key=lambda i: (-row[i] if order else row[i], i))
        assert got[place].tolist() == want


@pytest.mark.parametrize("k", [1, 7, 50])
def test_top_k_is_the_head_of_a_descending_argsort(k: int) -> None:
    x = leaf(np.round(uniform(5, 50, 3, 2) * 4))
    head = run(ops.argsort(x, 1))[..., :k]
    np.testing.assert_array_equal(run(ops.top_k(x, k)), head)
    np.testing.assert_array_equal(run(ops.argsort_top_k(x, k)), head)


def test_nan_comes_last() -> None:
    x = leaf(np.array([1, np.nan, 3, -np.inf, np.inf], np.float32))
    assert run(ops.argsort(x, 0)).ravel().tolist() == [3, 0, 2, 4, 1]
    assert run(ops.argsort(x, 1)).ravel().tolist() == [4, 2, 0, 3, 1]
    assert run(ops.top_k(x, 2)).ravel().tolist() == [4, 2]


def test_listed_columns_are_convolved_as_windows_are() -> None:
    """Any columns in any order, of which some are the steps of a window."""
    x, kernel = uniform(6, 9, 3, 1), uniform(7, 4, 3)
    want = run(ops.ssm_conv(leaf(x), leaf(kernel)))  # [1, 1, 6, 3]
    columns = x[0, 0].T[::-1].copy()  # the last step first
    taps = np.array([[8 - t - k for k in range(4)] for t in (5, 0, 2)], np.int32)
    got = run(ops.ssm_conv(leaf(columns), leaf(kernel), taps=leaf(taps)))
    np.testing.assert_array_equal(got[0, 0], want[0, 0, [5, 0, 2]])


def test_a_tap_is_a_column() -> None:
    taps = np.array([[0, 1], [1, 5]], np.int32)
    node = ops.ssm_conv(leaf(uniform(1, 3, 5)), leaf(uniform(2, 2, 3)), taps=leaf(taps))
    with pytest.raises(IndexOutOfRange, match=r"taps\[1, 1, 0, 0\] is 5: it must be from 0 to 4"):
        run(node)


def test_the_short_convolution() -> None:
    x, kernel = uniform(6, 9, 3, 2), uniform(7, 4, 3)
    got = run(ops.ssm_conv(leaf(x), leaf(kernel)))
    assert got.shape == (1, 2, 6, 3)
    for s, t, c in np.ndindex(2, 6, 3):
        want = sum(float(x[0, s, c, t + k]) * float(kernel[0, 0, c, k]) for k in range(4))
        assert got[0, s, t, c] == pytest.approx(want, rel=1e-5, abs=1e-6)


def test_gated_linear_attention_is_a_decayed_sum_over_the_past() -> None:
    """Not step by step: every output as a sum over earlier tokens, with the product of gates."""
    size, heads, steps, seqs = 4, 2, 3, 2
    k, v, q = (uniform(i, size, heads, steps * seqs)[0].astype(np.float64) for i in (8, 9, 10))
    g = uniform(11, size, heads, steps * seqs, low=0.5, high=1)[0].astype(np.float64)
    state = uniform(12, size * size * heads, seqs)
    kt, vt, qt, gt = (leaf(t.astype(np.float32)) for t in (k, v, q, g))
    y = ops.gated_linear_attn(kt, vt, qt, gt, leaf(state), 0.5)
    got = run(y)[0, 0]
    assert got.shape == (steps * seqs + size * seqs, size * heads)
    start = state.reshape(seqs, heads, size, size).astype(np.float64)
    for s, h in np.ndindex(seqs, heads):
        span = slice(s * steps, (s + 1) * steps)
        ks, vs, qs, gs = (t[span, h] for t in (k, v, q, g))
        for t in range(steps):
            past = start[s, h] * np.prod(gs[: t + 1], axis=0)[:, None]
            for u in range(t + 1):
                past = past + np.outer(ks[u] * np.prod(gs[u + 1 : t + 1], axis=0), vs[u])
            close(got[s * steps + t, h * size : (h + 1) * size], 0.5 * qs[t] @ past)
        left = got[steps * seqs :].reshape(seqs, heads, size, size)[s, h]
        close(left, past)


@pytest.mark.parametrize("op", [0, 1])
def test_pooling(op: int) -> None:
    x = uniform(13, 7, 6, 2, 2, low=-3, high=-1)  # below 0: padding with 0 would be the largest
    got = run(ops.pool_2d(leaf(x), op, 3, 2, 2, 3, 1, 1))
    assert got.shape == (2, 2, 3, 4)
    for n, c, v, u in np.ndindex(got.shape):
        cells = [
            float(x[n, c, v * 3 - 1 + j, u * 2 - 1 + i])
            for j in range(2)
            for i in range(3)
            if 0 <= v * 3 - 1 + j < 6 and 0 <= u * 2 - 1 + i < 7
        ]
        want = math.fsum(cells) / 6 if op else max(cells)
        assert got[n, c, v, u] == pytest.approx(want, rel=1e-6)
