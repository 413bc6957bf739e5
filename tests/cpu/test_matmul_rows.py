"""mul_mat whose first factor is no weight: cache views and results, in any layout of rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import ggmlpy
from ggmlpy import ops
from ggmlpy.conformance.blocks import random_rows
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import TYPES
from tests.cpu.conftest import ISAS
from tests.cpu.products import each_product, nmse, random_x, run, same_bits

TYPES_READ = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_K", "q6_K")


def state(type: str, ne: tuple[int, int, int, int], seed: int = 0) -> Tensor:
    """A leaf with random rows that may change between runs."""
    rows = random_rows(np.random.default_rng(seed), TYPES[type], ne[1] * ne[2] * ne[3], ne[0])
    leaf = ggmlpy.from_bytes(rows, type, ne)
    leaf.flags = Flag.STATE
    return leaf


def values(tensor: Tensor) -> NDArray[np.float64]:
    """In numpy order, with all four dimensions."""
    return tensor.numpy().astype(np.float64).reshape(tensor.ne[::-1])


def check(a: Tensor, x: Tensor, isa: str = ISAS[0]) -> NDArray[np.float32]:
    """The product of a and x by the kernel, close to the exact one element by element."""
    node = ops.mul_mat(a, x)
    got = run(node, isa).reshape(node.ne[::-1])
    w, v = values(a), values(x)
    for axis in (0, 1):
        w = np.repeat(w, v.shape[axis] // w.shape[axis], axis=axis)
    want = v @ w.swapaxes(2, 3)
    bound = (a.ne[0] / 32 + 8) * 2.0**-24 * (np.abs(v) @ np.abs(w).swapaxes(2, 3))
    assert (np.abs(got - want) <= bound).all()
    if got.size >= 16:
        assert nmse(got, want) < 1e-12
    return got


@each_product(TYPES_READ)
def test_values(isa: str, type: str) -> None:
    block = TYPES[type].block_size
    for k in (1, 15, 16, 31, 33, 64, 172, 1000) if block == 1 else (block, 3 * block):
        for m, n in ((1, 1), (5, 3), (17, 9)):
            check(state(type, (k, m, 1, 1)), ggmlpy.from_numpy(random_x(n, k)), isa)


@each_product(["f32", "f16", "q8_0"])
def test_cache_views(isa: str, type: str) -> None:
    """Keys of some cells of two streams, [d, n_kv, heads, streams], with grouped queries."""
    d, n_head_kv, n_cells, n_streams = 64, 3, 10, 2
    cache = state(type, (d * n_head_kv, n_cells, n_streams, 1))
    row = TYPES[type].row_bytes(d)
    keys = ops.view_4d(
        cache, d, n_head_kv, 7, n_streams, row, cache.nb[1], cache.nb[2], 2 * cache.nb[1]
    )
    keys = ops.permute(keys, 0, 2, 1, 3)  # [d, 7, n_head_kv, n_streams]
    x = ggmlpy.from_numpy(random_x(n_streams, n_head_kv * 4, 5, d))
    check(keys, x, isa)


def test_results_and_transposed_values() -> None:
    """A product of computed tensors: cont of a transposed view times soft_max of scores."""
    n_kv, d, n_tokens = 48, 20, 5
    v = state("f32", (d, n_kv, 1, 1))
    scores = ggmlpy.from_numpy(random_x(n_tokens, n_kv))
    y = ops.mul_mat(ops.cont(ops.transpose(v)), ops.soft_max(scores))
    got = run(y)
    s = scores.numpy().astype(np.float64)
    p = np.exp(s) / np.exp(s).sum(-1, keepdims=True)
    np.testing.assert_allclose(got, p @ v.numpy(), rtol=1e-4, atol=1e-5)


@each_product(["f32", "f16", "q4_0"])
def test_columns_do_not_depend_on_each_other(isa: str, type: str) -> None:
    k = 192 if type == "q4_0" else 172
    a, x = state(type, (k, 19, 1, 1)), random_x(33, k)
    many = run(ops.mul_mat(a, ggmlpy.from_numpy(x)), isa)
    for n in (1, 2, 3, 4, 7):
        few = run(ops.mul_mat(a, ggmlpy.from_numpy(x[20 : 20 + n])), isa)
        same_bits(few, many[20 : 20 + n])


def test_threads_do_not_matter() -> None:
    """Threads share rows across matrices; a row longer than the read-ahead memory goes alone."""
    for k, m in ((64, 11), (20_000, 3)):
        node = ops.mul_mat(state("f16", (k, m, 2, 1)), ggmlpy.from_numpy(random_x(1, 4, 3, k)))
        alone = run(node, n_threads=1)
        for n_threads in (2, 3, 8):
            same_bits(run(node, n_threads=n_threads), alone)


@pytest.mark.parametrize("x_type", ["f32", "f16", "bf16"])
def test_strided_x(x_type: str) -> None:
    whole = state(x_type, (40, 6, 5, 1), seed=3)
    window = ops.view_3d(whole, 37, 5, 4, whole.nb[1], whole.nb[2], whole.nb[1])
    check(state("f16", (37, 9, 1, 1)), window)
    check(state("f16", (37, 9, 1, 1)), ops.permute(window, 0, 2, 1, 3))
    check(state("f32", (5, 9, 1, 1)), ops.transpose(window))


def test_nan_beyond_the_ends_is_not_read() -> None:
    """Neighbours of a window are NaN: the masked tail must not let them in."""
    a = np.full((5, 70), np.nan, np.float32)
    a[:, 3:40] = random_x(5, 37)
    x = np.full((6, 70), np.nan, np.float32)
    x[:, 3:40] = random_x(6, 37, seed=5)
    leaves = [ggmlpy.from_numpy(v) for v in (a, x)]
    views = [ops.view_2d(leaf, 37, leaf.ne[1], leaf.nb[1], 12) for leaf in leaves]
    check(views[0], views[1])


def test_a_state_is_read_again_in_every_run() -> None:
    a = state("f16", (32, 4, 1, 1))
    x = ggmlpy.from_numpy(random_x(2, 32))
    first = check(a, x).copy()
    assert a.place is not None
    a.place.host_bytes[:64] = 0
    second = check(a, x)
    assert not second[..., 0].any()
    same_bits(second[..., 1:], first[..., 1:])
