"""Stored bytes from floats, where the quantiser is our own: iq4_nl."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.errors import ShapeError
from ggmlpy.graph.quants import from_float, has_quantizer, to_float
from ggmlpy.graph.types import IQ4_NL

VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FARTHEST_OFF = 16  # steps: 127 is 14 from the largest value, and d is not quite the first step


def by_loops(x: NDArray[np.float32]) -> bytes:
    """A block, one number after another: the nearest value by trying all."""
    farthest = x[0]
    for number in x:
        if abs(number) > abs(farthest):
            farthest = number
    if abs(farthest) < np.float32(1e-15):
        return bytes(2) + bytes([0x88] * 16)
    scale = np.float32(1) / (farthest / np.float32(-127))
    codes = []
    above = below = np.float32(0)
    for number in x:
        scaled = np.float32(number * scale)
        distances = [abs(float(scaled) - value) for value in VALUES]
        code = max(i for i in range(16) if distances[i] == min(distances))
        codes.append(code)
        w, q = np.float32(number * number), np.float32(VALUES[code])
        above = np.float32(above + np.float32(np.float32(w * q) * number))
        below = np.float32(below + np.float32(np.float32(w * q) * q))
    packed = bytes(codes[i] | codes[i + 16] << 4 for i in range(16))
    return np.float16(above / below).tobytes() + packed


def blocks(n: int) -> NDArray[np.float32]:
    """[n, 32] numbers of -1 to 1 times powers of two, from whole numbers, the same everywhere."""
    mixed = np.arange(32 * n, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(2**32)
    sizes = 2.0 ** (np.arange(n) % 9 - 4)
    unit = (mixed >> np.uint64(8)).astype(np.float64) / 2**23 - 1
    return (unit.reshape(n, 32) * sizes[:, None]).astype(np.float32)


def test_bytes_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [
            blocks(20),
            rng.standard_normal((50, 32)).astype(np.float32),
            rng.integers(-254, 255, (50, 32)).astype(np.float32) / 2,  # ties between values
            np.zeros((1, 32), np.float32),
            np.full((1, 32), -1e-16, np.float32),
            np.full((1, 32), 1e-14, np.float32),
        ]
    )
    x[20, 3], x[20, 9] = 5, -5  # the first of two as far decides
    got = from_float(x, IQ4_NL)
    for row, want in zip(got, map(by_loops, x), strict=True):
        assert row.tobytes() == want


def test_bytes_are_ggmls() -> None:
    """The digest is of what ggml's quantize_row_iq4_nl_ref wrote for the same numbers (x86-64)."""
    digest = hashlib.sha256(from_float(blocks(20_000), IQ4_NL).tobytes()).hexdigest()
    assert digest == "3bba2fa6b729beca59e3006fbb858aa8a96eea0ba7bb93d6c6b0840b73023246"


def test_values_come_back_near() -> None:
    x = blocks(2000)
    back = to_float(from_float(x, IQ4_NL), IQ4_NL)
    step = np.abs(x).max(axis=1, keepdims=True) / 127
    assert (np.abs(back - x) < step * FARTHEST_OFF).all()
    assert np.square(back - x).sum() / np.square(x).sum() < 6e-3
    np.testing.assert_array_equal(to_float(from_float(np.zeros((1, 32)), IQ4_NL), IQ4_NL), 0)


def test_shapes() -> None:
    assert has_quantizer(IQ4_NL)
    x = blocks(12)
    whole = from_float(x.reshape(3, 2, 64), IQ4_NL)
    assert whole.shape == (3, 2, 36)
    np.testing.assert_array_equal(whole.reshape(12, 18), from_float(x, IQ4_NL))
    assert from_float(np.zeros((0, 64), np.float32), IQ4_NL).shape == (0, 36)
    with pytest.raises(ShapeError):
        from_float(np.zeros((2, 40), np.float32), IQ4_NL)
