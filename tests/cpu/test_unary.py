"""Functions of one tensor on the CPU: over the whole range of f32, and where it ends."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.conformance.cases.sizes import GLU, UNARY
from ggmlpy.graph.tensor import Tensor, from_numpy
from ggmlpy.ops.unary import Unary
from tests.cpu.conftest import VECTOR_ISAS, shared_out
from tests.cpu.running import compile_together, run

FUNCTIONS = (*UNARY, "exp", "expm1", "sqr", "sqrt", "log", "sin", "cos")
# Relative to the result, but never less than of 1: what is cancelled is lost in f32.
TOLERANCE = 6e-7
PLACES = [
    0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, -0.49999997, 1.0, -1.0, 3.0, -3.0,
    8388607.5, -8388607.5, 8388609.0, -8388609.0, 1e-3, -1e-3, 1e-20, -1e-20, 1e-40, -1e-40,
    20.0, -20.0, 87.0, -87.0, 1e4, -1e4, np.inf, -np.inf, np.nan,
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    x = from_numpy(np.ones(3, np.float32))
    for isa in VECTOR_ISAS:
        gates = [getattr(ops, f"{name}_split")(x, x) for at, name in shared_out(GLU) if at == isa]
        functions = [getattr(ops, name)(x) for at, name in shared_out(FUNCTIONS) if at == isa]
        compile_together(isa, [*functions, *gates])


def node(name: str, x: NDArray[np.float32]) -> Tensor:
    made: Tensor = getattr(ops, name)(from_numpy(x))
    return made


def check(name: str, isa: str, x: NDArray[np.float32]) -> None:
    y = node(name, x)
    got = run(y, isa, 2)
    assert y.op is not None
    with np.errstate(all="ignore"):
        want = y.op.reference(x.reshape(1, 1, 1, -1)).reshape(-1).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    finite = np.isfinite(want)
    error = np.abs(got[finite].astype(np.float64) - want[finite])
    limit = TOLERANCE * np.maximum(np.abs(want[finite]), 1)
    worst = int(np.argmax(error / limit))
    assert (error <= limit).all(), f"{x[finite][worst]} -> {got[finite][worst]}"


@pytest.mark.parametrize(("isa", "name"), shared_out(FUNCTIONS))
def test_special_places(isa: str, name: str) -> None:
    check(name, isa, np.array(PLACES, np.float32))


@pytest.mark.parametrize(("isa", "name"), shared_out(FUNCTIONS))
def test_over_the_range(isa: str, name: str) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-span, span, 1500) for span in (1, 10, 90)])
    check(name, isa, x.astype(np.float32))


def test_the_list_is_complete() -> None:
    assert {cls.name for cls in Unary.__subclasses__()} <= set(FUNCTIONS)


@pytest.mark.parametrize(("isa", "name"), shared_out(GLU))
def test_gates_pass_specials_on(isa: str, name: str) -> None:
    """NaN in gate or up shows in the same element, and in no other."""
    rng = np.random.default_rng(1)
    gate, up = rng.standard_normal((2, 37)).astype(np.float32)
    gate[[3, 36]] = np.nan
    up[[8, 35]] = np.nan
    got = run(getattr(ops, f"{name}_split")(from_numpy(gate), from_numpy(up)), isa, 1)
    assert np.isnan(got).nonzero()[0].tolist() == [3, 8, 35, 36]
