"""Memory of a mock device: only its queue accesses it, and freed memory is poisoned."""

from __future__ import annotations

import itertools
from weakref import finalize

from ggmlpy.backends.mock.hazards import Access, Clock, History
from ggmlpy.backends.mock.queue import HOST, Queue, host_clock
from ggmlpy.errors import BackendError
from ggmlpy.graph.buffer import (
    ALIGNMENT,
    Buffer,
    BufferType,
    Bytes,
    HostBuffer,
    aligned_bytes,
)

POISON = 0xFF  # as f32 or f16 NaN, as an index -1
_ADDRESSES = itertools.count(1 << 48, 1 << 36)  # beyond the address space of a process


class MockMemory(BufferType):
    """The memory of one mock device."""

    __slots__ = ("queue",)

    def __init__(self, queue: Queue, max_bytes: int) -> None:
        super().__init__(queue.name, queue.name, is_host=False, max_bytes=max_bytes)
        self.queue = queue

    def _allocate(self, n_bytes: int) -> MockBuffer:
        return MockBuffer(self, n_bytes)


class MockBuffer(Buffer):
    """A buffer that numpy cannot see. `read` and `write` wait for the queue.

    Its bytes are poisoned when it is freed, and when its last reference is gone.
    """

    __slots__ = ("__host", "_freed", "_history", "memory")

    def __init__(self, memory: MockMemory, n_bytes: int) -> None:
        super().__init__(memory, n_bytes, next(_ADDRESSES) + ALIGNMENT)
        self.__host = HostBuffer(aligned_bytes(n_bytes))
        self.memory = memory
        self._history = History(f"a buffer of {memory.name}")
        self._freed = False
        finalize(self, self.__host.data.fill, POISON).atexit = False

    # --- for the queue ---

    def touch(self, access: Access, clock: Clock) -> None:
        """Record an access by queued work with this clock. Raises HazardError."""
        self._check(access.begin, access.end - access.begin)
        self._history.add(access, clock)

    def revealed_to(self, queue: Queue) -> HostBuffer:
        """The memory as a host buffer, for work of the device's own queue. Raises BackendError."""
        if queue is not self.memory.queue:
            raise BackendError(f"{queue.name} cannot reach memory of {self.memory.name}")
        return self.__host

    def check_not_freed(self) -> None:
        """Raise BackendError if the buffer was freed."""
        if self._freed:
            raise BackendError(f"a buffer of {self.memory.name} is used after it was freed")

    # --- for the host ---

    def read(self, offset: int, n_bytes: int) -> Bytes:
        self._wait(offset, n_bytes, writes=False)
        return self.__host.read(offset, n_bytes).copy()

    def write(self, offset: int, data: Bytes) -> None:
        self._wait(offset, data.nbytes, writes=True)
        self.__host.write(offset, data)

    def free(self) -> None:
        self._wait(0, self.n_bytes, writes=True)
        self.__host.data[:] = POISON
        self._freed = True

    def _wait(self, offset: int, n_bytes: int, writes: bool) -> None:
        """Wait for the device's queue. Raises HazardError if another one may still access bytes.

        The access need not be recorded: the host waits, and work that it submits later is ordered
        after what it has done.
        """
        self._check(offset, n_bytes)
        self.memory.queue.synchronize()
        clock = host_clock()
        access = Access(offset, offset + n_bytes, writes, HOST, clock[HOST], "the host")
        self._history.check(access, clock)

    def _check(self, offset: int, n_bytes: int) -> None:
        self.check_not_freed()
        if not 0 <= offset <= offset + n_bytes <= self.n_bytes:
            raise BackendError(
                f"bytes {offset} to {offset + n_bytes} of a buffer of {self.memory.name} that has"
                f" {self.n_bytes}"
            )
