"""argsort, top_k, argmax and the reductions on the CPU, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.graph.tensor import from_numpy
from tests.cpu.conftest import VECTOR_ISAS
from tests.cpu.running import run

Floats = NDArray[np.float32]
LENGTHS = [1, 2, 5, 15, 16, 17, 31, 32, 33, 300, 1001]


def rows(n: int, seed: int = 0) -> Floats:
    """Ties, zeros of both signs, infinities and NaN of both signs."""
    rng = np.random.default_rng(seed)
    x = np.round(rng.standard_normal((6, n)) * 3).astype(np.float32)
    x[1] = rng.standard_normal(n)
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40], np.float32)
    x[2] = rng.choice(odd, n)
    x[3] = 0
    x[4] = -np.inf
    return x


def order(x: Floats, descending: bool) -> NDArray[np.int32]:
    key = -x if descending else x
    return np.argsort(key, axis=-1, kind="stable").astype(np.int32)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("n", LENGTHS)
def test_argsort_is_stable(isa: str, n: int) -> None:
    x = rows(n)
    for descending in (False, True):
        got = run(ops.argsort(from_numpy(x), int(descending)), isa, 2)
        np.testing.assert_array_equal(got, order(x, descending))


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(n=st.integers(1, 200), seed=st.integers(0, 1000), data=st.data())
def test_top_k_is_the_start_of_a_descending_argsort(
    isa: str, n: int, seed: int, data: st.DataObject
) -> None:
    x = rows(n, seed)
    k = data.draw(st.integers(1, n))
    got = run(ops.top_k(from_numpy(x), k), isa, 3).reshape(6, k)
    np.testing.assert_array_equal(got, order(x, True)[:, :k])


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("n", LENGTHS)
def test_argmax_takes_the_first(isa: str, n: int) -> None:
    x = rows(n)
    np.testing.assert_array_equal(run(ops.argmax(from_numpy(x)), isa, 2), np.argmax(x, axis=-1))


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("n", LENGTHS)
def test_sums(isa: str, n: int) -> None:
    x = np.random.default_rng(n).uniform(-1, 1, (7, n)).astype(np.float32)
    wide, leaf = x.astype(np.float64), from_numpy(x)
    close = {"rtol": 1e-6, "atol": 2e-7 * np.sqrt(n)}
    np.testing.assert_allclose(run(ops.sum(leaf), isa, 3), [wide.sum()], rtol=1e-6, atol=1e-5)
    sums = run(ops.sum_rows(leaf), isa, 2).reshape(7)
    np.testing.assert_allclose(sums, wide.sum(axis=1), **close)
    means = run(ops.mean(leaf), isa, 2).reshape(7)
    np.testing.assert_allclose(means, wide.mean(axis=1), **close)
    sums_so_far = run(ops.cumsum(leaf), isa, 2)
    np.testing.assert_allclose(sums_so_far, np.cumsum(wide, axis=1), rtol=1.2e-7, atol=1e-15)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_a_nan_is_the_largest_of_its_window(isa: str) -> None:
    for place in np.ndindex(2, 2):
        x = np.arange(16, dtype=np.float32).reshape(4, 4)
        x[place] = np.nan
        got = run(ops.pool_2d(from_numpy(x), 0, 2, 2, 2, 2, 0, 0), isa, 1)
        np.testing.assert_array_equal(got, [[np.nan, 7], [13, 15]])
