"""Memory of a device, and host memory that copies to and from it use directly."""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cuda.driver import Driver
from ggmlpy.errors import BackendError
from ggmlpy.graph.buffer import Buffer, BufferType, Bytes, HostBuffer, address_of

DEVICE_ALIGNMENT = 256  # of cudaMalloc: whole memory transactions, and every vector type
_STAGED_BYTES = 8 << 20


class CudaMemory(BufferType):
    """The memory of one device."""

    __slots__ = ("driver", "staging")

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver.name, driver.name, is_host=False, alignment=DEVICE_ALIGNMENT)
        self.driver = driver
        self.staging = _Staging(driver)

    def free_bytes(self) -> int:
        return self.driver.free_bytes()

    def _allocate(self, n_bytes: int) -> CudaBuffer:
        return CudaBuffer(self, n_bytes)


class CudaBuffer(Buffer):
    """Device memory. `read` and `write` wait for the stream; the others queue their work on it.

    Memory is freed in the order of the stream, so queued work may use it after the last reference.
    """

    __slots__ = ("_allocation", "_memory", "driver")

    def __init__(self, memory: CudaMemory, n_bytes: int) -> None:
        self._memory = memory
        self.driver = memory.driver
        self._allocation = self.driver.allocate(n_bytes)
        super().__init__(memory, n_bytes, self._allocation.address)
        self.driver.fill(self.address, 0, n_bytes)

    def read(self, offset: int, n_bytes: int) -> Bytes:
        self._check(offset, n_bytes)
        return self._memory.staging.read(self.address + offset, n_bytes)

    def write(self, offset: int, data: Bytes) -> None:
        self._check(offset, data.nbytes)
        self.driver.copy(self.address + offset, address_of(data), data.nbytes)
        self.driver.synchronize()

    def clear(self, offset: int, n_bytes: int) -> None:
        self._check(offset, n_bytes)
        self.driver.fill(self.address + offset, 0, n_bytes)

    def copy_from(self, offset: int, source: Buffer, source_offset: int, n_bytes: int) -> None:
        here = isinstance(source, CudaBuffer) and source.driver is self.driver
        if not here:
            super().copy_from(offset, source, source_offset, n_bytes)
            return
        self._check(offset, n_bytes)
        self.driver.copy(self.address + offset, source.address + source_offset, n_bytes)

    def free(self) -> None:
        self.driver.synchronize()
        del self._allocation

    def _check(self, offset: int, n_bytes: int) -> None:
        if not 0 <= offset <= offset + n_bytes <= self.n_bytes:
            raise BackendError(
                f"bytes {offset} to {offset + n_bytes} of {self}: there are {self.n_bytes}"
            )


class _Staging:
    """Pinned memory through which small reads go: allocating it takes longer than most of them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pinned: Bytes = np.zeros(0, np.uint8)

    def read(self, address: int, n_bytes: int) -> Bytes:
        """A copy of bytes of the device."""
        if n_bytes > _STAGED_BYTES:
            found = self._driver.allocate_pinned(n_bytes)
            self._driver.copy(address_of(found), address, n_bytes)
            self._driver.synchronize()
            return found
        if self._pinned.nbytes < n_bytes:
            self._pinned = self._driver.allocate_pinned(min(2 * n_bytes, _STAGED_BYTES))
        self._driver.copy(address_of(self._pinned), address, n_bytes)
        self._driver.synchronize()
        return self._pinned[:n_bytes].copy()


class PinnedMemory(BufferType):
    """Host memory that is locked in place for a driver's copies."""

    __slots__ = ("_driver",)

    def __init__(self, driver: Driver) -> None:
        super().__init__(f"{driver.name}_host", "host", is_host=True, alignment=DEVICE_ALIGNMENT)
        self._driver = driver

    def _allocate(self, n_bytes: int) -> HostBuffer:
        return HostBuffer(self._driver.allocate_pinned(n_bytes), self)
