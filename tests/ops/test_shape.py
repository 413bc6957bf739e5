"""concat, repeat, pad, arange and copies, one element at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.conformance.blocks import random_rows
from ggmlpy.conformance.cases.sizes import FLOATS, WRITABLE
from ggmlpy.graph.tensor import Flag, from_bytes
from ggmlpy.graph.types import type_of
from tests.ops.values import leaf, run, uniform

NE = (2, 3, 4, 5)


@pytest.mark.parametrize("dim", range(4))
def test_concat(dim: int) -> None:
    longer = tuple(n + (2 if d == dim else 0) for d, n in enumerate(NE))
    a, b = uniform(1, *NE), uniform(2, *longer)
    got = run(ops.concat(leaf(a), leaf(b), dim))
    axis = 3 - dim
    for index in np.ndindex(got.shape):
        place = list(index)
        source = a
        if place[axis] >= a.shape[axis]:
            place[axis] -= a.shape[axis]
            source = b
        assert got[index] == source[tuple(place)]


def test_repeat() -> None:
    x = uniform(3, *NE)
    got = run(ops.repeat_4d(leaf(x), 4, 3, 12, 10))
    assert got.shape == (10, 12, 3, 4)
    for i3, i2, i1, i0 in np.ndindex(got.shape):
        assert got[i3, i2, i1, i0] == x[i3 % 5, i2 % 4, i1 % 3, i0 % 2]
    like = leaf(uniform(4, 4, 3, 12, 10))
    np.testing.assert_array_equal(run(ops.repeat(leaf(x), like)), got)


def test_pad() -> None:
    x = uniform(5, *NE)
    got = run(ops.pad_ext(leaf(x), 1, 2, 0, 1, 2, 0, 3, 1))
    assert got.shape == (9, 6, 4, 5)
    np.testing.assert_array_equal(got[3:8, 2:6, 0:3, 1:3], x)
    assert np.count_nonzero(got) == np.count_nonzero(x)
    after = run(ops.pad(leaf(x), 1, 0, 2, 0))
    assert after.shape == (5, 6, 3, 3)
    np.testing.assert_array_equal(after[:, :4, :, :2], x)


@pytest.mark.parametrize(
    ("start", "stop", "step"), [(0, 5, 1), (2, 3, 0.25), (5, 0, -2), (0, 1, 3)]
)
def test_arange(start: float, stop: float, step: float) -> None:
    want = []
    value = float(start)
    while (value < stop) if step > 0 else (value > stop):
        want.append(value)
        value += step
    got = run(ops.arange(start, stop, step)).ravel()
    assert got.tolist() == want
    assert math.ceil((stop - start) / step) == len(want)


def test_copies_follow_the_order_of_elements() -> None:
    x = uniform(6, *NE)
    turned = ops.permute(leaf(x), 2, 0, 3, 1)
    flat = run(turned).ravel()
    np.testing.assert_array_equal(run(ops.cont(turned)).ravel(), flat)
    np.testing.assert_array_equal(run(ops.dup(turned)).ravel(), flat)
    assert ops.dup(turned).spec.contiguous
    np.testing.assert_array_equal(run(ops.cont_3d(turned, 10, 4, 3)).ravel(), flat)
    np.testing.assert_array_equal(run(ops.cont_4d(turned, 1, 10, 4, 3)).ravel(), flat)
    np.testing.assert_array_equal(run(ops.cont_2d(turned, 60, 2)).ravel(), flat)
    np.testing.assert_array_equal(run(ops.cont_1d(turned, 120)).ravel(), flat)
    target = leaf(np.zeros((8, 15), np.float32))
    copied = ops.cpy(turned, ops.transpose(target))
    assert copied.view_src is target
    np.testing.assert_array_equal(run(copied).ravel(), flat)


@pytest.mark.parametrize("type", [t for t in WRITABLE if t not in FLOATS])
def test_copies_to_the_same_type_keep_the_blocks(type: str) -> None:
    raw = random_rows(np.random.default_rng(8), type_of(type), 6, 64)
    turned = ops.permute(from_bytes(raw.reshape(-1), type, (64, 2, 3)), 0, 2, 1, 3)
    want = raw.reshape(3, 2, -1).swapaxes(0, 1).tobytes()
    target = from_bytes(bytearray(raw.nbytes), type, (64, 6), flags=Flag.STATE)
    for y in (ops.cont(turned), ops.dup(turned), ops.cast(turned, type), ops.cpy(turned, target)):
        run(y)
        assert y.tobytes() == want


def test_a_copy_fills_its_target_in_place() -> None:
    target = leaf(np.zeros((4, 6), np.float32))
    window = ops.view_2d(target, 2, 3, target.nb[1], target.nb[1] + 8)
    x = uniform(7, 3, 2)
    run(ops.cpy(leaf(x), window))
    want = np.zeros((4, 6), np.float32)
    want[1:4, 2:4] = x.reshape(3, 2)
    np.testing.assert_array_equal(target.numpy(), want)


def test_casts_between_integers_and_floats() -> None:
    x = np.array([-2.9, -0.5, 0.5, 2.9, 1e6], np.float32)
    whole = ops.cast(leaf(x), "i32")
    assert run(whole).ravel().tolist() == [-2, 0, 0, 2, 1_000_000]
    assert run(ops.cast(whole, "f32")).ravel().tolist() == [-2, 0, 0, 2, 1e6]


def test_f32_to_bf16_rounds_to_even() -> None:
    x = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, np.nan, np.inf], np.float32)
    got = run(ops.cast(leaf(x), "bf16")).ravel()
    np.testing.assert_array_equal(got, np.array([1.0, 1.0, 1 + 2**-6, np.nan, np.inf], np.float32))
