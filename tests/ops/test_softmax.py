"""soft_max_ext against plain loops, and its edges: masked cells, dead rows, sinks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.errors import ShapeError
from ggmlpy.ops.softmax import alibi_slopes
from tests.ops.values import Floats, close, leaf, run, uniform

INF = math.inf


def by_loops(
    x: Floats, mask: Floats | None, scale: float, slopes: list[float], sinks: list[float] | None
) -> Floats:
    """Sums of exponentials without shifting by the largest: inputs are small."""
    y = np.zeros_like(x)
    for s, h, q in np.ndindex(x.shape[:3]):
        row = []
        for j in range(x.shape[3]):
            score = scale * float(x[s, h, q, j])
            if mask is not None:
                score += slopes[h] * float(mask[s % mask.shape[0], h % mask.shape[1], q, j])
            row.append(math.exp(score))
        total = math.fsum(row) + (math.exp(sinks[h]) if sinks else 0.0)
        y[s, h, q] = [v / total if total else 0.0 for v in row]
    return y


@pytest.mark.parametrize("max_bias", [0.0, 8.0])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("mask_type", [None, np.float16, np.float32])
@pytest.mark.parametrize(("heads", "seqs"), [(1, 1), (3, 2)])
def test_against_loops(
    max_bias: float, with_sinks: bool, mask_type: type | None, heads: int, seqs: int
) -> None:
    x = uniform(1, 9, 4, 6, 2, low=-3, high=3)
    slopes = [2.0 ** -(2 * (h + 1)) for h in range(4)] + [2.0**-1, 2.0**-3]  # of 6 heads
    mask: NDArray[Any] | None = None
    sinks: list[float] | None = None
    if mask_type is not None:
        mask = uniform(2, 9, 5, heads, seqs).astype(mask_type)  # a row more than there are queries
        mask[:, :, 1, ::2] = -INF
        mask[:, 0, 2, :] = -INF  # a dead row
    elif max_bias:
        with pytest.raises(ShapeError, match="above 0 with a mask"):
            ops.soft_max_ext(leaf(x), None, 0.5, max_bias)
        return
    if with_sinks:
        sinks = [-1.0, 0.5, 2.0, -3.0, 1.0, 0.0]
    y = ops.soft_max_ext(leaf(x), None if mask is None else leaf(mask), 0.5, max_bias)
    if sinks is not None:
        assert ops.soft_max_add_sinks(y, leaf(np.array(sinks, np.float32))) is y
    floats = None if mask is None else mask.astype(np.float32)
    close(run(y), by_loops(x, floats, 0.5, slopes if max_bias else [1.0] * 6, sinks))


def test_alibi_slopes_of_the_paper() -> None:
    np.testing.assert_allclose(alibi_slopes(8, 8.0), [2.0**-i for i in range(1, 9)])
    between = [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]
    np.testing.assert_allclose(alibi_slopes(12, 8.0), [2.0**-i for i in range(1, 9)] + between)
    np.testing.assert_array_equal(alibi_slopes(5, 0.0), np.ones(5))


def test_large_scores_do_not_overflow() -> None:
    x = np.array([[[[1e30, 1e30, -1e30, 0.0]]]], np.float32)
    np.testing.assert_array_equal(run(ops.soft_max(leaf(x)))[0, 0, 0], [0.5, 0.5, 0, 0])


@pytest.mark.parametrize("with_sinks", [False, True])
def test_a_row_that_sees_nothing_is_zero(with_sinks: bool) -> None:
    mask = np.zeros((1, 1, 3, 5), np.float16)
    mask[0, 0, 1] = -INF
    y = ops.soft_max_ext(leaf(uniform(3, 5, 3, 2)), leaf(mask), 1.0, 0.0)
    if with_sinks:
        ops.soft_max_add_sinks(y, leaf(np.zeros(2, np.float32)))
    got = run(y)
    np.testing.assert_array_equal(got[:, :, 1], 0)
    assert (got[:, :, [0, 2]] > 0).all()


def test_scores_of_minus_infinity_without_a_mask() -> None:
    x = leaf(uniform(4, 4, 4))
    causal = ops.soft_max(ops.diag_mask_inf(ops.scale(x, 0.5), 0))
    got = run(causal)[0, 0]
    np.testing.assert_array_equal(got[np.triu_indices(4, 1)], 0)
    close(got.sum(axis=1), np.ones(4))
    dead = np.full((1, 1, 1, 4), -INF, np.float32)
    np.testing.assert_array_equal(run(ops.soft_max(leaf(dead))), 0)


@pytest.mark.parametrize("poison", [math.nan, INF, -INF])
def test_what_a_masked_cell_holds_has_no_effect(poison: float) -> None:
    x, mask = uniform(5, 6, 3), np.zeros((1, 1, 3, 6), np.float32)
    mask[..., 2:4] = -INF
    clean = run(ops.soft_max_ext(leaf(x), leaf(mask), 1.0, 0.0))
    x[..., 2:4] = poison
    np.testing.assert_array_equal(run(ops.soft_max_ext(leaf(x), leaf(mask), 1.0, 0.0)), clean)


def test_the_causal_mask() -> None:
    x = uniform(6, 7, 3, 2)
    got = run(ops.diag_mask_inf(leaf(x), 2))
    for q in range(3):
        np.testing.assert_array_equal(got[:, :, q, : q + 3], x[:, :, q, : q + 3])
        assert np.isneginf(got[:, :, q, q + 3 :]).all()
