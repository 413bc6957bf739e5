"""Arithmetic and number formats against numpy, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.backends.cpu.jit import Jit
from tests.cpu import simd_kernels as simd

Call = Callable[..., None]
F32 = NDArray[np.float32]
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        3.4e38,
        -3.4e38,
        0.5,
        -0.5,
        1.5,
        2.5,
        1,
        -1,
        2,
    ],
    np.float32,
)


def same(got: F32, want: F32) -> None:
    """Equal bits, where any NaN equals any other."""
    got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], want.view(np.uint32)[~nan])


def floats(n: int, seed: int) -> F32:
    """All magnitudes, with special values at random places."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(n) * 10.0 ** rng.integers(-8, 8, n)).astype(np.float32)
    where = rng.random(n) < 0.3
    x[where] = rng.choice(SPECIAL, int(where.sum()))
    return x


def test_float_arithmetic(call: Call, jit: Jit) -> None:
    n = 512
    x, y, z = floats(n, 1), floats(n, 2), floats(n, 3)
    out = np.zeros((16, n), np.float32)
    call(simd.float_arithmetic, x, y, z, out, n)
    with np.errstate(all="ignore"):
        same(out[0], x + y)
        same(out[1], x - y)
        same(out[2], x * y)
        same(out[3], x / y)
        if "fma" in jit.isa.has:
            exact = x.astype(np.longdouble) * y.astype(np.longdouble) + z
            same(out[4], exact.astype(np.float32))
        else:
            same(out[4], x * y + z)
        same(out[5], np.where(x > y, x, y))
        same(out[6], np.where(x < y, x, y))
        same(out[7], np.sqrt(x))
        same(out[8], np.abs(x))
        same(out[9], np.copysign(x, y))
        small = np.abs(x) < 2**22
        np.testing.assert_array_equal(out[10][small], np.rint(x)[small])
        same(out[11], np.float32(2) * x - np.float32(1))
        same(out[12], np.where(x < y, x, z))
        same(out[13], np.where(x == y, np.float32(1), y))
        same(out[14], np.where(np.isnan(x), np.float32(7), x))
        same(out[15], np.where(x > np.float32(0.5), x, np.float32(0.5)))


def test_int_arithmetic(call: Call) -> None:
    n = 256
    rng = np.random.default_rng(4)
    x, y = rng.integers(-(2**31), 2**31, (2, n)).astype(np.int32)
    x[:4] = 2**31 - 1, -(2**31) + 1, 0, -1
    out = np.zeros((13, n), np.int32)
    call(simd.int_arithmetic, x, y, out, n)
    want = [x + y, x - y, x * y, x & y, x | y, x ^ y, x << 5]
    want += [(x.view(np.uint32) >> 5).view(np.int32)]
    want += [np.maximum(x, y), np.minimum(x, y), np.abs(x), x & 255, np.where(x < y, x, 3)]
    np.testing.assert_array_equal(out, np.stack(want))


def test_constants(call: Call) -> None:
    out = np.zeros(336, np.uint8)
    call(simd.constants, out, 1000)
    words = out.view(np.int32)
    np.testing.assert_array_equal(out.view(np.float32)[:16], np.full(16, 1.5))
    np.testing.assert_array_equal(words[16:32], np.full(16, 1000))
    np.testing.assert_array_equal(words[32:64], np.zeros(32))
    np.testing.assert_array_equal(words[64:80], np.arange(16))
    assert out.view(np.int64)[40:].tolist() == [142, 6]


def test_every_f16_widens_exactly(call: Call) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    out = np.zeros((2, 65536), np.float32)
    call(simd.widen_f16, bits, out, 65536)
    want = bits.view(np.float16).astype(np.float32)
    same(out[0], want)
    same(out[1], want)


def test_every_bf16_widens_exactly(call: Call) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    out = np.zeros((2, 65536), np.float32)
    call(simd.widen_bf16, bits, out, 65536)
    want = (bits.astype(np.uint32) << 16).view(np.float32)
    same(out[0], want)
    same(out[1], want)


def rounding_cases() -> F32:
    """Every f16, the points half-way between neighbours, one bit to either side, and all sorts."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[1:] + halves[:-1]) / 2
    edges = np.array(
        [65504, 65519.996, 65520, 65536, 1e30, 2.0**-24, 2.0**-25, 2.0**-26], np.float32
    )
    exact = np.concatenate([halves, ties, edges, SPECIAL])
    near = np.concatenate(
        [exact, np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(np.inf))]
    )
    bits = np.random.default_rng(5).integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([near, -near, bits])
    return x[: len(x) // 16 * 16]


def bf16_by_definition(x: F32) -> NDArray[np.uint16]:
    """The nearer of the two neighbours, the even one at a tie, in float64; NaN is NaN."""
    bits = x.view(np.uint32)
    down = bits >> 16
    low = (down << 16).view(np.float32).astype(np.float64)
    up = down + 1
    # Past the largest finite value the next step counts as 2^128, as IEEE rounding has it.
    high = np.where(
        (up & 0x7FFF) == 0x7F80,
        np.copysign(2.0**128, x.astype(np.float64)),
        (up << 16).astype(np.uint32).view(np.float32).astype(np.float64),
    )
    to_low, to_high = np.abs(x - low), np.abs(high - x)
    chosen = np.where((to_high < to_low) | ((to_high == to_low) & (down & 1 == 1)), up, down)
    return np.where(np.isinf(x), down, chosen).astype(np.uint16)


def test_narrowing_rounds_to_nearest_even(call: Call) -> None:
    x = rounding_cases()
    out = np.zeros((4, len(x)), np.uint16)
    call(simd.narrow, x, out, len(x))
    nan = np.isnan(x)
    with np.errstate(all="ignore"):
        half = x.astype(np.float16).view(np.uint16)
        brain = bf16_by_definition(x)
    for got in out[:2]:
        np.testing.assert_array_equal(got[~nan], half[~nan])
        assert np.isnan(got[nan].view(np.float16)).all()
    for got in out[2:]:
        np.testing.assert_array_equal(got[~nan], brain[~nan])
        wide = (got[nan].astype(np.uint32) << 16).view(np.float32)
        assert np.isnan(wide).all()


def test_number_conversions(call: Call) -> None:
    rng = np.random.default_rng(6)
    x = rng.integers(-(2**31), 2**31, 256).astype(np.int32)
    x[:4] = 2**31 - 1, -(2**31), 2**24 + 1, 0
    out = np.zeros((3, 256), np.int32)
    call(simd.number_conversions, x, out, 256)
    f = x.astype(np.float32)
    same(out[0].view(np.float32), f)
    np.testing.assert_array_equal(out[1], (f * np.float32(0.001)).astype(np.int32))
    np.testing.assert_array_equal(out[2], f.view(np.int32))


def tree(values: list[float]) -> np.float32:
    x = np.array(values, np.float32)
    while len(x) > 1:
        half = len(x) // 2
        x = x[:half] + x[half:]
    return np.float32(x[0])


@pytest.mark.parametrize("seed", range(4))
def test_reductions_sum_in_one_order(call: Call, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(16) * 10.0 ** rng.integers(-6, 6, 16)).astype(np.float32)
    y = rng.integers(-(2**31), 2**31, 16).astype(np.int32)
    out = np.zeros(7, np.int32)
    call(simd.reductions, x, y, out)
    got = out.view(np.float32)
    assert got[0] == tree(x.tolist())
    assert got[1] == x.max()
    assert got[2] == x.min()
    assert out[3] == y.sum(dtype=np.int32)
    assert out[4] == y.max()
    assert out[5] == y.min()
    assert got[6] == x[5]
