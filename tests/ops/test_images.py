"""Images, regions, triangles and what rearranges tensors, one element at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.graph.tensor import from_numpy
from tests.ops.values import close, leaf, run, uniform

NE = (2, 3, 4, 5)
Array = np.ndarray[Any, Any]


def test_repeat_back_sums_the_copies() -> None:
    x, like = uniform(1, 4, 3, 12, 10), uniform(2, *NE)
    got = run(ops.repeat_back(leaf(x), leaf(like)))
    want = np.zeros(NE[::-1])
    for index in np.ndindex(x.shape):
        want[tuple(i % n for i, n in zip(index, want.shape, strict=True))] += x[index]
    close(got, want)


def test_pad_circular_goes_on_periodically() -> None:
    x = uniform(3, *NE)
    got = run(ops.pad_ext_circular(leaf(x), 5, 1, 0, 4, 1, 0, 2, 3))
    for i3, i2, i1, i0 in np.ndindex(got.shape):
        assert got[i3, i2, i1, i0] == x[(i3 - 2) % 5, (i2 - 1) % 4, i1 % 3, (i0 - 5) % 2]
    after = run(ops.pad_circular(leaf(x), 1, 0, 2, 0))
    np.testing.assert_array_equal(after[:, 4:, :, 2:], x[:, :2, :, :1])


def test_pad_reflect_1d() -> None:
    got = run(ops.pad_reflect_1d(leaf(np.arange(4, dtype=np.float32)), 3, 2))
    assert got[0, 0, 0].tolist() == [3, 2, 1, 0, 1, 2, 3, 2, 1]


def test_roll() -> None:
    x = uniform(4, *NE)
    got = run(ops.roll(leaf(x), 1, -2, 3, 12))
    for i3, i2, i1, i0 in np.ndindex(x.shape):
        assert got[(i3 + 12) % 5, (i2 + 3) % 4, (i1 - 2) % 3, (i0 + 1) % 2] == x[i3, i2, i1, i0]


def test_fill_rounds_to_the_type() -> None:
    assert set(run(ops.fill(leaf(uniform(5, *NE).astype(np.float16)), 0.1)).flat) == {
        np.float16(0.1)
    }


KEPT: list[Callable[[int, int], bool]] = [  # column, row
    lambda j, i: j >= i,
    lambda j, i: j > i,
    lambda j, i: j <= i,
    lambda j, i: j < i,
]


@pytest.mark.parametrize("kind", range(4))
def test_tri(kind: int) -> None:
    x = uniform(6, 5, 4, 2)
    got = run(ops.tri(leaf(x), kind))
    for _, plane, i, j in np.ndindex(x.shape):
        assert got[0, plane, i, j] == (x[0, plane, i, j] if KEPT[kind](j, i) else 0)


def test_diag() -> None:
    x = uniform(7, 4, 1, 3)
    x[0, 0, 0, 1] = np.nan  # stays in its place
    got = run(ops.diag(leaf(x)))
    for _, plane, i, j in np.ndindex(got.shape):
        want = x[0, plane, 0, i] if i == j else 0
        assert got[0, plane, i, j] == want or math.isnan(want)


def test_solve_tri_solves() -> None:
    a = np.tril(uniform(8, 6, 6, 2, 3)) + 3 * np.eye(6, dtype=np.float32)
    b = uniform(9, 4, 6, 2, 3)
    above = np.triu(np.full((6, 6), np.nan, np.float32), 1)  # is not read
    x = run(ops.solve_tri(leaf(np.where(np.isnan(above), above, a)), leaf(b), True, True, False))
    np.testing.assert_allclose(a.astype(np.float64) @ x, b, atol=1e-6)


def test_out_prod_is_a_sum_of_outer_products() -> None:
    a, b = uniform(10, 4, 3, 1, 2), uniform(11, 5, 3, 2, 4)
    got = run(ops.out_prod(leaf(a), leaf(b)))
    assert got.shape == (4, 2, 5, 4)
    for i3, i2 in np.ndindex(4, 2):
        outer = [np.outer(b[i3, i2, k], a[i3 // 2, 0, k]) for k in range(3)]
        close(got[i3, i2], np.sum(outer, axis=0))


def test_count_equal() -> None:
    a, b = (np.random.default_rng(seed).integers(0, 3, (4, 5)).astype(np.int32) for seed in (1, 2))
    y = ops.count_equal(from_numpy(a), from_numpy(b))
    assert y.type.name == "i64"
    assert run(y).item() == sum(p == q for p, q in zip(a.flat, b.flat, strict=True))


@pytest.mark.parametrize(("to", "masked"), [("inf", -math.inf), ("zero", 0.0)])
def test_diag_masks(to: str, masked: float) -> None:
    x = uniform(12, 5, 4, 2)
    got = run(getattr(ops, f"diag_mask_{to}")(leaf(x), 1))
    for _, plane, i, j in np.ndindex(x.shape):
        assert got[0, plane, i, j] == (masked if j > i + 1 else x[0, plane, i, j])


@pytest.mark.parametrize("op", ["acc", "set"])
def test_regions(op: str) -> None:
    a, b = uniform(13, 5, 4, 3, 2), uniform(14, 2, 3, 2)
    node = leaf(a)
    _, nb1, nb2, nb3 = node.nb
    got = run(getattr(ops, op)(node, leaf(b), nb1, nb2, nb3, 4 * 1 + nb1 + nb2 + nb3))
    want = a.copy()
    want[1, 1:3, 1:4, 1:3] = b[0] + (want[1, 1:3, 1:4, 1:3] if op == "acc" else 0)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(node.numpy().reshape(a.shape), a)  # is not changed


def test_set_with_fewer_dimensions() -> None:
    a = np.arange(12, dtype=np.int32).reshape(3, 4)
    one = run(ops.set_1d(leaf(a), leaf(np.array([-1, -2], np.int32)), 20))
    assert one[0, 0].tolist() == [[0, 1, 2, 3], [4, -1, -2, 7], [8, 9, 10, 11]]
    two = run(ops.set_2d(leaf(a), leaf(np.array([[-1], [-2]], np.int32)), 16, 4))
    assert two[0, 0].tolist() == [[0, -1, 2, 3], [4, -2, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize(("width", "height", "w"), [(4, 4, 2), (5, 3, 4), (7, 8, 3)])
def test_windows_and_back(width: int, height: int, w: int) -> None:
    x = uniform(15, 3, width, height)
    got = run(ops.win_part(leaf(x), w))
    n_across = -(-width // w)
    for window, j, i, c in np.ndindex(got.shape):
        column, row = window % n_across * w + i, window // n_across * w + j
        inside = column < width and row < height
        assert got[window, j, i, c] == (x[0, row, column, c] if inside else 0)
    np.testing.assert_array_equal(run(ops.win_unpart(leaf(got), width, height, w)), x)


def test_relative_positions() -> None:
    x = uniform(16, 3, 7).astype(np.float16)
    y = ops.get_rel_pos(leaf(x), 4, 4)
    assert (y.type.name, y.ne) == ("f16", (3, 4, 4, 1))
    for _, q, k, c in np.ndindex(1, 4, 4, 3):
        assert run(y)[0, q, k, c] == x[0, 0, 3 - k + q, c]


def test_relative_positions_are_added_to_rows_and_columns() -> None:
    a, pw, ph = uniform(17, 9, 4, 2), uniform(18, 3, 2, 2, 2), uniform(19, 3, 2, 2, 2)
    got = run(ops.add_rel_pos(leaf(a), leaf(pw), leaf(ph)))
    for p, i, h, w in product(range(2), range(4), range(3), range(3)):
        want = a[0, p, i, 3 * h + w] + pw[p, i // 2, i % 2, w] + ph[p, i // 2, i % 2, h]
        assert math.isclose(got[0, p, i, 3 * h + w], want, abs_tol=1e-6)


def sampled(x: Array, n: int, kind: str, aligned: bool) -> Array:
    """A row at n positions, by the textbook's formulas."""
    scale = (n - 1) / (len(x) - 1) if aligned and min(n, len(x)) > 1 else n / len(x)
    half = 0 if aligned else 0.5
    row = []
    for i in range(n):
        if kind == "nearest":
            row.append(x[min(int(np.float32(i) / np.float32(scale)), len(x) - 1)])
            continue
        position = (i + half) / scale - half
        first = math.floor(position + 1e-9)
        f = max(position - first, 0)
        if kind == "bilinear":
            taps = {0: 1 - f, 1: f}
        else:
            taps = {k: keys(abs(f - k)) for k in (-1, 0, 1, 2)}
        edges = [min(max(first + k, 0), len(x) - 1) for k in taps]
        row.append(sum(w * x[j] for w, j in zip(taps.values(), edges, strict=True)))
    return np.array(row)


def keys(d: float, a: float = -0.75) -> float:
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("mode", "kind"), [(0, "nearest"), (1, "bilinear"), (2, "bicubic")])
def test_interpolate(mode: int, kind: str, aligned: bool) -> None:
    x = uniform(20, 4, 5, 2)
    for n0, n1 in ((8, 10), (3, 7), (9, 2), (4, 5)):
        got = run(ops.interpolate(leaf(x), n0, n1, 2, 1, mode + 256 * aligned))
        across = np.apply_along_axis(sampled, 3, x.astype(np.float64), n0, kind, aligned)
        want = np.apply_along_axis(sampled, 2, across, n1, kind, aligned)
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_antialiased_rows_keep_a_constant_and_average() -> None:
    x = np.zeros((1, 8), np.float32)
    x[0, 3] = 1
    got = run(ops.interpolate(leaf(x), 2, 1, 1, 1, 1 + 512))[0, 0, 0]
    # Triangles of half width 4 around 2 and 6, over elements at 0.5, 1.5, ...: 3.5 lies at 1.5 and
    # 2.5 from them; weights of the first are those of 0.5 to 5.5 (and of 6 less), summed up.
    first = [max(1 - abs(j + 0.5 - 2) / 4, 0) for j in range(6)]
    assert math.isclose(got[0], first[3] / sum(first), rel_tol=1e-6)
    constant = run(ops.interpolate(leaf(np.full((9, 8), 3, np.float32)), 5, 3, 1, 1, 1 + 512))
    close(constant, np.full_like(constant, 3))


def test_upscale_multiplies_two_dimensions() -> None:
    x = uniform(21, *NE)
    got = run(ops.upscale(leaf(x), 3, 0))
    np.testing.assert_array_equal(got, x.repeat(3, axis=3).repeat(3, axis=2))


@pytest.mark.parametrize("dim", [6, 7])
def test_timestep_embedding(dim: int) -> None:
    steps = np.array([0, 1, 250.5], np.float32)
    got = run(ops.timestep_embedding(leaf(steps), dim, 10_000))[0, 0]
    for row, step in zip(got, steps, strict=True):
        for j in range(3):
            angle = float(step) * 10_000 ** (-j / 3)
            assert math.isclose(row[j], math.cos(angle), abs_tol=1e-6)
            assert math.isclose(row[3 + j], math.sin(angle), abs_tol=1e-6)
        assert row[6:].tolist() == [0] * (dim - 6)
