"""There are no empty tensors: whatever would have no elements is refused when it is made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends import get_backend
from ggmlpy.errors import ArgumentError, ShapeError
from ggmlpy.graph.count import Symbol
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Tensor, from_bytes, from_numpy, zeros
from ggmlpy.graph.types import F32
from ggmlpy.sched.executable import Executable

N = Symbol("n", 5)
NOTHING = np.zeros((3, 0), np.float32)


def x() -> Tensor:
    return zeros("f32", (4, 3))


MADE: dict[str, Callable[[], object]] = {
    "spec": lambda: Spec((0,), F32),
    "spec with strides": lambda: Spec((4, 0), F32, (4, 16, 0, 0)),
    "zeros": lambda: zeros("f32", (4, 0)),
    "zeros, quantised": lambda: zeros("q8_0", (0, 2)),
    "from_numpy": lambda: from_numpy(NOTHING),
    "from_numpy, rows": lambda: from_numpy(NOTHING.T),
    "from_bytes": lambda: from_bytes(np.zeros(0, np.uint8), "f32", (0,)),
    "a count that may be 0": lambda: zeros("f32", (4, N.count - 1)),
    "view_1d": lambda: ops.view_1d(x(), 0, 0),
    "view_2d": lambda: ops.view_2d(x(), 4, 0, 16, 0),
    "view_3d": lambda: ops.view_3d(x(), 4, 1, 0, 16, 16, 0),
    "view_4d": lambda: ops.view_4d(x(), 0, 1, 1, 1, 16, 16, 16, 0),
    "reshape": lambda: ops.reshape_2d(x(), 0, 12),
    "cont": lambda: ops.cont_1d(x(), 0),
    "repeat": lambda: ops.repeat_4d(x(), 4, 0, 1, 1),
    "arange": lambda: ops.arange(1.0, 1.0, 1.0),
    "top_k": lambda: ops.top_k(x(), 0),
    "argsort_top_k": lambda: ops.argsort_top_k(x(), 0),
    "pool_2d": lambda: ops.pool_2d(x(), 0, 5, 5, 1, 1, 0, 0),
    "ssm_conv": lambda: ops.ssm_conv(zeros("f32", (2, 3)), zeros("f32", (4, 3))),
}


@pytest.mark.parametrize("name", MADE)
def test_nothing_empty_can_be_made(name: str) -> None:
    with pytest.raises(ShapeError) as raised:
        MADE[name]()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("ne", [(-1,), (3, -2), (0, 0, 0, 0)])
def test_counts_below_one_are_named(ne: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"counts of at least 1"):
        zeros("f32", ne)


def test_no_run_has_a_count_of_0() -> None:
    y = ops.sqr(zeros("f32", (4, N.count)))
    executable = Executable(Graph(y), [get_backend("reference")])
    with pytest.raises(ArgumentError, match="n"):
        executable.set_counts({N: 0})
