"""Convolutions and pooling, by loops over single numbers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from ggmlpy import ops
from tests.ops.values import close, leaf, run, uniform

Array = np.ndarray[Any, Any]
STEPS = [(1, 1, 0, 0, 1, 1), (2, 1, 1, 2, 1, 2), (3, 2, 2, 1, 2, 1)]  # s, p, d by axis


def at(x: Array, *index: int) -> float:
    """An element, 0 outside."""
    inside = all(0 <= i < n for i, n in zip(index, x.shape, strict=True))
    return float(x[index]) if inside else 0.0


def size(n: int, k: int, s: int, p: int, d: int) -> int:
    return (n + 2 * p - d * (k - 1) - 1) // s + 1


def convolved(kernel: Array, x: Array, steps: tuple[int, ...]) -> Array:
    """kernel [OC, IC, KH, KW], x [N, IC, H, W]."""
    s0, s1, p0, p1, d0, d1 = steps
    n_out, n_in, kh, kw = kernel.shape
    shape = (len(x), n_out, size(x.shape[2], kh, s1, p1, d1), size(x.shape[3], kw, s0, p0, d0))
    y = np.zeros(shape)
    for n, o, i, j in np.ndindex(shape):
        y[n, o, i, j] = sum(
            kernel[o, c, u, v] * at(x, n, c, i * s1 + u * d1 - p1, j * s0 + v * d0 - p0)
            for c, u, v in product(range(n_in), range(kh), range(kw))
        )
    return y


@pytest.mark.parametrize("steps", STEPS)
def test_convolutions_of_images(steps: tuple[int, ...]) -> None:
    kernel, x = uniform(1, 3, 2, 3, 4), uniform(2, 9, 7, 3, 2)
    want = convolved(kernel, x, steps)
    close(run(ops.conv_2d_direct(leaf(kernel), leaf(x), *steps)), want)
    close(run(ops.conv_2d(leaf(kernel), leaf(x), *steps)), want)


@pytest.mark.parametrize("steps", STEPS)
def test_windows_hold_the_factors_of_a_convolution(steps: tuple[int, ...]) -> None:
    kernel, x = uniform(3, 3, 2, 3, 4), uniform(4, 9, 7, 3, 2)
    s0, s1, p0, p1, d0, d1 = steps
    node = ops.im2col(leaf(kernel), leaf(x), s0, s1, p0, p1, d0, d1, True, "f32")
    windows = run(node)
    products = windows @ kernel.reshape(4, -1).T  # [N, OH, OW, OC]
    close(products.transpose(0, 3, 1, 2), convolved(kernel, x, steps))
    grad = uniform(5, *node.ne)
    ne = (9, 7, 3, 2)
    back = run(ops.im2col_back(leaf(grad), leaf(kernel), ne, s0, s1, p0, p1, d0, d1, True))
    # The gradient is the transposed map: <windows(x), grad> = <x, back(grad)>.
    assert np.isclose((windows * grad).sum(dtype=np.float64), (x * back).sum(), rtol=1e-5)


@pytest.mark.parametrize(("s", "p", "d"), [(1, 0, 1), (2, 2, 1), (1, 3, 2)])
def test_convolutions_of_signals(s: int, p: int, d: int) -> None:
    kernel, x = uniform(6, 3, 4, 5), uniform(7, 11, 4, 2)
    want = convolved(kernel.reshape(5, 4, 1, 3), x.reshape(2, 4, 1, 11), (s, 1, p, 0, d, 1))[
        :, :, 0
    ]
    close(run(ops.conv_1d(leaf(kernel), leaf(x), s, p, d))[0], want)
    single = uniform(8, 3, 1, 4)
    got = run(ops.conv_1d_dw(leaf(single), leaf(x[:, :1][0]), s, p, d))[0, 0]
    for c in range(4):
        of_one = convolved(single[:, c : c + 1], x[:1, :1, c : c + 1], (s, 1, p, 0, d, 1))
        close(got[c], of_one[0, 0, 0])


def test_paddings_of_half_a_kernel_and_steps_of_a_whole_one() -> None:
    kernel, x = uniform(9, 3, 5, 2, 2), uniform(10, 9, 10, 2)
    halves = ops.conv_2d_s1_ph(leaf(kernel), leaf(x))
    close(run(halves), convolved(kernel, x, (1, 1, 1, 2, 1, 1)))
    close(run(ops.conv_2d_sk_p0(leaf(kernel), leaf(x))), convolved(kernel, x, (3, 5, 0, 0, 1, 1)))
    line, signal = uniform(11, 3, 2, 2), uniform(12, 9, 2)
    same = run(ops.conv_1d(leaf(line), leaf(signal), 2, 1, 1))
    close(run(ops.conv_1d_ph(leaf(line), leaf(signal), 2, 1)), same)
    single = uniform(13, 3, 1, 2)
    same = run(ops.conv_1d_dw(leaf(single), leaf(signal), 1, 1, 1))
    close(run(ops.conv_1d_dw_ph(leaf(single), leaf(signal), 1, 1)), same)


@pytest.mark.parametrize("steps", STEPS)
def test_each_channel_by_itself_in_both_layouts(steps: tuple[int, ...]) -> None:
    kernel, x = uniform(14, 3, 2, 1, 3), uniform(15, 9, 7, 3, 2)
    parts = [convolved(kernel[c : c + 1], x[:, c : c + 1], steps) for c in range(3)]
    want = np.concatenate(parts, axis=1)
    close(run(ops.conv_2d_dw_direct(leaf(kernel), leaf(x), *steps)), want)
    close(run(ops.conv_2d_dw(leaf(kernel), leaf(x), *steps)), want)
    by_pixels = ops.permute(leaf(x.transpose(0, 2, 3, 1)), 2, 0, 1, 3)  # [W, H, C, N]
    y = ops.conv_2d_dw_direct(leaf(kernel), by_pixels, *steps)
    close(run(y), want)
    assert y.nb[2] == 4  # the channels of a pixel of the result are side by side too


def test_convolutions_of_volumes() -> None:
    kernel, x = uniform(16, 3, 2, 2, 6), uniform(17, 6, 5, 4, 4)  # 2 channels, 2 volumes, 3 kernels
    s, p, d = (1, 2, 1), (1, 0, 1), (2, 1, 1)
    numbers = (*s, *p, *d)
    shape = [size(x.shape[3 - i], kernel.shape[3 - i], s[i], p[i], d[i]) for i in range(3)]
    want = np.zeros((6, *shape[::-1]))
    for n, o, k, j, i in np.ndindex(2, 3, *shape[::-1]):
        want[n * 3 + o, k, j, i] = sum(
            kernel[o * 2 + c, w, v, u]
            * at(x, n * 2 + c, k * s[2] + w * d[2] - p[2], j * s[1] + v * d[1] - p[1],
                 i * s[0] + u * d[0] - p[0])
            for c, w, v, u in product(range(2), range(2), range(2), range(3))
        )  # fmt: skip
    close(run(ops.conv_3d_direct(leaf(kernel), leaf(x), *numbers, 2, 2, 3)), want)
    close(run(ops.conv_3d(leaf(kernel), leaf(x), 2, *numbers)), want)


@pytest.mark.parametrize("s", [1, 2, 5])
def test_transposed_convolutions(s: int) -> None:
    kernel, x = uniform(18, 3, 2, 4), uniform(19, 7, 4)  # [K, OC, IC], [L, IC]
    want = np.zeros((2, 6 * s + 3))
    for c, o, k, i in np.ndindex(4, 2, 3, 7):
        want[o, i * s + k] += kernel[0, c, o, k] * x[0, 0, c, i]
    close(run(ops.conv_transpose_1d(leaf(kernel), leaf(x), s, 0, 1))[0, 0], want)
    columns = np.zeros((7, 2 * 3))  # [L, OC K]
    for c, o, k, i in np.ndindex(4, 2, 3, 7):
        columns[i, o * 3 + k] += kernel[0, c, o, k] * x[0, 0, c, i]
    added = run(ops.col2im_1d(leaf(columns.astype(np.float32)), s, 2, 1))[0, 0]
    np.testing.assert_allclose(added, want[:, 1:-1], atol=1e-5)
    kernel, x = uniform(20, 3, 2, 2, 3), uniform(21, 4, 5, 3, 2)  # [KW, KH, OC, IC], [W, H, IC, N]
    image = np.zeros((2, 2, 4 * s + 2, 3 * s + 3))
    for n, c, o, v, u, j, i in np.ndindex(2, 3, 2, 2, 3, 5, 4):
        image[n, o, j * s + v, i * s + u] += kernel[c, o, v, u] * x[n, c, j, i]
    close(run(ops.conv_transpose_2d_p0(leaf(kernel), leaf(x), s)), image)


@pytest.mark.parametrize(("k", "s", "p"), [(3, 2, 1), (2, 2, 0), (4, 1, 3)])
def test_pool_1d_ignores_padding(k: int, s: int, p: int) -> None:
    x = uniform(22, 9, 2)
    largest, average = (run(ops.pool_1d(leaf(x), op, k, s, p))[0, 0] for op in (0, 1))
    for row, u in np.ndindex(largest.shape):
        inside = [x[0, 0, row, j] for j in range(u * s - p, u * s - p + k) if 0 <= j < 9]
        assert largest[row, u] == max(inside)
        assert np.isclose(average[row, u], sum(inside) / len(inside), atol=1e-6)


@pytest.mark.parametrize("op", [0, 1])
def test_pool_2d_back_is_the_gradient(op: int) -> None:
    x = uniform(23, 7, 6, 2)
    numbers = (op, 3, 2, 2, 2, 1.0, 0.0)
    y = run(ops.pool_2d(leaf(x), *numbers))
    grad = uniform(24, *y.shape[::-1])
    got = run(ops.pool_2d_back(leaf(grad), leaf(x), *numbers))
    step = 1e-3  # less than elements differ by, mostly
    for index in ((0, 0, 0, 0), (0, 1, 3, 4), (0, 1, 5, 6), (0, 0, 2, 1)):
        moved = [x.copy(), x.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        above, below = (run(ops.pool_2d(leaf(m), *numbers)).astype(np.float64) for m in moved)
        assert np.isclose(got[index], ((above - below) * grad).sum() / (2 * step), atol=2e-3)


def test_the_gradient_of_a_maximum_stays_out_of_the_padding() -> None:
    x, grad = uniform(25, 4, 4), uniform(26, 3, 3)
    x[:] = -np.inf  # all windows are ties, also with what lies outside
    got = run(ops.pool_2d_back(leaf(grad), leaf(x), 0, 2, 2, 2, 2, 1.0, 1.0))[0, 0]
    want = np.zeros((4, 4), np.float32)
    for v, u in np.ndindex(3, 3):
        want[max(0, 2 * v - 1), max(0, 2 * u - 1)] += grad[0, 0, v, u]  # the first inside
    np.testing.assert_array_equal(got, want)
