"""Products with bf16 weights by AMX tiles, emulated on the instruction sets of this machine: the
same kernels with vector code in place of the tile instructions. Every row of x goes through tiles,
in an order of sums that is their own.
"""

from __future__ import annotations

import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ggmlpy
from ggmlpy import ops
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.formats.bf16_parts import BLOCK
from ggmlpy.backends.cpu.formats.bf16_tiles import PANELS, STRETCH
from ggmlpy.backends.cpu.simd.amx import CONFIG_BYTES, FILE_BYTES, ROWS
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import TYPES
from tests.cpu.conftest import VECTOR_ISAS
from tests.cpu.products import F32, at_the_end_of_a_page, check_product, random_x, run, same_bits
from tests.cpu.test_amx import emulated

BF16 = TYPES["bf16"]
LEVELS = [name for name in VECTOR_ISAS if name in (VECTOR_ISAS[0], VECTOR_ISAS[-1])]
SIZES = [  # k, m, rows of x
    (BLOCK, ROWS, 1),
    (7, 1, 2),
    (37, 5, 3),
    (64, 40, ROWS),
    (BLOCK * STRETCH + 96, 33, ROWS + 1),
    (BLOCK * STRETCH * 2 + 1, 20, ROWS * PANELS + 6),
]


@cache
def backend(isa: str, n_threads: int = 2) -> CpuBackend:
    return CpuBackend(n_threads, emulated(isa))


def by_tiles(node: Tensor, isa: str = LEVELS[0], n_threads: int = 2) -> F32:
    got: F32 = ggmlpy.compute(node, backend=backend(isa, n_threads))
    return got


def weight(k: int, m: int, n_matrices: int = 1, seed: int = 0) -> tuple[Tensor, F32]:
    """A weight [k, m, n_matrices], and its numbers [m * n_matrices, k]."""
    rng = np.random.default_rng(seed)
    raw = from_float(rng.standard_normal((m * n_matrices, k)).astype(np.float32), BF16)
    return ggmlpy.from_bytes(raw.reshape(-1), "bf16", (k, m, n_matrices)), to_float(raw, BF16)


def cut(x: F32) -> F32:
    """x without the lower half of its bits."""
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


def in_the_order_of_tiles(w: F32, x: F32) -> F32:
    """x [n, k] times w [m, k], rounded to f32 after every step: 16 even and 16 odd products in
    turn, their sum, then that to the sum of earlier blocks; three times, for the parts of x."""
    k = -(-x.shape[1] // BLOCK) * BLOCK
    w, x = (np.pad(a, ((0, 0), (0, k - a.shape[1]))) for a in (w, x))
    sums = []
    for _ in range(3):
        part, total = cut(x), np.zeros((len(x), len(w)), np.float32)
        x = x - part
        for first in range(0, k, BLOCK):
            pair = np.zeros((2, *total.shape), np.float32)
            for i in range(BLOCK):
                pair[i % 2] += part[:, None, first + i] * w[None, :, first + i]
            total += pair[0] + pair[1]
        sums.append(total)
    assert not x.any(), "three parts are not all of it"
    return (sums[2] + sums[1]) + sums[0]


@pytest.mark.parametrize("isa", LEVELS)
def test_sums_have_the_order_of_the_instruction(isa: str) -> None:
    for k, m, n in SIZES:
        tensor, w = weight(k, m)
        x = random_x(n, k)
        got = by_tiles(ops.mul_mat(tensor, ggmlpy.from_numpy(x)), isa)
        same_bits(got, in_the_order_of_tiles(w, x))
        check_product(got.reshape(n, m), w.astype(np.float64), x, "bf16")


@settings(max_examples=30, deadline=None)
@given(k=st.integers(1, 700), m=st.integers(1, 40), n=st.integers(1, 90), data=st.data())
def test_a_row_alone_has_the_bits_it_has_among_many(
    k: int, m: int, n: int, data: st.DataObject
) -> None:
    tensor, _ = weight(k, m)
    x = random_x(n, k)
    many = by_tiles(ops.mul_mat(tensor, ggmlpy.from_numpy(x))).reshape(n, m)
    first = data.draw(st.integers(0, n - 1))
    last = data.draw(st.integers(first + 1, n))
    few = by_tiles(ops.mul_mat(tensor, ggmlpy.from_numpy(x[first:last])))
    same_bits(few, many[first:last])


def test_threads_do_not_matter() -> None:
    node = ops.mul_mat(weight(512, 100)[0], ggmlpy.from_numpy(random_x(70, 512)))
    alone = by_tiles(node, n_threads=1)
    for n_threads in (2, 3):
        same_bits(by_tiles(node, n_threads=n_threads), alone)


def test_rows_went_through_tiles() -> None:
    """One row too. The memory that stands for tiles is at the end of a thread's scratch memory."""
    chosen = CpuBackend(1, emulated(LEVELS[0]))
    node = ops.mul_mat(weight(64, 16)[0], ggmlpy.from_numpy(random_x(1, 64)))
    ggmlpy.compute(node, backend=chosen)
    scratch = chosen._pool.take("scratch", 0)
    tiles = scratch.data[scratch.n_bytes - FILE_BYTES : scratch.n_bytes - CONFIG_BYTES]
    assert tiles.any()


@pytest.mark.parametrize("x_type", ["f16", "bf16"])
def test_x_of_other_types_and_layouts(x_type: str) -> None:
    k, n = 100, 21
    tensor, w = weight(k, 20)
    x = random_x(n, k)
    raw = from_float(x, TYPES[x_type])
    exact = to_float(raw, TYPES[x_type])
    node = ops.mul_mat(tensor, ggmlpy.from_bytes(raw.reshape(-1), x_type, (k, n)))
    same_bits(by_tiles(node), in_the_order_of_tiles(w, exact))
    transposed = ops.transpose(ggmlpy.from_numpy(np.ascontiguousarray(x.T)))
    same_bits(by_tiles(ops.mul_mat(tensor, transposed)), in_the_order_of_tiles(w, x))


@pytest.mark.parametrize("n_rows", [1, 3])
def test_rows_that_do_not_lie_evenly(n_rows: int) -> None:
    """Experts whose tokens have gaps, repeats, and come in threes from one row of x."""
    n_tokens, n_used, n_experts, k, m = 60, 3, 4, BLOCK * STRETCH + 40, 21
    rng = np.random.default_rng(5)
    tensor, w = weight(k, m, n_experts)
    ids = rng.integers(0, n_experts, (n_tokens, n_used)).astype(np.int32)
    ids[:40:2] = 1
    x = random_x(n_tokens, n_rows, k)
    got = by_tiles(ops.mul_mat_id(tensor, ggmlpy.from_numpy(x), ggmlpy.from_numpy(ids)))
    every = in_the_order_of_tiles(w, x.reshape(-1, k)).reshape(n_tokens, n_rows, n_experts, m)
    tokens, used = np.arange(n_tokens)[:, None], np.arange(n_used)
    same_bits(got, every[tokens, used % n_rows, ids])


def test_matrices_that_share_rows_of_x_by_position() -> None:
    k, m = 96, 21
    x = random_x(6, 4, 9, k)  # each of 2 x 2 matrices serves 3 x 2 of them
    rng = np.random.default_rng(0)
    raw = from_float(rng.standard_normal((2 * 2 * m, k)).astype(np.float32), BF16)
    w = to_float(raw, BF16).reshape(2, 2, m, k)
    tensor = ggmlpy.from_bytes(raw.reshape(-1), "bf16", (k, m, 2, 2))
    got = by_tiles(ops.mul_mat(tensor, ggmlpy.from_numpy(x)))
    for i3, i2 in np.ndindex(6, 4):
        same_bits(got[i3, i2], in_the_order_of_tiles(w[i3 // 3, i2 // 2], x[i3, i2]))


@pytest.mark.parametrize("isa", LEVELS)
def test_inf_and_nan_in_x(isa: str) -> None:
    """As IEEE has it, in the elements that they reach and no other. A NaN may have all the bits
    that tell it from inf in the half that is cut off."""
    k, n = 37, 20
    x = random_x(n, k)
    w = np.ones((20, k), np.float32)
    w[7, 36] = np.nan
    w[8, 3] = -2
    w[9, 3] = 0
    raw = from_float(w, BF16)
    x[1, 3], x[17, 3] = np.inf, -np.inf
    x.view(np.uint32)[2, 5] = 0x7F800001
    tensor = ggmlpy.from_bytes(raw.reshape(-1), "bf16", (k, 20))
    got = by_tiles(ops.mul_mat(tensor, ggmlpy.from_numpy(x)), isa)
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float64) @ w.T.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    assert np.isnan(got).sum() == 20 + 20 - 1 + 2
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=1e-4, atol=1e-5)


def test_an_infinite_weight_gives_nan() -> None:
    """Where IEEE has inf: it is multiplied with parts of x that are zero."""
    w = np.ones((2, 32), np.float32)
    w[0, 3] = np.inf
    raw = from_float(w, BF16)
    tensor = ggmlpy.from_bytes(raw.reshape(-1), "bf16", (32, 2))
    got = by_tiles(ops.mul_mat(tensor, ggmlpy.from_numpy(np.ones((1, 32), np.float32))))
    assert np.isnan(got.reshape(-1)[0])
    assert got.reshape(-1)[1] == 32


def test_the_largest_and_the_smallest_numbers() -> None:
    """No part of x overflows, and none is lost that instructions can see."""
    largest, smallest = np.finfo(np.float32).max, np.float32(2.0**-100)
    x = np.diag(np.array([largest, -largest, smallest, smallest * 3], np.float32))
    tensor, w = weight(4, 16)
    got = by_tiles(ops.mul_mat(tensor, ggmlpy.from_numpy(x * np.float32(0.25))))
    np.testing.assert_allclose(got, x.diagonal()[:, None] * 0.25 * w.T, rtol=1e-6)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as on Linux")
@pytest.mark.parametrize(("k", "m", "n"), [(37, 5, 1), (37, 17, 20), (64, 16, 1)])
def test_no_byte_past_the_weights_is_touched(k: int, m: int, n: int) -> None:
    _, w = weight(k, m)
    raw, x = from_float(w, BF16), random_x(n, k)
    with at_the_end_of_a_page(raw.reshape(-1).view(np.uint8)) as stored:
        tensor = ggmlpy.from_bytes(stored, "bf16", (k, m))
        got = by_tiles(ops.mul_mat(tensor, ggmlpy.from_numpy(x)))
    same_bits(got, in_the_order_of_tiles(w, x))


@pytest.mark.parametrize("n", [1, 5, 33, 150])
def test_a_bias_and_a_gated_unit(n: int) -> None:
    """The same bits as the nodes one at a time have."""
    x = ggmlpy.from_numpy(random_x(n, 256))
    gate, up, down = (weight(256, m, seed=i)[0] for i, m in enumerate((256, 256, 37)))
    bias = ggmlpy.from_numpy(random_x(37))

    def value(node: Tensor, by: CpuBackend, passes: str) -> NDArray[np.float32]:
        got: NDArray[np.float32] = ggmlpy.compute(node, backend=by, passes=passes)
        return got

    hidden = ops.swiglu_split(ops.mul_mat(gate, x), ops.mul_mat(up, x))
    node = ops.add(ops.mul_mat(down, hidden), bias)
    apart = CpuBackend(2, emulated(LEVELS[0]), share_activations=False)
    fused = value(node, backend(LEVELS[0]), "all")
    same_bits(fused, value(node, apart, "none"))
    np.testing.assert_allclose(fused, run(node), rtol=1e-3, atol=1e-2)
