"""The judge must see what is wrong: every kind of fault, on its own."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy import from_numpy, ops
from ggmlpy.conformance import judge, nmse
from ggmlpy.conformance.bounds import expect
from ggmlpy.conformance.bounds.expected import Array, Expected
from ggmlpy.graph.tensor import Tensor

ROWS = (4, 8)  # in numpy order


def leaf(seed: int, *shape: int) -> Tensor:
    return from_numpy(np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32))


def product() -> tuple[Tensor, Expected]:
    node = ops.mul_mat(leaf(1, 8, 64), leaf(2, 4, 64))
    return node, expect(node, [source.numpy().reshape(1, 1, -1, 64) for source in node.src])


def right(expected: Expected) -> Array:
    return expected.values.astype(np.float32)


def test_a_right_result_passes() -> None:
    node, expected = product()
    assert judge(node, right(expected), expected) == ""


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 10.0])
def test_one_wrong_element_is_named_in_ne_order(value: float) -> None:
    node, expected = product()
    got = right(expected)
    got[0, 0, 2, 5] = value
    message = judge(node, got, expected)
    assert "1 of 32 elements" in message
    assert "ne [5, 2, 0, 0]" in message
    assert f"{np.float32(value):.9g}" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_belong_in_their_places(value: float) -> None:
    node = ops.neg(leaf(3, 4, 8))
    source = node.src[0].numpy().reshape(1, 1, *ROWS)
    source[0, 0, 1, 1] = value
    expected = expect(node, [source])
    assert judge(node, -source, expected) == ""
    for wrong in (0.5, np.nan if np.isinf(value) else np.inf, -np.inf if value == -np.inf else 1):
        got = -source
        got[0, 0, 1, 1] = wrong
        assert "ne [1, 1, 0, 0]" in judge(node, got, expected)


def test_an_element_may_be_wrong_by_its_error_and_no_more() -> None:
    node, expected = product()
    within, beyond = right(expected), right(expected)
    within[0, 0, 3, 7] += 0.9 * expected.error[0, 0, 3, 7]
    beyond[0, 0, 3, 7] += 1.1 * expected.error[0, 0, 3, 7] + 1e-7
    assert judge(node, within, expected) == ""
    assert "ULP" in judge(node, beyond, expected)


def test_the_error_of_a_sum_grows_with_its_terms_not_with_its_result() -> None:
    """Terms that cancel leave their rounding; a sum of few terms leaves less."""
    x = np.ones((1, 1, 1, 64), np.float32)
    cancelling = x.copy()
    cancelling[..., ::2] = -1
    node = ops.sum_rows(from_numpy(x[0, 0]))
    sums = [expect(node, [values]).error.max() for values in (x, cancelling, x[..., :2])]
    assert sums[2] < sums[1] <= sums[0] < 1e-4
    assert sums[1] > 1e-6


def test_shapes_and_integers_are_exact() -> None:
    node, expected = product()
    assert "shape" in judge(node, right(expected)[:, :, :3], expected)
    chosen = ops.argmax(leaf(4, 4, 8))
    expected = expect(chosen, [chosen.src[0].numpy().reshape(1, 1, *ROWS)])
    assert judge(chosen, expected.values, expected) == ""
    assert "elements are wrong" in judge(chosen, expected.values + 1, expected)


def test_what_a_mask_cuts_off_must_be_exactly_zero() -> None:
    mask = np.zeros(ROWS, np.float32)
    mask[1, 3] = -np.inf
    node = ops.soft_max_ext(leaf(5, *ROWS), from_numpy(mask), 1.0, 0.0)
    expected = expect(node, [source.numpy().reshape(1, 1, *ROWS) for source in node.src])
    got = right(expected)
    assert judge(node, got, expected) == ""
    got[0, 0, 1, 3] = 1e-20
    assert "ne [3, 1, 0, 0]" in judge(node, got, expected)


def test_rows_that_are_not_written_do_not_count() -> None:
    into, rows = leaf(6, 4, 8), from_numpy(np.array([2], np.int64))
    node = ops.set_rows(into, leaf(7, 1, 8), rows)
    sources = [node.src[0].numpy().reshape(1, 1, 1, 8), rows.numpy().reshape(1, 1, 1, 1)]
    expected = expect(node, [*sources, into.numpy().reshape(1, 1, *ROWS)])
    got = right(expected)
    got[0, 0, 0] = 9
    assert judge(node, got, expected) == ""
    got[0, 0, 2, 7] = 9
    assert "ne [7, 2, 0, 0]" in judge(node, got, expected)


def test_nmse_of_zeros() -> None:
    zeros = np.zeros(4, np.float32)
    assert nmse(zeros, zeros) == 0
    assert nmse(zeros + np.float32(1e-30), zeros) == np.inf
