"""The machine's memory: its size, and returning freed memory to the system."""

from __future__ import annotations

import ctypes
import os
import sys

from ggmlpy.errors import AllocationError


def physical_memory() -> int:
    """Bytes of memory of the machine; sys.maxsize where the system does not report them."""
    if os.name != "posix":
        return sys.maxsize
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(n_bytes: int) -> None:
    """Raise AllocationError for more than the machine's memory, which the system might grant."""
    has = physical_memory()
    if n_bytes > has:
        raise AllocationError(f"{n_bytes} bytes of memory cannot be had, this machine has {has}")


def give_back_free_memory() -> None:
    """Return freed memory to the system, where the C library would keep it (glibc does)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
