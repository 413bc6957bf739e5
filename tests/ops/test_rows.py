"""Gathering and scattering rows, by loops; and ids that point outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.conformance.blocks import random_rows
from ggmlpy.conformance.cases.sizes import QUANTIZED, WRITABLE
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.quants import to_float
from ggmlpy.graph.tensor import Flag, from_bytes, from_numpy
from ggmlpy.graph.types import type_of
from tests.ops.values import blank, integers, leaf, run, uniform


def test_gathers_by_matrix() -> None:
    x = uniform(1, 5, 7, 3, 2)
    ids = np.random.default_rng(2).integers(0, 7, (2, 3, 4)).astype(np.int32)
    got = run(ops.get_rows(leaf(x), leaf(ids)))
    assert got.shape == (2, 3, 4, 5)
    for b, a, i in np.ndindex(ids.shape):
        np.testing.assert_array_equal(got[b, a, i], x[b, a, ids[b, a, i]])


def test_integers_stay_integers() -> None:
    x = np.arange(12, dtype=np.int32).reshape(4, 3) * 100_000_007
    y = ops.get_rows(leaf(x), integers(3, 0))
    assert y.type.name == "i32"
    np.testing.assert_array_equal(run(y)[0, 0], x[[3, 0]])


@pytest.mark.parametrize("bad", [-1, 7, 2**30])
def test_a_row_that_is_not_there(bad: int) -> None:
    y = ops.get_rows(leaf(uniform(3, 5, 7)), integers(0, bad))
    with pytest.raises(IndexOutOfRange, match=rf"get_rows: ids\[1, .* is {bad}: .* from 0 to 6"):
        run(y)


def scattered(dst: NDArray[Any], x: NDArray[Any], ids: NDArray[Any]) -> NDArray[Any]:
    """One element after another, later ones over earlier ones."""
    result = dst.copy()
    for b, a, i, j in np.ndindex(x.shape):
        row = ids[b % ids.shape[0], a % ids.shape[1], i]
        result[b, a, row, j] = x[b, a, i, j]
    return result


@pytest.mark.parametrize("ids_dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("a1", "b1"), [(1, 1), (2, 3), (4, 1)])
@pytest.mark.parametrize("x_dtype", [np.float32, np.float16])
def test_scatters_with_repeated_lists(
    ids_dtype: type, a1: int, b1: int, x_dtype: type[np.generic]
) -> None:
    dst, x = uniform(4, 5, 9, 4, 6), uniform(5, 5, 3, 4, 6).astype(x_dtype)
    rng = np.random.default_rng(6)
    ids = np.array([rng.permutation(9)[:3] for _ in range(a1 * b1)]).reshape(b1, a1, 3)
    target = leaf(dst)
    y = ops.set_rows(target, leaf(x), from_numpy(ids.astype(ids_dtype)))
    assert y.view_src is target
    assert y.src[2] is target
    np.testing.assert_array_equal(run(y), scattered(dst, x, ids))


def test_of_repeated_ids_the_last_wins() -> None:
    x = uniform(7, 4, 5)
    y = ops.set_rows(leaf(np.zeros((3, 4), np.float32)), leaf(x), integers(1, 0, 1, 1, 0))
    np.testing.assert_array_equal(run(y)[0, 0], [x[0, 0, 4], x[0, 0, 3], np.zeros(4)])


@pytest.mark.parametrize("type", WRITABLE)
def test_other_rows_keep_their_bytes(type: str) -> None:
    """Bytes that the quantiser would not write (NaN scales, too) survive next to new rows."""
    before = np.full(blank(type, 64, 6).spec.n_bytes, 0xFF, np.uint8)
    dst = from_bytes(before.copy(), type, (64, 6), flags=Flag.STATE)
    x = leaf(uniform(8, 64, 2))
    y = ops.set_rows(dst, x, integers(4, 1))
    run(y)
    after = np.frombuffer(y.tobytes(), np.uint8).reshape(6, -1)
    np.testing.assert_array_equal(after[[0, 2, 3, 5]], 0xFF)
    want = ops.cast(x, type)
    run(want)
    np.testing.assert_array_equal(
        after[[4, 1]].reshape(-1), np.frombuffer(want.tobytes(), np.uint8)
    )


@pytest.mark.parametrize("bad", [-1, 9])
def test_nothing_is_written_before_the_check(bad: int) -> None:
    dst = leaf(uniform(9, 4, 9))
    before = dst.tobytes()
    y = ops.set_rows(dst, leaf(uniform(10, 4, 3)), integers(0, 5, bad, dtype=np.int64))
    with pytest.raises(IndexOutOfRange, match=rf"set_rows: ids\[2, .* is {bad}: .* from 0 to 8"):
        run(y)
    assert dst.tobytes() == before


def test_a_reader_of_the_result_sees_the_new_rows() -> None:
    cache = leaf(np.zeros((6, 4), np.float32))
    x = uniform(11, 4, 2)
    written = ops.set_rows(cache, leaf(x), integers(5, 2))
    seen = ops.scale(ops.view_2d(written, 4, 3, written.nb[1], 2 * written.nb[1]), 2.0)
    got = run(seen)[0, 0]
    np.testing.assert_array_equal(got, [2 * x[0, 0, 1], np.zeros(4), np.zeros(4)])


@pytest.mark.parametrize("type", QUANTIZED)
def test_quantised_rows_come_out_as_their_floats(type: str) -> None:
    raw = random_rows(np.random.default_rng(12), type_of(type), 5, 256)
    got = run(ops.get_rows(from_bytes(raw, type, (256, 5)), integers(4, 0, 4)))
    want = to_float(raw, type_of(type))[[4, 0, 4]]
    assert want.std() > 0.1
    np.testing.assert_array_equal(got[0, 0], want)
