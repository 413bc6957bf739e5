"""Copies on the CPU: any strides to any strides, in ne order, bytes kept where types agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.cpu.isa import available
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.tensor import Tensor, from_bytes, from_numpy
from ggmlpy.graph.types import type_of
from tests.cpu.conftest import VECTOR_ISAS, shared_out
from tests.cpu.running import compile_together, run

BEST = available()[0].name
BLOCKS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
NUMPY = {"i8": np.int8, "f16": np.float16, "f32": np.float32, "i32": np.int32, "i64": np.int64}


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    x = numbered((32,), "f32")
    for isa in VECTOR_ISAS:
        blocks = [ops.cast(x, type) for at, type in shared_out(BLOCKS) if at == isa]
        back = [ops.cast(y, "f32") for y in blocks]
        compile_together(isa, [*back, ops.cont(x), ops.cast(x, "f16")])


def numbered(ne: tuple[int, ...], type: str, seed: int = 0) -> Tensor:
    """Random bytes, NaN with payloads among them."""
    n_bytes = math.prod(ne) * type_of(type).type_size
    return from_bytes(np.random.default_rng(seed).integers(0, 256, n_bytes, np.uint8), type, ne)


def strided(draw: st.DrawFn, ne: tuple[int, ...], type: str, seed: int) -> Tensor:
    """A tensor [ne] seen through a permutation and a window."""
    axes = draw(st.permutations(range(4)))
    margins = draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    inner = [ne[axis] + margin for axis, margin in zip(axes, margins, strict=True)]
    whole = numbered(tuple(inner), type, seed)
    permuted = ops.permute(whole, *axes)
    skip = sum(
        draw(st.integers(0, margin)) * nb for margin, nb in zip(margins, whole.nb, strict=True)
    )
    if permuted.nb[0] != type_of(type).type_size:
        return _with_strides(permuted, ne, skip)
    n0, n1, n2, n3 = ne
    return ops.view_4d(permuted, n0, n1, n2, n3, *permuted.nb[1:], skip)


def _with_strides(permuted: Tensor, ne: tuple[int, ...], skip: int) -> Tensor:
    """A window of a tensor whose first dimension is strided: views in order, then permuted."""
    order = np.argsort(permuted.nb, kind="stable")
    _, nb1, nb2, nb3 = (permuted.nb[i] for i in order)
    n0, n1, n2, n3 = (ne[i] for i in order)
    window = ops.view_4d(permuted.root, n0, n1, n2, n3, nb1, nb2, nb3, skip)
    return ops.permute(window, *(int(axis) for axis in order))


def values(x: Tensor) -> NDArray[Any]:
    """The elements as numbers of their size: [ne3, ne2, ne1, ne0]."""
    unsigned = np.dtype(f"u{type_of(x.type).type_size}")
    assert x.root.place is not None
    data = x.root.place.host_bytes[x.view_offs :]
    strides = x.nb[::-1]
    base = np.ndarray((1,), unsigned, buffer=data[: x.spec.n_bytes])
    return np.lib.stride_tricks.as_strided(base, x.ne[::-1], strides)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A source and a target with as many elements, often of other shapes."""
    type = draw(st.sampled_from(["i8", "f16", "bf16", "f32", "i64"]))
    ne = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 17]), min_size=4, max_size=4)))
    other = draw(st.permutations(ne)) if draw(st.booleans()) else ne
    return strided(draw, ne, type, 1), strided(draw, tuple(other), type, 2)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(pair=pairs())
def test_any_strides_to_any_strides(isa: str, pair: tuple[Tensor, Tensor]) -> None:
    source, target = pair
    raw = run(ops.cpy(source, target), isa, 3, raw=True)
    unsigned = np.dtype(f"u{type_of(target.type).type_size}")
    base = np.ndarray((1,), unsigned, buffer=raw)
    got = np.lib.stride_tricks.as_strided(base, target.ne[::-1], target.nb[::-1])
    np.testing.assert_array_equal(got.reshape(-1), values(source).reshape(-1))


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("type", ["i8", "f16", "bf16", "i32", "i64", "q4_0", "q6_K", "iq2_xxs"])
def test_contiguous_copies_keep_bytes(isa: str, type: str) -> None:
    n_bytes = type_of(type).row_bytes(256) * 3 * 5
    raw = np.random.default_rng(3).integers(0, 256, n_bytes, np.uint8)
    x = ops.permute(from_bytes(raw, type, (256, 3, 5)), 0, 2, 1, 3)
    got = run(ops.cont(x), isa, 2, raw=True).reshape(3, 5, -1)
    np.testing.assert_array_equal(got, raw.reshape(5, 3, -1).transpose(1, 0, 2))


def test_a_long_row_is_shared() -> None:
    x = numbered((10_007,), "f32")
    for n_threads in (1, 2, 5):
        got = run(ops.cont(x), BEST, n_threads, raw=True)
        assert x.place is not None
        np.testing.assert_array_equal(got, x.place.host_bytes[: got.size])


@pytest.mark.parametrize("type", ["f32", "f16", "i64", "i8"])
@pytest.mark.parametrize("short", [1, 3, 15, 16])
def test_short_rows_in_one_long_row(type: str, short: int) -> None:
    """Pieces begin and end within rows of x, and within its planes."""
    x = numbered((1501, short, 3, 2), type)
    for source in (ops.transpose(x), ops.permute(x, 1, 0, 3, 2)):
        n = source.spec.n_elements
        for n_threads in (1, 3):
            got = run(ops.cont_1d(source, n), BEST, n_threads, raw=True)
            np.testing.assert_array_equal(got.view(values(source).dtype), values(source).ravel())


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("target", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("source", ["f16", "bf16", "f32"])
def test_floats_round_to_nearest_even(isa: str, source: str, target: str) -> None:
    """Every f16 or bf16, or f32 around the rounding points of f16."""
    bits = np.arange(65536, dtype=np.uint16)
    raw = bits.view(np.uint8)
    if source == "f32":  # just on the middle between two f16, or just above
        halves = bits.view(np.float16)
        with np.errstate(over="ignore", invalid="ignore"):
            middle = halves.astype(np.float32) + np.spacing(halves).astype(np.float32) / 2
            above = np.nextafter(middle, np.float32(np.inf))
        raw = np.where(bits % 3 == 0, above, middle).astype(np.float32).view(np.uint8)
    n = raw.size // type_of(source).type_size
    x = from_bytes(raw, source, (n,))
    got = run(ops.cast(x, target), isa, 2)
    wide = to_float(raw.reshape(1, -1), type_of(source))
    with np.errstate(over="ignore", invalid="ignore"):
        want = to_float(from_float(wide, type_of(target)), type_of(target))[0]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_between_integers_and_floats(isa: str) -> None:
    ints = np.array([0, 1, -1, 2**24 + 1, -(2**31), 2**31 - 1, 12345], np.int32)
    got = run(ops.cast(from_numpy(ints), "f32"), isa, 1)
    np.testing.assert_array_equal(got, ints.astype(np.float32))
    floats = np.array([0.9, -0.9, 1.5, -1.5, 2.0**30, -(2.0**31), 1e-30], np.float32)
    back = run(ops.cast(from_numpy(floats), "i32"), isa, 1)
    np.testing.assert_array_equal(back, floats.astype(np.int32))


@pytest.mark.parametrize(("isa", "type"), shared_out(BLOCKS))
@pytest.mark.parametrize("source", ["f32", "f16", "bf16"])
def test_quantised_copies_are_the_quantisers(isa: str, type: str, source: str) -> None:
    """Out of a permuted source, then back into a permuted target."""
    rng = np.random.default_rng(4)
    raw = from_float(rng.standard_normal((5, 3, 96)).astype(np.float32), type_of(source))
    x = ops.permute(from_bytes(raw.reshape(-1), source, (96, 3, 5)), 0, 2, 1, 3)
    stored = to_float(raw.reshape(5, 3, -1), type_of(source)).transpose(1, 0, 2)
    want = from_float(stored, type_of(type))
    got = run(ops.cast(x, type), isa, 2, raw=True)
    np.testing.assert_array_equal(got, want.reshape(-1))

    blocks = from_bytes(want.reshape(-1), type, (96, 5, 3))
    target = ops.permute(numbered((5, 96, 3), "f32"), 1, 0, 2, 3)
    back = run(ops.cpy(blocks, target), isa, 2)
    np.testing.assert_array_equal(back, to_float(want, type_of(type)))
