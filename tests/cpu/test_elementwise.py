"""Arithmetic on two tensors on the CPU: every way that the second repeats to the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.tensor import Tensor, from_bytes
from ggmlpy.graph.types import type_of
from tests.cpu.conftest import VECTOR_ISAS
from tests.cpu.running import can_run_in_place, compile_together, run

ROUNDING = {"f32": 1e-7, "f16": 1e-3, "bf16": 8e-3}


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    sources = [tensor(np.ones(3), type) for type in ("f32", "f16")]
    nodes = [op(x, x) for op in (ops.add, ops.div, ops.sub) for x in sources]
    for isa in VECTOR_ISAS:
        compile_together(isa, nodes)


def tensor(values: NDArray[Any], type: str) -> Tensor:
    raw = from_float(values.astype(np.float32), type_of(type))
    return from_bytes(raw.reshape(-1), type, values.shape[::-1])


def stored(values: NDArray[Any], type: str) -> NDArray[np.float64]:
    raw = from_float(values.astype(np.float32), type_of(type))
    return to_float(raw, type_of(type)).astype(np.float64)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """ne of b, and how often it repeats."""
    first = draw(st.sampled_from([1, 2, 5, 16, 33, 255, 256, 257, 300, 1024, 1500]))
    rest = draw(st.lists(st.integers(1, 3), min_size=3, max_size=3))
    repeats = draw(st.lists(st.integers(1, 3), min_size=4, max_size=4))
    return [first, *rest], repeats


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    shape=shapes(),
    op=st.sampled_from(["add", "div"]),
    types=st.tuples(*[st.sampled_from(sorted(ROUNDING))] * 2),
    n_threads=st.integers(1, 4),
)
def test_repeats(
    isa: str,
    shape: tuple[list[int], list[int]],
    op: str,
    types: tuple[str, str],
    n_threads: int,
) -> None:
    ne, repeats = shape
    rng = np.random.default_rng(sum(ne))
    a = rng.uniform(0.5, 2, [n * r for n, r in zip(ne, repeats, strict=True)][::-1])
    b = rng.uniform(0.5, 2, ne[::-1])
    y = getattr(ops, op)(tensor(a, types[0]), tensor(b, types[1]))
    got = run(y, isa, n_threads)
    wide, other = stored(a, types[0]), np.tile(stored(b, types[1]), repeats[::-1])
    want = wide + other if op == "add" else wide / other
    np.testing.assert_allclose(got, want.reshape(got.shape), rtol=ROUNDING[types[0]])
    assert can_run_in_place(y)
    assert run(y, isa, 1, in_place=True).tobytes() == got.tobytes()


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_one_tensor_twice(isa: str) -> None:
    x = tensor(np.random.default_rng(0).uniform(1, 2, (3, 70)), "f32")
    np.testing.assert_array_equal(run(ops.div(x, x), isa, 2), 1)
    np.testing.assert_array_equal(run(ops.sub(x, x), isa, 2), 0)
