"""Running matrix products on the CPU backend, and what they must give: shared by the tests."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ggmlpy
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.conformance.blocks import random_rows
from ggmlpy.graph.buffer import address_of
from ggmlpy.graph.quants import Bytes, to_float
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import TYPES, TensorType
from tests.cpu.conftest import ISAS, PRODUCT_ISAS

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

FLOATS = ("f32", "f16", "bf16")
QUANTIZED = (
    "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K",
    "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "tq1_0", "tq2_0", "q1_0", "q2_0",
)  # fmt: skip
WEIGHTS = (*FLOATS, *QUANTIZED)
# Every type runs on the best instruction set. What differs on others is the vocabulary
# (test_simd_*.py), not the code of a type: a type of each kind of code runs there, and the most
# different of these on "generic", whose code is longest.
KINDS = (*FLOATS, "q8_0", "q4_0", "q5_1", "q2_K", "q4_K", "q6_K", "iq4_nl", "tq1_0", "q1_0")
TILE_KINDS = ("q8_0", "q4_0", "q2_K", "q4_K", "q6_K", "iq4_nl", "q1_0")  # of what unpacks to int8
GENERIC_KINDS = ("f32", "f16", "q8_0", "q4_K", "iq4_nl")


def each_product(types: Iterable[str], isas: Sequence[str] = PRODUCT_ISAS) -> pytest.MarkDecorator:
    """Decorator: a test of `isa` and `type`, for each of both that can fail by itself."""
    pairs = [(isa, type) for isa in isas for type in types if _can_fail_alone(isa, type)]
    return pytest.mark.parametrize(("isa", "type"), pairs)


def _can_fail_alone(isa: str, type: str) -> bool:
    return isa == PRODUCT_ISAS[0] or type in (GENERIC_KINDS if isa == "generic" else KINDS)


@cache
def backend(isa: str, n_threads: int = 2) -> CpuBackend:
    return CpuBackend(n_threads, isa)


def run(node: Tensor, isa: str = ISAS[0], n_threads: int = 2) -> NDArray[Any]:
    """The node's value from a CPU kernel; a fallback to another backend is a failure."""
    chosen = backend(isa, n_threads)
    assert chosen.supports(node), f"no CPU kernel for {node}"
    return ggmlpy.compute(node, backend=chosen)


def weight_bytes(type: str, m: int, k: int, seed: int = 0) -> Bytes:
    """Random rows [m, row_bytes] that hold every code of the type."""
    return random_rows(np.random.default_rng(seed), TYPES[type], m, k)


def random_x(*shape: int, seed: int = 1) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dequantized(raw: Bytes, type: str) -> F64:
    return to_float(raw, TYPES[type]).astype(np.float64)


def as_multiplied(x: F32, type: str) -> F64:
    """x as a product with weights of this type sees it: in int8 blocks of 32, or as it is."""
    if type in FLOATS:
        return x.astype(np.float64)
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    amax = np.abs(blocks).max(-1, keepdims=True)
    scaled = np.where(amax >= np.float32(2.0**-119), amax, np.float32(np.inf))
    codes = np.rint(blocks * (np.float32(127) / scaled)).astype(np.int8)
    d = np.where(np.isfinite(scaled), amax / np.float32(127), np.float32(0))
    return (codes.astype(np.float64) * d).reshape(x.shape)


def check_product(got: NDArray[Any], w: F64, x: F32, type: str) -> None:
    """Each element of got [n, m] is w [m, k] times x [n, k] up to the rounding of f32 sums.

    The bound is the one for a sum of n terms in any order, n * 2^-24 * sum |w| |x|, with a term
    for each block (quantised) or element (floats) and a few for the scales. Where weights are
    sums of larger numbers (those with minima) their own size is allowed for.
    """
    x64 = as_multiplied(x, type)
    n_terms = x.shape[-1] + 4 if type in FLOATS else x.shape[-1] // 16 + 8
    size = np.abs(x64) @ (np.abs(w) + minimum_size(w, type)).T
    error = np.abs(got - x64 @ w.T)
    bound = n_terms * 2.0**-24 * size
    assert (error <= bound).all(), (
        f"{type}: error {error.max()}, bound {bound.flat[error.argmax()]}"
    )
    if got.size >= 16:  # a few sums alone may all happen to be near zero
        assert nmse(got, x64 @ w.T) < 1e-11
        assert nmse(got, x.astype(np.float64) @ w.T) < (1e-11 if type in FLOATS else 5e-4)


def minimum_size(w: F64, type: str) -> F64 | float:
    """How much larger than |w| the terms are that w is computed from."""
    return np.abs(w).max() if type in ("q4_1", "q5_1", "q2_K", "q4_K", "q5_K") else 0.0


def nmse(got: NDArray[Any], want: F64) -> float:
    return float(np.sum((got - want) ** 2) / np.sum(want**2))


def same_bits(got: NDArray[Any], want: NDArray[Any]) -> None:
    """Equal bits; trailing dimensions of one, which results leave out, do not count."""
    got = got.reshape(want.shape)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def block_size(type: str) -> int:
    found: TensorType = TYPES[type]
    return found.block_size


@contextmanager
def at_the_end_of_a_page(raw: Bytes) -> Iterator[Bytes]:
    """A copy of `raw` whose last byte is a page's; the page after it may not be touched."""
    pages = mmap.mmap(-1, (-(-raw.nbytes // mmap.PAGESIZE) + 1) * mmap.PAGESIZE)
    memory = np.frombuffer(pages, np.uint8)[: -mmap.PAGESIZE]
    stored = memory[len(memory) - raw.nbytes :]
    stored[:] = raw.reshape(-1)
    end = ctypes.c_void_p(address_of(stored) + raw.nbytes)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(end, mmap.PAGESIZE, 0) == 0
    try:
        yield stored.reshape(raw.shape)
    finally:
        libc.mprotect(end, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
