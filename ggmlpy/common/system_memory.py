"""The machine's memory: its size, and returning freed memory to the system."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from ggmlpy.errors import AllocationError

# Where Linux tells the limit of a container (of its control group, version 2 or 1).
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def physical_memory() -> int:
    """Bytes of memory of the machine, or of the container if it may have less; sys.maxsize where
    the system does not report them.
    """
    if os.name != "posix":
        return sys.maxsize
    return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *map(_limit, _LIMITS))


def _limit(path: Path) -> int:
    """The bytes that a file names; sys.maxsize if it is not there, or says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return sys.maxsize
    return int(text) if text.isdecimal() else sys.maxsize


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
