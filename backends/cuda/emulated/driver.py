"""The driver of an emulated device: its memory is the host's, its stream runs late."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cuda.driver import (
    Access,
    Allocation,
    Captured,
    DeviceInfo,
    Driver,
    DriverEvent,
    Function,
    Grid,
)
from ggmlpy.backends.cuda.emulated.memory import HOST_MEMORY, Arena, Block
from ggmlpy.backends.cuda.emulated.runtime import Entry, runtime
from ggmlpy.backends.cuda.emulated.work import (
    Copy,
    Fill,
    KernelLaunch,
    Run,
    Work,
    struct_bytes,
    struct_size,
)
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.mock import hazards
from ggmlpy.backends.mock.queue import MockEvent, Queue
from ggmlpy.errors import BackendError, GgmlpyError

_MAX_THREADS = 1024  # of a block
_MAX_GRID = (2**31 - 1, 65535, 65535)
_PLAIN_BYTES = 2 << 30  # of memory, where nothing else is asked for
_SHARED_BYTES = 227 << 10
_DRIVERS: weakref.WeakSet[EmulatedDriver] = weakref.WeakSet()


class EmulatedDriver(Driver):
    """A device that runs kernels on the CPU and checks them.

    name         distinguishes several devices, which must have different names
    seed         of the order of threads and blocks, and of delays; with an even one the device can
                 copy from and to others
    total_bytes  of its memory
    shared_bytes that a block may have: those of an H100 if not given
    n_launches   kernels that ran so far
    """

    def __init__(
        self,
        name: str = "cuda-emulated",
        seed: int = 0,
        total_bytes: int = _PLAIN_BYTES,
        shared_bytes: int = _SHARED_BYTES,
    ) -> None:
        """Raises BackendError where there is no compiler."""
        self.name = name
        self.info = DeviceInfo(
            name="emulated H100 (CPU)",
            capability=(9, 0),
            n_sm=4,
            total_bytes=total_bytes,
            shared_bytes=shared_bytes,
        )
        self.n_launches = 0
        self._runtime = runtime()
        self._has_peers = seed % 2 == 0
        self._rng = random.Random(f"{name} {seed}")
        self._arena = Arena(name, total_bytes)
        self._queue = Queue(name, seed)
        self._error: GgmlpyError | None = None  # the first one since the last synchronize
        self._captured: list[Work] | None = None  # while a graph is captured
        _DRIVERS.add(self)

    # --- memory ---

    def free_bytes(self) -> int:
        self._free_dropped()
        return self._arena.free_bytes()

    def allocate(self, n_bytes: int) -> Allocation:
        self._free_dropped()
        self._arena.check_fits(n_bytes)
        block = self._arena.allocate(n_bytes)
        if block is None and self._captured is None:  # freed memory may still be in the queue
            self._queue.synchronize()
            block = self._arena.allocate(n_bytes)
        if block is None:
            raise self._arena.no_memory(n_bytes)
        allocation = _EmulatedAllocation(block)
        weakref.finalize(allocation, self._arena.dropped.append, block).atexit = False
        return allocation

    def allocate_pinned(self, n_bytes: int) -> NDArray[np.uint8]:
        return HOST_MEMORY.allocate_pinned(self.name, n_bytes)

    def copy(self, target: int, source: int, n_bytes: int) -> None:
        if n_bytes:
            work = Copy(self._arena_of(target), target, self._arena_of(source), source, n_bytes)
            if self._captured is not None and work.is_pageable:
                raise BackendError(f"{self.name}: a copy of pageable memory cannot be captured")
            self._submit(work)

    def fill(self, target: int, value: int, n_bytes: int) -> None:
        if n_bytes:
            self._submit(Fill(self._arena, target, value, n_bytes))

    def can_copy_from(self, other: Driver) -> bool:
        if other is self:
            return True
        return isinstance(other, EmulatedDriver) and self._has_peers and other._has_peers

    def _arena_of(self, address: int) -> Arena | None:
        """The memory of the device that an address is of; None for the host's."""
        for driver in list(_DRIVERS):
            if address in driver._arena:
                if not self.can_copy_from(driver):
                    raise BackendError(f"{self.name} cannot reach memory of {driver.name}")
                return driver._arena
        return None

    def _free_dropped(self) -> None:
        """Queue the freeing of memory that is no longer referenced, unless a graph is captured."""
        while self._captured is None and self._arena.dropped:
            block = self._arena.dropped.popleft()
            self._arena.leave(block)
            self._queue.begin()
            self._queue.submit(partial(self._arena.free, block))

    # --- order ---

    def record(self) -> DriverEvent:
        self._refuse_capture("recording an event")
        return _EmulatedEvent(self, self._queue.record())

    def wait(self, event: DriverEvent) -> None:
        assert isinstance(event, _EmulatedEvent)
        self._refuse_capture("waiting for an event")
        self._queue.wait(event.event)

    def synchronize(self) -> None:
        self._refuse_capture("waiting for the device")
        self._free_dropped()
        self._queue.synchronize()
        self._raise_error()

    def _refuse_capture(self, what: str) -> None:
        if self._captured is not None:
            raise BackendError(f"{self.name}: {what} cannot be captured")

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _submit(self, work: Work) -> None:
        if self._captured is None:
            self._queue_all([work])
        else:
            self._captured.append(work)

    def _queue_all(self, works: Sequence[Work]) -> None:
        """Queue pieces of work as one. Raises HazardError for an access that is not ordered with an
        earlier one of another device."""
        self._free_dropped()
        clock = self._queue.begin()
        for work in works:
            for touched in work.touched():
                # Work of one device is in order.
                if len(_DRIVERS) > 1:
                    access = hazards.Access(
                        touched.begin,
                        touched.end,
                        touched.writes,
                        self.name,
                        clock[self.name],
                        f"{self.name}: {touched.what}",
                    )
                    touched.history.add(access, clock)
        runs = [work.begin() for work in works]
        self._queue.submit(lambda: self._run(runs))

    def _run(self, runs: Sequence[Run]) -> None:
        """After an error nothing runs until somebody was told of it."""
        for run in runs:
            try:
                run(self._error is not None)
            except GgmlpyError as error:  # raised by the next synchronize
                self._error = error

    # --- kernels ---

    def functions(self, forms: Iterable[Form]) -> dict[Form, Function]:
        found = self._runtime.entries(forms)
        return {form: _EmulatedFunction(entry) for form, entry in found.items()}

    def launch(
        self,
        function: Function,
        grid: Grid,
        block: Grid,
        shared_bytes: int,
        args: NDArray[Any],
        run: NDArray[Any],
        accesses: Sequence[Access],
    ) -> None:
        assert isinstance(function, _EmulatedFunction)
        entry = function.entry
        self._check_launch(entry, grid, block, shared_bytes, args)
        structs = struct_bytes(args), struct_bytes(run)
        self._submit(
            KernelLaunch(
                self._arena, entry, grid, block, shared_bytes, structs, accesses, self._seed
            )
        )

    def _check_launch(
        self, entry: Entry, grid: Grid, block: Grid, shared_bytes: int, args: NDArray[Any]
    ) -> None:
        """Raises BackendError for what CUDA refuses, and for a struct of another size."""
        n_threads = block[0] * block[1] * block[2]
        own_bytes = entry.shared[1] - entry.shared[0]
        problem = None
        if any(not 1 <= n <= most for n, most in zip(grid, _MAX_GRID, strict=True)):
            problem = f"a grid may have 1 to {_MAX_GRID} blocks"
        elif not 1 <= n_threads <= min(_MAX_THREADS, entry.max_threads):
            problem = f"a block may have 1 to {entry.max_threads} threads"
        elif not 0 <= shared_bytes + own_bytes <= self.info.shared_bytes:
            asked = f"{shared_bytes:,} bytes of shared memory and {own_bytes:,} of its own"
            problem = f"{asked}; {self.info.shared_bytes:,} are there"
        elif (size := struct_size(args.dtype)) != entry.args_bytes:
            fields = ", ".join(args.dtype.names or ())
            problem = f"its struct has {entry.args_bytes} bytes, its arguments {size}: {fields}"
        if problem is not None:
            where = f"launching {entry.form} with grid {grid} and block {block}"
            raise BackendError(f"{self.name}: {where}: {problem}")

    def _seed(self) -> int:
        self.n_launches += 1
        return self._rng.getrandbits(32)

    def capture(self, work: Callable[[], None]) -> Captured:
        if self._captured is not None:
            raise BackendError("a graph is being captured from this stream already")
        self._free_dropped()
        captured: list[Work] = []
        self._captured = captured
        try:
            work()
        finally:
            self._captured = None
        return _EmulatedCaptured(self, captured)


class _EmulatedAllocation(Allocation):
    def __init__(self, block: Block) -> None:
        self.address = block.address
        self.n_bytes = block.n_bytes


class _EmulatedEvent(DriverEvent):
    def __init__(self, driver: EmulatedDriver, event: MockEvent) -> None:
        self._driver = driver
        self.event = event

    def synchronize(self) -> None:
        self._driver._refuse_capture("waiting for an event")
        self.event.wait()
        self._driver._raise_error()


class _EmulatedFunction(Function):
    def __init__(self, entry: Entry) -> None:
        self.name = entry.form.name
        self.entry = entry


class _EmulatedCaptured(Captured):
    def __init__(self, driver: EmulatedDriver, work: Sequence[Work]) -> None:
        self._driver = driver
        self._work = work

    def launch(self) -> None:
        self._driver._refuse_capture("launching a graph")
        self._driver._queue_all(self._work)
