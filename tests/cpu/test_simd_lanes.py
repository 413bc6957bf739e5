"""Moves between lanes, masks as bits, folded sums, and sines of f64 angles, against numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.cpu import simd_lanes
from tests.cpu.conftest import Call

F32 = NDArray[np.float32]


def tree(x: F32) -> F32:
    """The sum of the last axis, halves added until one is left."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def test_moves(call: Call) -> None:
    x, y = np.arange(16, dtype=np.float32), np.arange(100, 116, dtype=np.float32)
    out = np.zeros((3, 16), np.float32)
    call(simd_lanes.moves, x, y, out)
    together = np.stack([x, y], axis=1).reshape(-1)
    np.testing.assert_array_equal(out[0], together[:16])
    np.testing.assert_array_equal(out[1], together[16:])
    np.testing.assert_array_equal(out[2], x.reshape(8, 2)[:, ::-1].reshape(-1))


def test_bits(call: Call) -> None:
    rng = np.random.default_rng(0)
    for bits in (0, 1, 0x8000, 0xFFFF, *rng.integers(0, 65536, 50).tolist()):
        x = np.where((bits >> np.arange(16)) & 1, 1, -1).astype(np.float32)
        out, chosen = np.zeros(2, np.int64), np.zeros(16, np.float32)
        call(simd_lanes.bits, x, bits, out, chosen)
        assert out[0] == bits
        assert out[1] == (64 if bits == 0 else (bits & -bits).bit_length() - 1)
        np.testing.assert_array_equal(chosen, np.where(x > 0, 2, 3))


def test_folded_sums_are_the_tree_sums(call: Call) -> None:
    x = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)
    out, apart = np.zeros((2, 16), np.float32)
    call(simd_lanes.folds, x, out, apart)
    assert out.tobytes() == tree(x).tobytes()
    assert out.tobytes() == apart.tobytes()


def test_sums_of_transposed_rows_are_the_tree_sums(call: Call) -> None:
    x = np.random.default_rng(4).standard_normal((16, 20)).astype(np.float32)
    out, sums = np.zeros((16, 32), np.float32), np.zeros((8, 16), np.float32)
    call(simd_lanes.columns, x, out, sums)
    np.testing.assert_array_equal(out[:, :16], x[:, :16].T)
    assert not out[:, 16:].any()
    assert sums[0].tobytes() == tree(x[:, :16]).tobytes()


def test_sines_of_wide_angles(call: Call) -> None:
    rng = np.random.default_rng(2)
    for size in (1e-3, 1.0, 100.0, 1e5, 1e8, 1e9):
        angles = rng.uniform(-size, size, 16)
        angles[0] = 0
        steps = rng.uniform(0.5, 2, 16).astype(np.float32)
        out = np.zeros((3, 16), np.float32)
        call(simd_lanes.wide_angles, angles, steps, out)
        np.testing.assert_allclose(out[0], np.sin(angles), rtol=2e-7, atol=1e-7)
        np.testing.assert_allclose(out[1], np.cos(angles), rtol=2e-7, atol=1e-7)
        scaled = (angles * 3.0 + angles) / steps.astype(np.float64)
        np.testing.assert_allclose(out[2], np.sin(scaled), rtol=2e-7, atol=4e-7)


def test_blocks(call: Call) -> None:
    rng = np.random.default_rng(3)
    stride = 5 * 64
    x = rng.integers(-4, 5, (2, 80)).astype(np.float32)  # small integers: sums are exact
    y = rng.integers(-4, 5, (4, 80)).astype(np.float32)
    weights = np.array([3, -2], np.float32)
    out = np.zeros(2 * 80 + 128 + 32 + 128, np.float32)
    call(simd_lanes.blocks, x, y, weights, stride, out)
    stored, products, folds, scaled = np.split(out, [160, 288, 320])
    np.testing.assert_array_equal(stored.reshape(2, 80)[:, :64], x[:, :64])
    lanes = (x[:, None] * y[None]).reshape(2, 4, 5, 16).sum(axis=2)
    np.testing.assert_array_equal(products.reshape(2, 4, 16), lanes)
    np.testing.assert_array_equal(folds.reshape(2, 4, 4), lanes.reshape(2, 4, 4, 4).sum(axis=2))
    want = x[:, :64] + weights[:, None] * y[0, :64]
    np.testing.assert_array_equal(scaled.reshape(2, 64), want)
