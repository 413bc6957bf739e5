"""mul_mat_id: each row of the result is bitwise the product with the matrix that its id picks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ggmlpy
from ggmlpy import ops
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.sched.executable import Executable
from tests.cpu.conftest import ISAS, PRODUCT_ISAS
from tests.cpu.products import (
    WEIGHTS,
    backend,
    block_size,
    check_product,
    dequantized,
    each_product,
    random_x,
    run,
    same_bits,
    weight_bytes,
)

READ_BY_ROWS = ("iq1_m", "iq2_xxs", "iq3_s")  # some of the types that are not repacked
EXPERTS = 6
M = 37


def experts(type: str, k: int) -> tuple[Tensor, NDArray[np.uint8]]:
    """The weight [k, M, EXPERTS] and its bytes by expert and row."""
    raw = weight_bytes(type, EXPERTS * M, k)
    return ggmlpy.from_bytes(raw, type, (k, M, EXPERTS)), raw.reshape(EXPERTS, M, -1)


def picked(n_tokens: int, n_used: int) -> NDArray[np.int32]:
    """Ids [n_tokens, n_used], some experts never, some often, one twice in a row of ids."""
    rng = np.random.default_rng(n_tokens)
    ids = rng.choice([0, 2, 2, 2, 5], (n_tokens, n_used)).astype(np.int32)
    ids[-1] = 3
    return ids


def expected(raw: NDArray[np.uint8], type: str, x: NDArray[np.float32], isa: str) -> NDArray[Any]:
    """[n_experts, n, M]: every row of x [n, k] through every expert, by mul_mat."""
    k = x.shape[-1]
    return np.stack(
        [
            run(
                ops.mul_mat(ggmlpy.from_bytes(one, type, (k, M)), ggmlpy.from_numpy(x)), isa
            ).reshape(len(x), M)
            for one in raw
        ]
    )


@each_product([*WEIGHTS, *READ_BY_ROWS])
def test_rows_are_those_of_mul_mat(isa: str, type: str) -> None:
    k, n_used = 2 * block_size(type), 4
    weight, raw = experts(type, k)
    for n_tokens in (1, 3, 40):
        for n_rows in (1, 2, n_used):
            x = random_x(n_tokens, n_rows, k)
            ids = picked(n_tokens, n_used)
            node = ops.mul_mat_id(weight, ggmlpy.from_numpy(x), ggmlpy.from_numpy(ids))
            node_x = x.reshape(-1, k)
            every = expected(raw, type, node_x, isa).reshape(EXPERTS, n_tokens, n_rows, M)
            token, used = np.ogrid[:n_tokens, :n_used]
            same_bits(run(node, isa), every[ids, token, used % n_rows])


@pytest.mark.parametrize("type", WEIGHTS)
def test_values(type: str) -> None:
    k = 2 * block_size(type)
    weight, raw = experts(type, k)
    x, ids = random_x(7, 1, k), picked(7, 2)
    got = run(ops.mul_mat_id(weight, ggmlpy.from_numpy(x), ggmlpy.from_numpy(ids)))
    w = dequantized(raw, type)
    for token, used in np.ndindex(7, 2):
        check_product(got[token, used][None], w[ids[token, used]], x[token], type)


@pytest.mark.parametrize("type", ["f16", "q4_0", "iq3_s"])
def test_threads_do_not_matter(type: str) -> None:
    weight, _ = experts(type, 256)
    x, ids = ggmlpy.from_numpy(random_x(9, 3, 256)), ggmlpy.from_numpy(picked(9, 3))
    node = ops.mul_mat_id(weight, x, ids)
    alone = run(node, n_threads=1)
    for n_threads in (2, 3, 8):
        same_bits(run(node, n_threads=n_threads), alone)


@pytest.mark.parametrize("type", ["f32", "q8_0", "iq3_s"])
def test_strided_x_and_ids(type: str) -> None:
    """ids as the first columns of wider rows, as a top-k is taken; x permuted."""
    weight, _ = experts(type, 256)
    all_ids = np.array([[1, 4, 9], [0, 5, -3]], np.int32)
    wide = ggmlpy.from_numpy(all_ids)
    ids = ops.view_2d(wide, 2, 2, wide.nb[1], 0)
    x = ops.permute(ggmlpy.from_numpy(random_x(2, 2, 256)), 0, 2, 1, 3)
    got = run(ops.mul_mat_id(weight, x, ids))
    plain_ids = ggmlpy.from_numpy(np.ascontiguousarray(all_ids[:, :2]))
    plain = ggmlpy.from_numpy(np.ascontiguousarray(x.numpy()))
    same_bits(got, run(ops.mul_mat_id(weight, plain, plain_ids)))


@pytest.mark.parametrize("type", ["f32", "q4_K", "iq3_s"])
@pytest.mark.parametrize("bad", [EXPERTS, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("isa", PRODUCT_ISAS)
def test_an_id_out_of_range_is_an_error(isa: str, bad: int, type: str) -> None:
    weight, _ = experts(type, 256)
    ids = np.array([[1, 2], [bad, 0], [3, bad]], np.int32)
    node = ops.mul_mat_id(weight, ggmlpy.from_numpy(random_x(3, 1, 256)), ggmlpy.from_numpy(ids))
    with pytest.raises(IndexOutOfRange, match=f"index {bad} is out of range"):
        run(node, isa)


@pytest.mark.parametrize("type", ["q8_0", "iq3_s"])
def test_rows_without_a_matrix_are_zeros(type: str) -> None:
    """The others are computed as if nothing were wrong."""
    weight, raw = experts(type, 256)
    x = random_x(2, 1, 256)
    ids = np.array([[4, EXPERTS, 4], [-7, 1, 2]], np.int32)
    node = ops.mul_mat_id(weight, ggmlpy.from_numpy(x), ggmlpy.from_numpy(ids))
    executable = Executable(Graph(node), [backend(ISAS[0])])
    for step in range(2):  # the second time over the first one's results
        with pytest.raises(IndexOutOfRange):
            executable.run()
        got = np.frombuffer(executable.raw(node).tobytes(), np.float32).reshape(2, 3, M)
        every = expected(raw, type, x[:, 0], ISAS[0])
        assert not got[0, 1].any() and not got[1, 0].any(), f"run {step}"
        same_bits(got[0, [0, 2]], every[[4, 4], 0])
        same_bits(got[1, 1:], every[[1, 2], 1])


@each_product(["f32", "q8_0", "iq4_nl"])
def test_matrices_that_change_and_lie_apart(isa: str, type: str) -> None:
    """A window of a state: every second matrix, without its first and last rows."""
    raw = weight_bytes(type, EXPERTS * M, 96)
    leaf = ggmlpy.from_bytes(raw, type, (96, M, EXPERTS))
    leaf.flags = Flag.STATE
    window = ops.view_3d(leaf, 96, M - 2, EXPERTS // 2, leaf.nb[1], 2 * leaf.nb[2], leaf.nb[1])
    ids = np.array([[2, 0], [1, 2], [2, 2]], np.int32)
    x = random_x(3, 2, 96)
    w = dequantized(raw, type).reshape(EXPERTS, M, 96)[::2, 1:-1]
    node = ops.mul_mat_id(window, ggmlpy.from_numpy(x), ggmlpy.from_numpy(ids))
    for _ in range(2):
        want = np.einsum("tumk,tuk->tum", w[ids], x.astype(np.float64))
        np.testing.assert_allclose(run(node, isa), want, rtol=1e-5, atol=1e-5)
        assert leaf.place is not None
        leaf.place.host_bytes[: leaf.nb[2]] = 0  # the first matrix
        w[0] = 0
