"""Buffers: the memory that the data of tensors lies in, as in ggml.

    buffer type   a kind of memory of one device: alignment, largest buffer, bytes that a tensor
                  takes in it, whether the host can address it
    buffer        memory of one type
    place         a buffer and a byte offset: where the data of a tensor begins

Only code of a backend may assume that numpy sees a buffer; everything else goes through the
methods of Buffer.
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
    """Where an array's first element lies."""
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
        """`device` names who the memory belongs to; `max_bytes` is the largest single buffer."""
        self.name = name
        self.device = device
        self.is_host = is_host  # whether buffers are HostBuffers
        self.alignment = alignment
        self.max_bytes = max_bytes

    def __repr__(self) -> str:
        return f"<buffer type {self.name} of {self.device}>"

    def tensor_bytes(self, spec: Spec) -> int:
        """Bytes that a tensor takes in a buffer of this type, up to where the next may begin."""
        return -(-spec.n_bytes // self.alignment) * self.alignment

    def allocate(self, n_bytes: int) -> Buffer:
        """A zeroed buffer. Raises AllocationError for more than `max_bytes`, or than there is."""
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

    def runs(self, index: Index) -> Iterator[tuple[int, int, int]]:
        """(first place in `index`, first row, rows) for each run of rows that are neighbours."""
        if len(index) == 0:
            return
        breaks = np.flatnonzero(np.diff(index) != 1) + 1
        starts = [0, *breaks.tolist()]
        for start, stop in zip(starts, [*starts[1:], len(index)], strict=True):
            yield start, int(index[start]), stop - start


class Buffer(ABC):
    """Memory of one type, compared by identity.

    `address` is the device's own: numpy can follow it only in a HostBuffer. All methods see what
    work that was submitted to the device before has written, and take effect before work that is
    submitted after: they wait where they must.
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
        """Bytes on the host. May be a view of the buffer: copy it to keep it."""

    @abstractmethod
    def write(self, offset: int, data: Bytes) -> None:
        """Put host bytes into the buffer."""

    def free(self) -> None:  # noqa: B027  (memory of the host goes with its last reference)
        """Give the memory back now, not when nothing refers to it. Nothing may use it any more."""

    def clear(self, offset: int, n_bytes: int) -> None:
        """Set bytes to zero."""
        self.write(offset, np.zeros(n_bytes, np.uint8))

    def copy_from(self, offset: int, source: Buffer, source_offset: int, n_bytes: int) -> None:
        """Copy bytes of another buffer, or of this one where the two ranges lie apart."""
        self.write(offset, source.read(source_offset, n_bytes))

    # Rows: by runs of neighbours, unless the type has something better.

    def read_rows(self, rows: Rows, index: Index) -> Bytes:
        """Some rows, copied: [len(index), bytes of a row]."""
        found = np.empty((len(index), rows.n_bytes), np.uint8)
        for at, first, n in rows.runs(index):
            raw = self.read(rows.offset + first * rows.n_bytes, n * rows.n_bytes)
            found[at : at + n] = raw.reshape(n, rows.n_bytes)
        return found

    def write_rows(self, rows: Rows, index: Index, values: Bytes) -> None:
        """Replace some rows by `values`, [len(index), bytes of a row]."""
        for at, first, n in rows.runs(index):
            data = np.ascontiguousarray(values[at : at + n]).reshape(-1)
            self.write(rows.offset + first * rows.n_bytes, data)

    def clear_rows(self, rows: Rows, index: Index) -> None:
        """Set some rows to zero."""
        for _, first, n in rows.runs(index):
            self.clear(rows.offset + first * rows.n_bytes, n * rows.n_bytes)

    def copy_rows(self, rows: Rows, source: Index, target: Index) -> None:
        """Copy rows `source` to rows `target`, one by one; no row is both."""
        for at, first, n in rows.runs(source):
            for place, to, m in rows.runs(target[at : at + n]):
                begin = rows.offset + (first + place) * rows.n_bytes
                self.copy_from(rows.offset + to * rows.n_bytes, self, begin, m * rows.n_bytes)


class HostBuffer(Buffer):
    """Memory that numpy sees: `data`, its bytes.

    `file` is there for bytes of a mapped file: reading them from there instead brings no page of
    the map into the process's memory.
    """

    __slots__ = ("data", "file")

    def __init__(
        self, data: Bytes, type: BufferType | None = None, file: FilePlace | None = None
    ) -> None:
        super().__init__(HOST if type is None else type, data.nbytes, address_of(data))
        self.data = data
        self.file = file

    def __reduce__(self) -> tuple[type[HostBuffer], tuple[Bytes]]:
        """A copy has memory of its own, and is no bytes of a file any more."""
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
    """Stands for memory of a type that nothing was allocated in: to plan with, not to run on."""

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
    """Where a tensor's first byte is."""

    buffer: Buffer
    offset: int = 0

    @property
    def address(self) -> int:
        """The device's address of it."""
        return self.buffer.address + self.offset

    @property
    def host_bytes(self) -> Bytes:
        """All bytes of the host buffer that it lies in, in place."""
        assert isinstance(self.buffer, HostBuffer), f"{self.buffer} is no memory of the host"
        return self.buffer.data
