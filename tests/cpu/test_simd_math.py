"""Elementary functions against float64, and vectors against single numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cpu import simd_kernels as simd

Call = Callable[..., None]
F64 = NDArray[np.float64]
# In the order of simd_kernels.elementary.
ACTIVATIONS = ("exp", "log", "sigmoid", "silu", "tanh", "erf", "gelu", "gelu_quick", "gelu_erf")
NAMES = (*ACTIVATIONS, "sin", "cos")

_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: F64) -> F64:
    y: F64 = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))
    return y


TRUTH: dict[str, Callable[[F64], F64]] = {
    "exp": np.exp,
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "erf": _erf,
    "gelu": gelu,
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "sin": np.sin,
    "cos": np.cos,
}


def run(call: Call, x: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    out = np.zeros((len(NAMES), len(x)), np.float32)
    call(simd.elementary, x, out, len(x))
    return dict(zip(NAMES, out, strict=True))


def ulps(got: NDArray[np.float32], want: F64) -> F64:
    """Errors in units of the last place of f32 at the true value."""
    place = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    return np.abs(got.astype(np.float64) - want) / place


# The most that was seen over these points, rounded up.
@pytest.mark.parametrize(
    ("name", "low", "high", "limit"),
    [
        ("exp", -87.0, 88.7, 2.0),
        ("exp", -103.0, -87.0, 1.0),
        ("log", 1e-38, 100.0, 2.0),
        ("sigmoid", -80.0, 80.0, 4.0),
        ("silu", -80.0, 80.0, 4.0),
        ("tanh", -10.0, 10.0, 3.0),
        ("erf", -5.0, 5.0, 3.0),
        ("sin", -3.0, 3.0, 2.0),
        ("cos", -1.5, 1.5, 2.0),
    ],
)
def test_errors_in_ulps(call: Call, name: str, low: float, high: float, limit: float) -> None:
    x = np.linspace(low, high, 40_000).astype(np.float32)
    worst = ulps(run(call, x)[name], TRUTH[name](x.astype(np.float64))).max()
    assert worst <= limit


@pytest.mark.parametrize("name", ["gelu", "gelu_quick", "gelu_erf", "sin", "cos"])
def test_absolute_errors(call: Call, name: str) -> None:
    """Where tiny results come of cancellation or of a rounded exponent, 1 is the scale."""
    x = np.linspace(-9, 9, 40_000).astype(np.float32)
    want = TRUTH[name](x.astype(np.float64))
    error = np.abs(run(call, x)[name] - want) / np.maximum(1, np.abs(want))
    assert error.max() < 2e-7


def test_angles_of_long_contexts_keep_their_phase(call: Call) -> None:
    x = np.random.default_rng(0).uniform(-2e6, 2e6, 40_000).astype(np.float32)
    got = run(call, x)
    wide = x.astype(np.float64)
    assert np.abs(got["sin"] - np.sin(wide)).max() < 2e-7
    assert np.abs(got["cos"] - np.cos(wide)).max() < 2e-7


def test_limits(call: Call) -> None:
    inf, nan = np.inf, np.nan
    x = np.zeros(16, np.float32)
    x[:10] = [0.0, inf, -inf, nan, 1e30, -1e30, 89.0, -104.0, -0.0, -1.0]
    got = run(call, x)
    want: dict[str, list[float]] = {
        "exp": [1, inf, 0, nan, inf, 0, inf, 0, 1],
        "log": [-inf, inf, nan, nan, 69.07755, nan],
        "sigmoid": [0.5, 1, 0, nan, 1, 0, 1],
        "silu": [0, inf, nan, nan, 1e30, -0.0, 89],
        "tanh": [0, 1, -1, nan, 1, -1, 1, -1, -0.0],
        "erf": [0, 1, -1, nan, 1, -1, 1, -1, -0.0],
        "sin": [0, nan, nan, nan],
        "cos": [1, nan, nan, nan],
    }
    for name, values in want.items():
        expected = np.array(values, np.float32)
        np.testing.assert_array_equal(got[name][: len(values)], expected, err_msg=name)
    assert np.signbit(got["tanh"][8])
    assert np.isnan(got["gelu"][3])


def test_exp_of_denormal_results(call: Call) -> None:
    x = np.linspace(-103.9, -87.4, 1600).astype(np.float32)
    got = run(call, x)["exp"]
    assert (got > 0).all()
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)), rtol=0, atol=2e-45)


def test_single_numbers_go_the_same_steps(call: Call) -> None:
    x = np.random.default_rng(1).standard_normal(512).astype(np.float32) * 10
    x[:8] = [0, np.inf, -np.inf, np.nan, 1e-45, -0.0, 100, -100]
    vectors, single = np.zeros((2, len(NAMES), 512), np.float32)
    call(simd.elementary, x, vectors, 512)
    call(simd.elementary_one_by_one, x, single, 512)
    np.testing.assert_array_equal(np.isnan(vectors), np.isnan(single))
    number = ~np.isnan(single)
    np.testing.assert_array_equal(vectors.view(np.int32)[number], single.view(np.int32)[number])
