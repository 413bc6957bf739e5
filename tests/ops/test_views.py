"""Views against numpy's, and against the memory that they may not leave."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy import ops
from ggmlpy.errors import ShapeError
from ggmlpy.graph.arrays import element_view
from ggmlpy.graph.quants import from_float
from ggmlpy.graph.tensor import from_bytes, from_numpy
from tests.ops.values import leaf, run, uniform

COUNTS = st.integers(1, 6)


@pytest.mark.parametrize("axes", list(itertools.permutations(range(4))))
def test_permute_is_the_inverse_of_numpy_transpose(axes: tuple[int, int, int, int]) -> None:
    x = uniform(1, 2, 3, 4, 5)
    y = ops.permute(leaf(x), *axes)
    # In ne order numpy's transpose takes the source of each dimension; permute says where it goes.
    source_of = [axes.index(d) for d in range(4)]
    in_ne_order = np.transpose(x.T, source_of)
    assert y.ne == in_ne_order.shape
    np.testing.assert_array_equal(run(y), in_ne_order.T)
    np.testing.assert_array_equal(run(ops.cont(y)), in_ne_order.T)


@given(st.permutations(range(4)), st.tuples(COUNTS, COUNTS, COUNTS, COUNTS))
def test_permute_and_back(axes: list[int], ne: tuple[int, int, int, int]) -> None:
    x = leaf(np.zeros(ne[::-1], np.float32))
    back = [axes[d] for d in range(4)]
    inverse = [back.index(d) for d in range(4)]
    there = ops.permute(x, axes[0], axes[1], axes[2], axes[3])
    again = ops.permute(there, inverse[0], inverse[1], inverse[2], inverse[3])
    assert (again.ne, again.nb) == (x.ne, x.nb)
    assert again.view_src is x


def test_transpose_swaps_the_first_two() -> None:
    x = uniform(2, 3, 5, 2)
    y = ops.transpose(leaf(x))
    assert y.ne == (5, 3, 2, 1)
    np.testing.assert_array_equal(run(y), x.swapaxes(2, 3))


@given(st.tuples(COUNTS, COUNTS, COUNTS, COUNTS))
def test_reshape_keeps_the_order(ne: tuple[int, int, int, int]) -> None:
    values = np.arange(np.prod(ne), dtype=np.float32).reshape(ne[::-1])
    x = from_numpy(values)
    flat = ops.reshape_1d(x, values.size)
    np.testing.assert_array_equal(run(flat).ravel(), values.ravel())
    again = ops.reshape_4d(ops.reshape_2d(flat, ne[0] * ne[1], ne[2] * ne[3]), *ne)
    assert (again.ne, again.nb) == (x.ne, x.nb)
    np.testing.assert_array_equal(run(again), values)


def test_view_3d_is_a_strided_window() -> None:
    x = uniform(3, 8, 6, 4)
    t = leaf(x)
    y = ops.view_3d(t, 3, 2, 2, t.nb[1] * 2, t.nb[2] * 3, t.nb[1] + 2 * 4)
    np.testing.assert_array_equal(run(y)[0], x[0, 0:4:3, 1:5:2, 2:5])


def test_views_of_views_lie_in_the_root() -> None:
    x = uniform(4, 10, 6)
    root = leaf(x)
    outer = ops.view_2d(root, 6, 4, root.nb[1], root.nb[1] + 8)
    inner = ops.view_2d(outer, 2, 3, outer.nb[1], outer.nb[1] + 4)
    assert inner.view_src is root
    assert inner.view_offs == 2 * root.nb[1] + 12
    np.testing.assert_array_equal(run(inner)[0, 0], x[0, 0, 2:5, 3:5])


def test_a_view_of_quantised_rows() -> None:
    x = uniform(5, 96, 7)
    stored = from_float(x, ops.cast(leaf(x), "q8_0").type)
    t = from_bytes(stored.reshape(-1), "q8_0", (96, 7))
    y = ops.view_2d(t, 32, 3, t.nb[1] * 2, t.nb[1] + 34)
    np.testing.assert_array_equal(run(y), run(t)[:, :, 1:6:2, 32:64])


@given(
    ne=st.tuples(COUNTS, COUNTS, COUNTS, COUNTS),
    strides=st.tuples(*[st.integers(-1, 40)] * 3),
    offset=st.integers(-1, 30),
    spare=st.integers(-2, 2),
)
def test_a_view_never_leaves_its_source(
    ne: tuple[int, int, int, int], strides: tuple[int, int, int], offset: int, spare: int
) -> None:
    """Allowed exactly if the bytes of every element lie inside: all addresses are tried."""
    reach = sum((count - 1) * s for count, s in zip(ne, (1, *strides), strict=True))
    n = max(1, offset + 1 + reach + spare)
    x = from_numpy(np.arange(n, dtype=np.float32))
    nb = (1, *(s if count > 1 else 0 for s, count in zip(strides, ne[1:], strict=True)))
    places = [
        offset + sum(i * s for i, s in zip(reversed(index), nb, strict=True))
        for index in itertools.product(*(range(count) for count in reversed(ne)))
    ]
    inside = min(strides[d] if ne[d + 1] > 1 else 0 for d in range(3)) >= 0 and all(
        0 <= place < n for place in places
    )
    nb1, nb2, nb3 = (4 * s for s in strides)
    if inside:
        y = ops.view_4d(x, *ne, nb1, nb2, nb3, 4 * offset)
        np.testing.assert_array_equal(run(y).ravel(), places)
    else:
        with pytest.raises(ShapeError):
            ops.view_4d(x, *ne, nb1, nb2, nb3, 4 * offset)


def test_names_follow_the_source() -> None:
    x = from_numpy(np.zeros((2, 3, 4), np.float32), name="Kcur")
    assert ops.view_1d(x, 4, 0).name == "Kcur (view)"
    assert ops.reshape_2d(x, 8, 3).name == "Kcur (reshaped)"
    assert ops.permute(x, 0, 2, 1, 3).name == "Kcur (permuted)"
    assert ops.transpose(x).name == "Kcur (transposed)"
    assert ops.transpose(ops.reshape_2d(x, 8, 3)).name == "Kcur (reshaped) (transposed)"


def test_shape_of_another_tensor() -> None:
    x = leaf(uniform(6, 6, 4))
    assert ops.reshape(x, leaf(uniform(7, 2, 3, 4))).ne == (2, 3, 4, 1)


def test_the_most_elements_that_a_view_may_have() -> None:
    """All are one element: numpy counts their bytes before it looks at strides."""
    x = from_numpy(np.ones(1))
    y = ops.view_4d(x, 1, 2**20, 2**20, 2**19, 0, 0, 0, 0)
    everything = np.broadcast_to(x.numpy(), y.ne[::-1])
    assert element_view(x.array().view(np.uint8), y.spec).shape == everything.shape
