"""rms_norm on the CPU against float64, for awkward lengths, strides and thread counts."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.backends.cpu.kernels.norm import rms_norm_f32
from ggmlpy.backends.cpu.plan import Operand, Plan, make_record
from tests.cpu.conftest import jit_for

F32 = NDArray[np.float32]
GUARD = np.float32(1234.5)


def operand(a: F32) -> Operand:
    """A numpy array of up to four dimensions as kernels see it."""
    ne = a.shape[::-1] + (1,) * (4 - a.ndim)
    strides = a.strides[::-1] + (a.strides[0] * a.shape[0],) * (4 - a.ndim)
    return Operand(a.ctypes.data, ne, strides)


def rms_norm(jit: Jit, x: F32, n_threads: int) -> F32:
    """Runs into the middle of a guarded row, and checks the guards."""
    padded = np.full((*x.shape[:-1], x.shape[-1] + 2), GUARD, np.float32)
    y = padded[..., 1:-1]
    record = make_record(rms_norm_f32, [operand(y), operand(x)], {"eps": 1e-5})
    assert Plan(jit, [rms_norm_f32], [record]).run(n_threads) is None
    assert (padded[..., 0] == GUARD).all()
    assert (padded[..., -1] == GUARD).all()
    return y.copy()


def by_definition(x: F32) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    y: NDArray[np.float64] = wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)
    return y


@pytest.mark.parametrize("n", [1, 5, 16, 17, 31, 300, 4096])
def test_lengths_and_threads(jit: Jit, n: int) -> None:
    x = np.random.default_rng(n).standard_normal((7, n)).astype(np.float32) * 3
    one = rms_norm(jit, x, 1)
    np.testing.assert_allclose(one, by_definition(x), rtol=1e-6, atol=1e-7)
    for n_threads in (2, 3):
        assert rms_norm(jit, x, n_threads).tobytes() == one.tobytes()
    for row in range(7):  # a row alone gives the same bits as a row among others
        assert rms_norm(jit, x[row : row + 1], 1).tobytes() == one[row : row + 1].tobytes()


def test_strided_rows_in_four_dimensions(jit: Jit) -> None:
    whole = np.random.default_rng(0).standard_normal((3, 5, 4, 50)).astype(np.float32)
    x = whole.transpose(1, 0, 2, 3)[:, :, ::2, 3:40]
    np.testing.assert_allclose(rms_norm(jit, x, 2), by_definition(x), rtol=1e-6, atol=1e-7)


def test_more_threads_than_rows() -> None:
    x = np.ones((1, 40), np.float32)
    np.testing.assert_allclose(rms_norm(jit_for("generic"), x, 4), by_definition(x), rtol=1e-6)


def test_special_values(jit: Jit) -> None:
    x = np.zeros((4, 20), np.float32)
    x[1, 3] = np.nan
    x[2, 3] = np.inf
    x[3] = 1e-30
    y = rms_norm(jit, x, 1)
    assert (y[0] == 0).all()
    assert np.isnan(y[1]).all()
    assert np.isnan(y[2, 3])
    assert (y[2, :3] == 0).all()
    np.testing.assert_allclose(y[3], by_definition(x[3]), rtol=1e-6)
