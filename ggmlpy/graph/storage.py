"""Memory that leaves and results lie in."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.open_file import FilePlace
from ggmlpy.errors import AllocationError

ALIGNMENT = 64  # one cache line, and one AVX512 vector


def address_of(array: NDArray[Any]) -> int:
    """Where an array's first element lies."""
    return int(array.__array_interface__["data"][0])


def aligned_bytes(n_bytes: int) -> NDArray[np.uint8]:
    """Zeroed host memory whose address is a multiple of ALIGNMENT. Raises AllocationError."""
    try:
        raw = np.zeros(n_bytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: beyond what an address can reach
        raise AllocationError(f"{n_bytes} bytes of memory cannot be had") from error
    start = -address_of(raw) % ALIGNMENT
    return raw[start : start + n_bytes]


def physical_memory() -> int:
    """Bytes of memory that the machine has; sys.maxsize where the system does not tell."""
    if os.name != "posix":
        return sys.maxsize
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(n_bytes: int) -> None:
    """Raise AllocationError for more than the machine's memory: it might be had, but not filled."""
    has = physical_memory()
    if n_bytes > has:
        raise AllocationError(f"{n_bytes} bytes of memory cannot be had, this machine has {has}")


def give_back_free_memory() -> None:
    """Let the system have what was freed, where the C library would keep it (glibc does)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Storage:
    """Bytes on the host, compared by identity.

    `device` names the backend whose memory holds them: "host" is what every CPU-side backend reads.
    `place` is there for bytes of a mapped file: reading them from there instead brings no page of
    the map into the process's memory.
    """

    data: NDArray[np.uint8]
    device: str = "host"
    place: FilePlace | None = None
    address: int = field(init=False)

    @property
    def n_bytes(self) -> int:
        return self.data.nbytes

    def __post_init__(self) -> None:
        self.address = address_of(self.data)

    def __reduce__(self) -> tuple[type[Storage], tuple[NDArray[np.uint8], str]]:
        """A copy has an address of its own, and is no bytes of a file any more."""
        return Storage, (self.data, self.device)
