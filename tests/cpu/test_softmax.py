"""soft_max on the CPU: what is masked has no effect, what is not a number shows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor, from_numpy
from tests.cpu.conftest import VECTOR_ISAS
from tests.cpu.running import run

Floats = NDArray[np.float32]


def soft_max(x: Floats, mask: Floats, type: type = np.float16) -> Tensor:
    return ops.soft_max_ext(from_numpy(x), from_numpy(mask.astype(type)), 0.5, 0.0)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("n", [1, 5, 16, 17, 33, 300])
def test_masked_entries_have_no_effect(isa: str, n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((4, n)).astype(np.float32)
    mask = np.where(rng.uniform(size=(4, n)) < 0.5, -np.inf, 0.0).astype(np.float32)
    mask[3] = -np.inf
    poisoned = np.where(np.isinf(mask), np.nan, x).astype(np.float32)
    for type in (np.float16, np.float32):
        got = run(soft_max(poisoned, mask, type), isa, 2)
        assert got.tobytes() == run(soft_max(x, mask, type), isa, 1).tobytes()
        assert (got[np.isinf(mask)] == 0).all()
        seen = ~np.isinf(mask).all(axis=1)
        np.testing.assert_allclose(got.sum(axis=1), seen.astype(float), rtol=1e-6)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_large_scores_do_not_overflow(isa: str) -> None:
    x = np.array([[3e38, 3e38, -3e38], [-3e38, -3e38, -3e38]], np.float32)
    got = run(ops.soft_max(from_numpy(x)), isa, 1)
    np.testing.assert_allclose(got, [[0.5, 0.5, 0], [1 / 3] * 3], rtol=1e-6)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_a_nan_makes_its_row_nan(isa: str) -> None:
    x = np.zeros((3, 20), np.float32)
    x[1, 19] = np.nan
    x[2] = np.nan
    got = run(ops.soft_max(from_numpy(x)), isa, 1)
    assert np.isnan(got).all(axis=1).tolist() == [False, True, True]
    assert not np.isnan(got[0]).any()
