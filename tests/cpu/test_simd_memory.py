"""Loads, stores, bytes and int8 products against numpy."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

import numpy as np
import pytest

from tests.cpu import simd_kernels as simd
from tests.cpu.conftest import ISAS

Call = Callable[..., None]


def test_integers_of_every_width_unaligned(call: Call) -> None:
    x = np.arange(200, 232, dtype=np.uint8)
    out = np.zeros(72, np.uint8)
    call(simd.scalar_memory, x, out)
    raw = x[1:].tobytes()
    want = [
        int.from_bytes(raw[:1], "little", signed=True),
        int.from_bytes(raw[:1], "little"),
        int.from_bytes(raw[:2], "little", signed=True),
        int.from_bytes(raw[:2], "little"),
        int.from_bytes(raw[:4], "little", signed=True),
        int.from_bytes(raw[:4], "little"),
        int.from_bytes(raw[:8], "little", signed=True),
    ]
    assert out.view(np.int64)[:7].tolist() == want
    stored = bytes(1) + raw[:1] + bytes(1) + raw[:2] + bytes(1) + raw[:4] + bytes(6)
    assert out[56:].tobytes() == stored


@pytest.mark.parametrize("n", [-3, 0, 1, 2, 7, 8, 15, 16, 40])
def test_parts_touch_nothing_past_n(call: Call, n: int) -> None:
    rng = np.random.default_rng(n + 10)
    words = rng.integers(0, 2**31, 16).astype(np.int32)
    halves = rng.standard_normal(16).astype(np.float16)
    bytes_ = rng.integers(0, 256, 16).astype(np.uint8)
    out = np.full(640, 0xA5, np.uint8)
    call(simd.parts, words, halves, bytes_, out, n)
    k = max(0, min(n, 16))

    def first(a: np.ndarray) -> np.ndarray:
        return np.where(np.arange(16) < k, a, 0).astype(a.dtype)

    wide = halves.astype(np.float32)
    brain = (halves.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(out[0:64].view(np.int32), first(words))
    np.testing.assert_array_equal(out[128:144], first(bytes_))
    np.testing.assert_array_equal(out[192:256].view(np.float32), first(wide))
    np.testing.assert_array_equal(out[256:320].view(np.float32), first(brain))
    for start, size, source in (
        (320, 4, words),
        (448, 1, bytes_),
        (512, 2, halves),
        (576, 2, halves),
    ):
        stored = source.view(np.uint8)[: k * size]
        np.testing.assert_array_equal(out[start : start + k * size], stored)
        assert (out[start + k * size : start + 64] == 0xA5).all(), (start, n)


def test_parts_at_the_end_of_a_mapping(call: Call) -> None:
    """The bytes behind the source lie in a page that must not be read."""
    page = mmap.PAGESIZE
    libc_page = mmap.mmap(-1, 2 * page)
    memory = np.frombuffer(libc_page, np.uint8)
    protect_second_page(memory, page)
    out = np.zeros(640, np.uint8)
    for n in range(1, 16):
        words, halves, bytes_ = (memory[page - n * size : page] for size in (4, 2, 1))
        words[:] = 7
        call(simd.parts, words, halves, bytes_, out, n)
        assert (out[: 4 * n] == 7).all()


def protect_second_page(memory: np.ndarray, page: int) -> None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mprotect"):
        pytest.skip("no mprotect on this system")
    start = memory.ctypes.data + page
    assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 0) == 0


def test_lines_past_the_caches(call: Call) -> None:
    x = np.random.default_rng(11).standard_normal(16 * 9).astype(np.float32)
    out = np.zeros(16 * 11, np.float32)
    first = -out.ctypes.data % 64 // 4
    call(simd.past_caches, x, out[first:], 9)
    np.testing.assert_array_equal(out[first : first + len(x)], x)
    assert not out[:first].any() and not out[first + len(x) :].any()


def test_byte_vectors(call: Call) -> None:
    x = np.random.default_rng(7).integers(0, 256, 64).astype(np.uint8)
    out = np.zeros(704, np.uint8)
    call(simd.byte_vectors, x, out)
    b = [out[start : start + 64] for start in range(0, 704, 64)]
    words = x.view(np.int32)
    np.testing.assert_array_equal(b[0], x)
    np.testing.assert_array_equal(b[1], x & 15)
    np.testing.assert_array_equal(b[2], x >> 2 << 5)
    np.testing.assert_array_equal(b[3], x[:16][x & 15])
    np.testing.assert_array_equal(b[4], np.tile(x[3:7], 16))
    np.testing.assert_array_equal(b[5].view(np.int32), x[:16].view(np.int8).astype(np.int32))
    np.testing.assert_array_equal(b[6].view(np.int32), x[:16].astype(np.int32))
    np.testing.assert_array_equal(b[7], x & 0xF0)
    np.testing.assert_array_equal(b[8][:16], words.astype(np.uint8))
    np.testing.assert_array_equal(b[9].view(np.int32), x[:16].view(np.int8).astype(np.int32))
    np.testing.assert_array_equal(b[10].view(np.int32), x[:16].astype(np.int32))


@pytest.mark.parametrize("jit", ISAS, indirect=True)
def test_int8_products_are_exact_at_the_extremes(call: Call) -> None:
    rng = np.random.default_rng(8)
    u = rng.integers(0, 256, (66, 64)).astype(np.uint8)
    s = rng.integers(-128, 128, (66, 64)).astype(np.int8)
    u[0], s[0] = 255, -128
    u[1], s[1] = 255, 127
    u[2], s[2] = 128, -128  # as signed bytes: -128 * -128, twice: 32768 does not fit 16 bits
    acc = rng.integers(-(2**31), 2**31, (66, 16)).astype(np.int32)
    out = np.zeros((3, 66, 16), np.int32)
    call(simd.int8_dots, acc, u, s, out, 66)
    wide = s.astype(np.int32)
    for got, left in zip(out, (u, u.view(np.int8), u & 127), strict=True):
        products = left.astype(np.int32) * wide
        np.testing.assert_array_equal(
            got, acc + products.reshape(66, 16, 4).sum(-1, dtype=np.int32)
        )
