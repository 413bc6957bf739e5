"""Memory of an emulated device, and host memory that its copies use."""

from __future__ import annotations

import ctypes
import weakref
import zlib
from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cuda.emulated.runtime import runtime
from ggmlpy.backends.mock.hazards import History
from ggmlpy.errors import AllocationError, BackendError
from ggmlpy.graph.buffer import address_of

ALIGN = 256  # of allocations, and the least bytes between two
POISON = 0xFF  # as f32 or f16 NaN, as an index -1
UNDEFINED, DEFINED = 0, 1  # states of bytes, as in checks.hpp
_MB = 1 << 20


@dataclass(eq=False, slots=True)
class Block:
    """Allocated bytes of a device, and who accessed them."""

    address: int
    n_bytes: int
    history: History


class Arena:
    """The memory of one device: a range of addresses, twice as large as its memory, so that gaps
    between allocations do not matter. Freed blocks stay in place until the stream has passed."""

    def __init__(self, name: str, total_bytes: int) -> None:
        self._name = name
        self._total_bytes = total_bytes
        self._size = -(-2 * total_bytes // _MB + 1) * _MB
        self._base = runtime().reserve(self._size)
        release = weakref.finalize(self, runtime().release, self._base, self._size)
        release.atexit = False
        self._blocks: list[Block] = []  # by address
        self._used_bytes = 0
        self.dropped: deque[Block] = deque()  # by the garbage collector, in any thread

    @property
    def extent(self) -> tuple[int, int]:
        """Its address and its bytes."""
        return self._base, self._size

    def states(self, address: int) -> int:
        """Where the states of bytes from an address on are: whether they were written."""
        return address + self._size

    def __contains__(self, address: int) -> bool:
        return self._base <= address < self._base + self._size

    def _dropped_now(self) -> list[Block]:
        """The garbage collector may add to them at any time, and so while they are listed."""
        while True:
            try:
                return list(self.dropped)
            except RuntimeError:
                continue

    def free_bytes(self) -> int:
        return self._total_bytes - self._used_bytes + sum(map(_taken, self._dropped_now()))

    def allocate(self, n_bytes: int) -> Block | None:
        """A poisoned block; None where no gap is large enough."""
        address = self._gap(n_bytes)
        if address is None:
            return None
        block = Block(address, n_bytes, History(f"memory of {self._name}"))
        insort(self._blocks, block, key=lambda b: b.address)
        self._used_bytes += _taken(block)
        ctypes.memset(address, POISON, n_bytes)
        return block

    def check_fits(self, n_bytes: int) -> None:
        """Raises AllocationError."""
        if _taken_bytes(n_bytes) > self.free_bytes():
            raise self.no_memory(n_bytes)

    def no_memory(self, n_bytes: int) -> AllocationError:
        return AllocationError(
            f"{self._name}: asked for {_mb(n_bytes)} of device memory:"
            f" {self.free_bytes() // _MB:,} MB of {self._total_bytes // _MB:,} MB are free"
        )

    def leave(self, block: Block) -> None:
        """Its bytes count as free from now on."""
        self._used_bytes -= _taken(block)

    def free(self, block: Block) -> None:
        self._blocks.remove(block)
        ctypes.memset(block.address, POISON, block.n_bytes)
        ctypes.memset(self.states(block.address), UNDEFINED, block.n_bytes)

    def block_of(self, what: str, address: int, n_bytes: int) -> Block:
        """The block that holds these bytes. Raises BackendError if none does."""
        i = bisect_right(self._blocks, address, key=lambda b: b.address) - 1
        block = self._blocks[i] if i >= 0 else None
        if block is None or address + n_bytes > block.address + block.n_bytes:
            raise BackendError(
                f"{self._name}: {what}: {n_bytes:,} bytes from {address:#x} on are not allocated"
            )
        return block

    def _gap(self, n_bytes: int) -> int | None:
        """The first place for a block with unused bytes round it."""
        begin = self._base + ALIGN
        for block in self._blocks:
            if begin + n_bytes + ALIGN <= block.address:
                return begin
            begin = _aligned(block.address + block.n_bytes) + ALIGN
        return begin if begin + n_bytes + ALIGN <= self._base + self._size else None


@dataclass(eq=False, slots=True)
class Pending:
    """An access of host memory that is queued."""

    begin: int
    end: int
    writes: bool


@dataclass(slots=True)
class _Pinned:
    end: int
    history: History
    memory: weakref.ref[NDArray[np.uint8]]


@dataclass(slots=True)
class HostMemory:
    """Host memory that copies of any device use."""

    _pending: list[Pending] = field(default_factory=list)
    _pinned: dict[int, _Pinned] = field(default_factory=dict)

    def allocate_pinned(self, name: str, n_bytes: int) -> NDArray[np.uint8]:
        try:
            raw = np.zeros(n_bytes + 2 * ALIGN, np.uint8)
        except MemoryError:
            text = f"{name}: asked for {_mb(n_bytes)} of pinned host memory"
            raise AllocationError(text) from None
        begin = address_of(raw)
        pinned = _Pinned(begin + raw.nbytes, History("pinned host memory"), weakref.ref(raw))
        self._pinned[begin] = pinned
        weakref.finalize(raw, self._pinned.pop, begin, None).atexit = False
        first = -begin % ALIGN
        return raw[first : first + n_bytes]

    def pinned(self, address: int, n_bytes: int) -> tuple[NDArray[np.uint8], History] | None:
        """The pinned memory that holds these bytes, and who accessed it."""
        for begin, pinned in list(self._pinned.items()):
            memory = pinned.memory()
            if memory is not None and begin <= address and address + n_bytes <= pinned.end:
                return memory, pinned.history
        return None

    def add(self, access: Pending) -> bool:
        """Whether no queued work has to do with these bytes yet."""
        alone = not any(
            access.begin < other.end
            and other.begin < access.end
            and (access.writes or other.writes)
            for other in self._pending
        )
        self._pending.append(access)
        return alone

    def done(self, access: Pending) -> None:
        self._pending.remove(access)


HOST_MEMORY = HostMemory()


def checksum(address: int, n_bytes: int) -> int:
    return zlib.adler32((ctypes.c_char * n_bytes).from_address(address))


def _aligned(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def _taken_bytes(n_bytes: int) -> int:
    return _aligned(max(n_bytes, 1))


def _taken(block: Block) -> int:
    return _taken_bytes(block.n_bytes)


def _mb(n_bytes: int) -> str:
    return f"{-(-n_bytes // _MB):,} MB"
