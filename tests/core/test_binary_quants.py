"""q1_0 and q2_0, whose bytes are read and written by our own code: against plain loops and ggml."""

from __future__ import annotations

import hashlib
import math
import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.errors import ShapeError
from ggmlpy.graph.quants import from_float, has_quantizer, to_float
from ggmlpy.graph.types import Q1_0, Q2_0, TensorType

TYPES = (Q1_0, Q2_0)
# Of what ggml's quantize_row_q1_0_ref and quantize_row_q2_0_ref wrote for blocks(5000) (x86-64),
# and of the numbers that dequantize_row_q1_0 and dequantize_row_q2_0 read from codes(5000).
WRITTEN = {
    Q1_0: "4fb4bd6fdf6b719edb477fb000711ef892df08f42e581035c467aeffae8d6323",
    Q2_0: "a192a7aad5abc8bbced683772e0d299672af876c7db329899d9b9a4c09c84eae",
}
READ = {
    Q1_0: "755502623e74a2bde2955c364ea0a6eb57d2ba97f18bf8242146e665e4131536",
    Q2_0: "1b4168d137084e3fdfafd69db9d06042de58a40af29775c0af0ea2cf190e51cf",
}


def written_by_loops(x: NDArray[np.float32], type: TensorType) -> bytes:
    """A block, one number after another."""
    qs = bytearray(16)
    if type is Q1_0:
        total = np.float32(0)
        for i, number in enumerate(x):
            total = np.float32(total + abs(number))
            qs[i // 8] |= int(number >= 0) << i % 8
        return np.float16(total / np.float32(128)).tobytes() + bytes(qs)
    d = max(abs(number) for number in x)
    inverse = np.float32(1) / d if d > 0 else np.float32(0)
    for i, number in enumerate(x):
        ratio = float(np.float32(number * inverse))
        code = int(math.copysign(math.floor(abs(ratio) + 0.5), ratio)) + 1
        qs[i // 4] |= code << i % 4 * 2
    return np.float16(d).tobytes() + bytes(qs)


def read_by_loops(block: bytes, type: TensorType) -> list[float]:
    (d,) = struct.unpack("<e", block[:2])
    if type is Q1_0:
        return [d if block[2 + i // 8] >> i % 8 & 1 else -d for i in range(128)]
    return [((block[2 + i // 4] >> i % 4 * 2 & 3) - 1) * d for i in range(64)]


def mixed(n: int) -> NDArray[np.uint64]:
    """`n` numbers below 2^32, the same everywhere."""
    return np.arange(n, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(2**32)


def blocks(n: int, type: TensorType) -> NDArray[np.float32]:
    """Floats [n, block_size], of -1 to 1 times powers of two."""
    unit = (mixed(n * type.block_size) >> np.uint64(8)).astype(np.float64) / 2**23 - 1
    sizes = 2.0 ** (np.arange(n) % 9 - 4)
    return (unit.reshape(n, type.block_size) * sizes[:, None]).astype(np.float32)


def codes(n: int) -> NDArray[np.uint8]:
    """Stored blocks [n, 18] with every code, and scales of 2^-14 to 2."""
    stored = (mixed(18 * n) >> np.uint64(13)).astype(np.uint8).reshape(n, 18)
    stored[:, 1] = stored[:, 1] % 60 + 4
    return stored


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_bytes_are_those_of_a_plain_loop(type: TensorType) -> None:
    n = type.block_size
    ties = np.random.default_rng(0).integers(-8, 9, (20, n)).astype(np.float32) / 8
    x = np.concatenate([blocks(40, type), ties, np.zeros((1, n), np.float32)])
    x[3, ::2] = -0.0
    for row, number in zip(from_float(x, type), x, strict=True):
        assert row.tobytes() == written_by_loops(number, type)


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_values_are_those_of_a_plain_loop(type: TensorType) -> None:
    stored = codes(200)
    want = np.array([read_by_loops(block.tobytes(), type) for block in stored], np.float32)
    got = to_float(stored, type)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_bits_are_ggmls(type: TensorType) -> None:
    written, read = from_float(blocks(5000, type), type), to_float(codes(5000), type)
    assert hashlib.sha256(written.tobytes()).hexdigest() == WRITTEN[type]
    assert hashlib.sha256(read.tobytes()).hexdigest() == READ[type]


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_scales_beyond_f16(type: TensorType) -> None:
    """Too large a scale is infinite, too small a one is 0, and nothing warns."""
    x = np.tile(np.array([[1e6], [1e-9], [1e-44]], np.float32), (1, type.block_size))
    scales = from_float(x, type)[:, :2].copy().view(np.float16)[:, 0]
    np.testing.assert_array_equal(scales, np.array([np.inf, 0, 0], np.float16))


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_shapes(type: TensorType) -> None:
    assert has_quantizer(type)
    n = type.block_size
    x = blocks(12, type)
    whole = from_float(x.reshape(3, 2, 2 * n), type)
    assert whole.shape == (3, 2, 36)
    np.testing.assert_array_equal(whole.reshape(12, 18), from_float(x, type))
    assert to_float(whole, type).shape == (3, 2, 2 * n)
    assert from_float(np.zeros((0, 2 * n), np.float32), type).shape == (0, 36)
    assert to_float(np.zeros((0, 36), np.uint8), type).shape == (0, 2 * n)
    with pytest.raises(ShapeError):
        from_float(np.zeros((2, n + 32), np.float32), type)
