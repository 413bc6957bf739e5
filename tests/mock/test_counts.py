"""Counts that runs set, on devices whose work runs later."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.base import Backend
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.graph.count import Symbol
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, zeros
from ggmlpy.sched.executable import Executable

T = Symbol("T", 6)


def _graph() -> tuple[Tensor, Tensor, Tensor]:
    """x [4, T] is squared on the device, and so is a sum of it that another backend computes."""
    x = zeros("f32", (4, T.count), flags=Flag.INPUT)
    squares = ops.sqr(x)  # [4, T]
    return x, squares, ops.sqr(ops.cumsum(squares))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("inner", [ReferenceBackend, lambda: CpuBackend(1)])
def test_splits_on_a_device_and_the_host(seed: int, inner: type[Backend]) -> None:
    x, squares, y = _graph()
    device = MockBackend(seed=seed, inner=inner(), only=["sqr"])
    executable = Executable(Graph(y, squares), [device, CpuBackend(1)])
    for n in (2, 6, 1, 3):
        x.array()[:] = np.linspace(-1, 1, 24)
        executable.set_counts({T: n})
        executable.run()
        rows = np.linspace(-1, 1, 24, dtype=np.float32).reshape(1, 1, 6, 4)[:, :, :n] ** 2
        assert np.array_equal(executable.read(squares), rows)
        expected = np.cumsum(rows, axis=-1, dtype=np.float64).astype(np.float32) ** 2
        assert np.array_equal(executable.read(y), expected)


def test_a_run_has_the_counts_of_when_it_was_submitted() -> None:
    """Its rows past them keep what the run before it has written."""
    for seed in range(8):
        device = MockBackend(seed=seed)
        x = zeros("f32", (4, T.count))
        rows = zeros("f32", (4, 6), flags=Flag.STATE, buffer_type=device.buffer_type)
        ids = zeros("i64", (T.count,))
        ids.array()[:] = np.arange(6)
        x.array()[:] = 1
        stored = ops.set_rows(rows, ops.scale(x, 3.0), ids)
        executable = Executable(Graph(stored), [device])
        executable.set_counts({T: 4})
        executable.submit()
        executable.set_counts({T: 2})
        executable.submit()
        executable.synchronize()
        written = executable.read(stored)[0, 0, :, 0]
        assert written.tolist() == [3, 3, 3, 3, 0, 0]
