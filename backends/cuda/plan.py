"""Plans: launches that run one by one the first time, and from then on as one CUDA graph.

The host's share of a later run is a copy of the counts, if there are any, and the launch of the
graph. Counts and the first index out of range lie in device memory of the plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Plan
from ggmlpy.backends.cuda.args import FAILURE, RUN
from ggmlpy.backends.cuda.builder import PlanBuilder
from ggmlpy.backends.cuda.driver import Access, Captured, Driver, DriverEvent
from ggmlpy.errors import BackendError, IndexOutOfRange
from ggmlpy.graph.buffer import address_of
from ggmlpy.graph.count import Counts
from ggmlpy.graph.tensor import Tensor

_PINNED_COUNTS = 8  # sets of counts that may be on their way to the device


class CudaPlan(Plan):
    """The launches that a builder has collected."""

    def __init__(
        self,
        driver: Driver,
        builder: PlanBuilder,
        submitted: Callable[[CudaPlan], None],
        *,
        blocking: bool = False,
    ) -> None:
        """`submitted` is told of every run before it is queued; `blocking`: each launch is waited
        for."""
        self._driver = driver
        self._submitted = submitted
        self.launches = tuple(builder.launches)
        self._keep = builder.keep
        self._functions = driver.functions(launch.form for launch in self.launches)
        self._counts = _PlanCounts(driver, builder)
        self._failure = _PlanFailure(driver)
        self._runs = [self._run(i + 1) for i in range(len(self.launches))]
        self._has_run = False
        self._blocking = blocking
        self._graph: Captured | None = None

    def set_counts(self, counts: Counts) -> None:
        self._counts.write(counts)

    def submit(self) -> None:
        if not self.launches:
            return
        self._submitted(self)
        if self._graph is not None:
            self._graph.launch()
        elif self._has_run and not self._blocking:
            self._graph = self._driver.capture(self._queue)
            self._graph.launch()
        else:
            self._queue()
            self._has_run = True

    def _queue(self) -> None:
        for launch, run in zip(self.launches, self._runs, strict=True):
            try:
                self._driver.launch(
                    self._functions[launch.form],
                    launch.grid,
                    (launch.threads, 1, 1),
                    launch.shared_bytes,
                    launch.args,
                    run,
                    (*launch.accesses, *self._counts.accesses, *self._failure.accesses),
                )
                if self._blocking:
                    self._driver.synchronize()
            except BackendError as error:
                raise type(error)(f"{_named(launch.node)}: {launch.form}: {error}") from error
        self._failure.fetch()

    def _run(self, launch: int) -> NDArray[Any]:
        run = np.zeros((), RUN)
        run["counts"] = self._counts.address
        run["failure"] = self._failure.address
        run["launch"] = launch
        return run

    def check(self) -> None:
        found = self._failure.take()
        if found is None:
            return
        launch, value = found
        node = self.launches[launch - 1].node
        shapes = ", ".join(str(source.spec) for source in node.src)
        raise IndexOutOfRange(f"{_named(node)}: index {value} is out of range for sources {shapes}")


def _named(node: Tensor) -> str:
    return f"{node.name or 'node'} ({node.op})"


class _PlanCounts:
    """The values of a plan's counts on the device."""

    def __init__(self, driver: Driver, builder: PlanBuilder) -> None:
        self._driver = driver
        self._table = builder.counts
        self._n_bytes = 4 * len(self._table)
        self._free: deque[tuple[NDArray[np.uint8], DriverEvent | None]] = deque()
        self.address = 0
        self.accesses: tuple[Access, ...] = ()
        if self._n_bytes:
            self._memory = driver.allocate(self._n_bytes)
            self.address = self._memory.address
            self.accesses = (Access("counts", self.address, self._n_bytes, False),)
            self.write(None)

    def write(self, counts: Counts | None) -> None:
        """Queue their copy. Each set has pinned memory of its own until it has arrived."""
        if not self._n_bytes:
            return
        if len(self._free) < _PINNED_COUNTS:
            pinned = self._driver.allocate_pinned(self._n_bytes)
        else:
            pinned, event = self._free.popleft()
            assert event is not None
            event.synchronize()
        pinned.view(np.int32)[:] = self._table.values(counts)
        self._driver.copy(self.address, address_of(pinned), self._n_bytes)
        self._free.append((pinned, self._driver.record()))


class _PlanFailure:
    """The first index out of range since it was last asked for; it arrives with each run."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._memory = driver.allocate(FAILURE.itemsize)
        self.address = self._memory.address
        self.accesses = (Access("the failure", self.address, FAILURE.itemsize, True),)
        self._pinned = driver.allocate_pinned(FAILURE.itemsize)
        self._host = self._pinned.view(FAILURE)
        driver.fill(self.address, 0, FAILURE.itemsize)

    def fetch(self) -> None:
        """Queue its copy to the host."""
        self._driver.copy(address_of(self._pinned), self.address, FAILURE.itemsize)

    def take(self) -> tuple[int, int] | None:
        """The launch, from 1 on, and the index. Called when runs are complete."""
        launch, value = int(self._host["launch"][0]), int(self._host["value"][0])
        if not launch:
            return None
        self._pinned[:] = 0
        self._driver.fill(self.address, 0, FAILURE.itemsize)
        return launch, value
