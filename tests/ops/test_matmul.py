"""Products against plain loops over every matrix."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.conformance.blocks import random_rows
from ggmlpy.conformance.cases.sizes import QUANTIZED
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.tensor import from_bytes
from ggmlpy.graph.types import type_of
from tests.ops.values import close, integers, leaf, run, uniform


@pytest.mark.parametrize(
    ("a2", "a3", "r2", "r3"), [(1, 1, 1, 1), (2, 1, 3, 1), (1, 2, 4, 2), (3, 2, 2, 3)]
)
@pytest.mark.parametrize("type", [np.float32, np.float16])
def test_the_weight_is_shared_by_division(
    a2: int, a3: int, r2: int, r3: int, type: type[np.generic]
) -> None:
    weight = uniform(1, 19, 7, a2, a3).astype(type)
    x = uniform(2, 19, 5, a2 * r2, a3 * r3)
    got = run(ops.mul_mat(leaf(weight), leaf(x)))
    assert got.shape == (a3 * r3, a2 * r2, 5, 7)
    for i3, i2, n, m in np.ndindex(got.shape):
        row = weight[i3 // r3, i2 // r2, m].astype(float)
        want = sum(float(w) * float(v) for w, v in zip(row, x[i3, i2, n], strict=True))
        assert got[i3, i2, n, m] == pytest.approx(want, rel=1e-5, abs=1e-6)


def test_permuted_and_transposed_rows() -> None:
    weight, x = uniform(3, 8, 3, 4), uniform(4, 8, 4, 5)
    permuted = ops.permute(leaf(x), 0, 2, 1, 3)  # [8, 5, 4]
    want = np.einsum("hmk,nhk->hnm", weight[0], x[0])
    close(run(ops.mul_mat(leaf(weight), permuted))[0], want)
    turned = ops.mul_mat(leaf(uniform(5, 4, 3)), ops.transpose(leaf(uniform(6, 7, 4))))
    close(run(turned)[0, 0], uniform(6, 7, 4)[0, 0].T @ uniform(5, 4, 3)[0, 0].T)


@pytest.mark.parametrize("type", QUANTIZED)
def test_quantised_weights_are_their_floats(type: str) -> None:
    """The product of the stored values, exactly: nothing is rounded to 8 bits."""
    raw = random_rows(np.random.default_rng(7), type_of(type), 5, 512)
    weight = from_bytes(raw, type, (512, 5))
    x = uniform(8, 512, 3)
    floats = run(ops.get_rows(weight, integers(*range(5))))[0, 0].astype(np.float64)
    assert np.isfinite(floats).all()
    assert 0.1 < floats.std() < 10
    close(run(ops.mul_mat(weight, leaf(x)))[0, 0], x[0, 0].astype(np.float64) @ floats.T)


@pytest.mark.parametrize("n_rows", [1, 2, 4])
def test_each_token_picks_its_experts(n_rows: int) -> None:
    weights, x = uniform(9, 8, 6, 3), uniform(10, 8, n_rows, 5)
    ids = np.array([[0, 2, 1, 2], [1, 1, 0, 2], [2, 0, 0, 1], [0, 1, 2, 2], [1, 2, 2, 0]], np.int32)
    got = run(ops.mul_mat_id(leaf(weights), leaf(x), leaf(ids)))
    assert got.shape == (1, 5, 4, 6)
    for t, u in np.ndindex(5, 4):
        close(got[0, t, u], weights[0, ids[t, u]] @ x[0, t, u % n_rows])


@pytest.mark.parametrize("bad", [-1, 3])
def test_an_expert_that_is_not_there(bad: int) -> None:
    y = ops.mul_mat_id(leaf(uniform(11, 4, 2, 3)), leaf(uniform(12, 4, 1, 2)), integers([0], [bad]))
    with pytest.raises(
        IndexOutOfRange, match=rf"mul_mat_id: .* is {bad}: .* from 0 to 2"
    ) as caught:
        run(y)
    assert "[0, 1, 0, 0]" in str(caught.value)
