"""Buffers, as in ggml: the memory in which the data of tensors lies.

    buffer type   a kind of memory of one device: alignment, largest buffer, bytes that a tensor
                  takes in it, whether the host can address it
    buffer        memory of one type
    place         a buffer and a byte offset: where the data of a tensor begins

Only code of a backend may assume that numpy can access a buffer; other code uses the methods of
Buffer.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.open_file import FilePlace
from ggmlpy.errors import AllocationError
from ggmlpy.graph.spec import Spec

ALIGNMENT = 64  # one cache line, and one AVX512 vector

Bytes = NDArray[np.uint8]
Index = NDArray[np.int64]


def address_of(array: NDArray[Any]) -> int:
    """The address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def aligned_bytes(n_bytes: int) -> Bytes:
    """Zeroed host memory whose address is a multiple of ALIGNMENT. Raises AllocationError."""
    try:
        raw = np.zeros(n_bytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: beyond what an address can reach
        raise AllocationError(f"{n_bytes} bytes of memory cannot be had") from error
    start = -address_of(raw) % ALIGNMENT
    return raw[start : start + n_bytes]


class BufferType(ABC):
    """A kind of memory. Two types are the same memory only if they are the same object."""

    __slots__ = ("alignment", "device", "is_host", "max_bytes", "name")

    def __init__(
        self,
        name: str,
        device: str,
        *,
        is_host: bool,
        alignment: int = ALIGNMENT,
        max_bytes: int = sys.maxsize,
    ) -> None:
        """`device` names the memory's device; `max_bytes` is the size of the largest buffer, not of
        the device's memory: whether that is short, `allocate` finds."""
        self.name = name
        self.device = device
        self.is_host = is_host  # whether buffers are HostBuffers
        self.alignment = alignment
        self.max_bytes = max_bytes

    def __repr__(self) -> str:
        return f"<buffer type {self.name} of {self.device}>"

    def tensor_bytes(self, spec: Spec) -> int:
        """Bytes that a tensor takes in a buffer of this type, padded to the alignment."""
        return -(-spec.n_bytes // self.alignment) * self.alignment

    def free_bytes(self) -> int | None:
        """Bytes of this memory that can still be allocated; None if the device does not tell."""
        return None

    def allocate(self, n_bytes: int) -> Buffer:
        """A zeroed buffer. Raises AllocationError above `max_bytes`, or if memory is short."""
        if n_bytes > self.max_bytes:
            raise AllocationError(
                f"{n_bytes} bytes cannot be one buffer of {self.name}: at most {self.max_bytes} can"
            )
        return self._allocate(n_bytes)

    @abstractmethod
    def _allocate(self, n_bytes: int) -> Buffer: ...


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of equal length in a buffer, one after another: row i begins at offset + i * n_bytes."""

    offset: int
    n_bytes: int  # of one row

    def ranges(self, index: Index) -> Iterator[tuple[int, int, int]]:
        """Consecutive rows of `index`, each range as (position in `index`, first row, count)."""
        if len(index) == 0:
            return
        breaks = np.flatnonzero(np.diff(index) != 1) + 1
        starts = [0, *breaks.tolist()]
        for start, stop in zip(starts, [*starts[1:], len(index)], strict=True):
            yield start, int(index[start]), stop - start


class Buffer(ABC):
    """Memory of one type, compared by identity.

    `address` is an address of the device; only that of a HostBuffer is valid in this process.

    Methods see the results of all work that was submitted to the device before, and take effect
    before work that is submitted after: they block where necessary. That includes work of other
    queues for which the device's queue was told to wait (`Backend.wait`), and no other. They have
    read or copied their arguments when they return: the caller may change these.

    The memory is freed with the last reference to the buffer, or by `free`. Work that is queued
    must be able to use it until it is complete. So a device either keeps a reference to each buffer
    of queued work, or frees memory in the order of its queue. An Executable keeps the buffers of
    its plans.
    """

    __slots__ = ("__weakref__", "address", "n_bytes", "type")

    def __init__(self, type: BufferType, n_bytes: int, address: int) -> None:
        self.type = type
        self.n_bytes = n_bytes
        self.address = address

    def __repr__(self) -> str:
        return f"<buffer of {self.type.name}: {self.n_bytes} bytes>"

    @abstractmethod
    def read(self, offset: int, n_bytes: int) -> Bytes:
        """`n_bytes` bytes on the host. May be a view of the buffer: copy it to keep it."""

    @abstractmethod
    def write(self, offset: int, data: Bytes) -> None:
        """Write bytes of the host to the buffer."""

    def free(self) -> None:  # noqa: B027  (the last reference frees memory of the host)
        """Free the memory when submitted work is complete, before its last reference is gone.

        The buffer must not be used any more.
        """

    def clear(self, offset: int, n_bytes: int) -> None:
        """Set bytes to zero."""
        self.write(offset, np.zeros(n_bytes, np.uint8))

    def copy_from(self, offset: int, source: Buffer, source_offset: int, n_bytes: int) -> None:
        """Copy bytes of another buffer, or of this one where the two ranges lie apart."""
        self.write(offset, source.read(source_offset, n_bytes))

    # Rows: range by range, unless a subclass has a faster way.

    def read_rows(self, rows: Rows, index: Index) -> Bytes:
        """Copies of the rows in `index`, [len(index), bytes of a row]."""
        found = np.empty((len(index), rows.n_bytes), np.uint8)
        for at, first, n in rows.ranges(index):
            raw = self.read(rows.offset + first * rows.n_bytes, n * rows.n_bytes)
            found[at : at + n] = raw.reshape(n, rows.n_bytes)
        return found

    def write_rows(self, rows: Rows, index: Index, values: Bytes) -> None:
        """Replace the rows in `index` by `values`, [len(index), bytes of a row]."""
        for at, first, n in rows.ranges(index):
            data = np.ascontiguousarray(values[at : at + n]).reshape(-1)
            self.write(rows.offset + first * rows.n_bytes, data)

    def clear_rows(self, rows: Rows, index: Index) -> None:
        """Set the rows in `index` to zero."""
        for _, first, n in rows.ranges(index):
            self.clear(rows.offset + first * rows.n_bytes, n * rows.n_bytes)

    def copy_rows(self, rows: Rows, source: Index, target: Index) -> None:
        """Copy row source[i] to row target[i], for each i. No row may be in both."""
        for at, first, n in rows.ranges(source):
            for skipped, to, m in rows.ranges(target[at : at + n]):
                begin = rows.offset + (first + skipped) * rows.n_bytes
                self.copy_from(rows.offset + to * rows.n_bytes, self, begin, m * rows.n_bytes)


class HostBuffer(Buffer):
    """Memory that numpy can access: `data`, its bytes.

    `file` is set for bytes of a mapped file. Reading the file instead of the map leaves the
    process's resident memory as it is.
    """

    __slots__ = ("data", "file")

    def __init__(
        self, data: Bytes, type: BufferType | None = None, file: FilePlace | None = None
    ) -> None:
        super().__init__(HOST if type is None else type, data.nbytes, address_of(data))
        self.data = data
        self.file = file

    def __reduce__(self) -> tuple[type[HostBuffer], tuple[Bytes]]:
        """A copy has memory of its own and no `file`."""
        return HostBuffer, (self.data,)

    def read(self, offset: int, n_bytes: int) -> Bytes:
        return self.data[offset : offset + n_bytes]

    def write(self, offset: int, data: Bytes) -> None:
        self.data[offset : offset + data.nbytes] = data

    def clear(self, offset: int, n_bytes: int) -> None:
        self.data[offset : offset + n_bytes] = 0

    def _rows(self, rows: Rows) -> Bytes:
        n = (self.n_bytes - rows.offset) // rows.n_bytes
        end = rows.offset + n * rows.n_bytes
        return self.data[rows.offset : end].reshape(n, rows.n_bytes)

    def read_rows(self, rows: Rows, index: Index) -> Bytes:
        return self._rows(rows)[index]

    def write_rows(self, rows: Rows, index: Index, values: Bytes) -> None:
        self._rows(rows)[index] = values

    def clear_rows(self, rows: Rows, index: Index) -> None:
        self._rows(rows)[index] = 0

    def copy_rows(self, rows: Rows, source: Index, target: Index) -> None:
        view = self._rows(rows)
        view[target] = view[source]


class UnallocatedBuffer(Buffer):
    """A buffer without memory, for plans that do not run. Reading and writing raise."""

    def __init__(self, type: BufferType, n_bytes: int) -> None:
        super().__init__(type, n_bytes, address=0)

    def read(self, offset: int, n_bytes: int) -> Bytes:
        raise AllocationError(f"{self} was not allocated: it has no bytes to read")

    def write(self, offset: int, data: Bytes) -> None:
        raise AllocationError(f"{self} was not allocated: it has no bytes to write")


class HostBufferType(BufferType):
    """Memory of the process, aligned for the kernels of the CPU."""

    def __init__(self, name: str = "host", device: str = "host") -> None:
        super().__init__(name, device, is_host=True)

    def _allocate(self, n_bytes: int) -> HostBuffer:
        return HostBuffer(aligned_bytes(n_bytes), self)


HOST = HostBufferType()


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer and a byte offset in it: where the data of a tensor begins."""

    buffer: Buffer
    offset: int = 0

    @property
    def address(self) -> int:
        """The address on the device."""
        return self.buffer.address + self.offset

    @property
    def host_bytes(self) -> Bytes:
        """All bytes of the buffer, which must be a HostBuffer, in place."""
        assert isinstance(self.buffer, HostBuffer), f"{self.buffer} is no memory of the host"
        return self.buffer.data
