"""What tests of kernels on the emulated device share: runs of graphs, and what they wrote."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver
from ggmlpy.graph.arrays import element_view
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched.executable import Executable
from tests.counted import PATTERN, Build, Leaves, Numbers

DEVICE = CudaBackend(EmulatedDriver())


def bits(y: Tensor) -> NDArray[np.uint32]:
    executable = Executable(Graph(y), [DEVICE])
    executable.run()
    return np.ascontiguousarray(executable.read(y)).view(np.uint32)


def counted(build: Build, numbers: Numbers, runs: list[Numbers]) -> list[list[bytes]]:
    """The elements of the results of each run. Asserts that nothing is written past them."""
    leaves = Leaves("f32")
    results = build(leaves, numbers)
    executable = Executable(Graph(*results), [DEVICE])
    found = []
    for one in runs:
        leaves.fill(one.counts)
        for y in results:
            place = executable.place(y)
            pattern = np.full(y.spec.n_bytes, PATTERN, np.uint8)
            place.buffer.write(place.offset, pattern)
        executable.set_counts({symbol: one.counts[symbol] for symbol in executable.symbols})
        executable.run()
        for y in results:
            place = executable.place(y)
            raw = place.buffer.read(place.offset, y.spec.n_bytes).copy()
            element_view(raw, y.spec.at(one.counts)).view(np.uint8)[...] = PATTERN
            assert (raw == PATTERN).all(), f"{y} past its counts"
        found.append([executable.read(y).tobytes() for y in results])
    return found


def assert_counts_decide(build: Build, bound: int, counts: tuple[int, ...]) -> None:
    """Assert that a graph whose counts are symbols has the bits of one with plain numbers."""
    symbolic = Numbers.bounded(bound)
    found = counted(build, symbolic, [symbolic.having(n) for n in counts])
    for n, got in zip(counts, found, strict=True):
        exact = Numbers.plain(n)
        assert [got] == counted(build, exact, [exact]), f"{n} of {bound} tokens"
