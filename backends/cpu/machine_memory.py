"""Memory that machine code runs from: mapped writable, filled, then made executable and read-only.

Only on Linux for x86-64, where this package loads code itself (`HERE`). Pages are never unmapped
once addresses in them have been returned, not even when the interpreter exits: threads may still
run that code. No page is writable and executable at the same time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from functools import cache
from typing import Any

# A 32-bit Python on a 64-bit kernel reports x86_64 too.
HERE = (
    sys.platform == "linux"
    and platform.machine().lower() in ("x86_64", "amd64")
    and sys.maxsize > 1 << 32
)
PAGE = mmap.PAGESIZE
_MAP_PRIVATE_ANONYMOUS = 0x22  # of Linux
_FAILED = ctypes.c_void_p(-1).value


@cache
def _system() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
    ]
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


class Pages:
    """Zeroed pages of this process."""

    def __init__(self, n_bytes: int) -> None:
        """Maps writable pages for `n_bytes`. Raises OSError where that fails."""
        self._n_bytes = -(-n_bytes // PAGE) * PAGE
        address = _system().mmap(
            None,
            self._n_bytes,
            mmap.PROT_READ | mmap.PROT_WRITE,
            _MAP_PRIVATE_ANONYMOUS,
            -1,
            0,
        )
        if address == _FAILED:
            raise _error()
        self.address: int = address

    def write(self, content: bytes | bytearray) -> None:
        """Fills them from the start."""
        assert len(content) <= self._n_bytes
        source = (ctypes.c_char * len(content)).from_buffer_copy(content)
        ctypes.memmove(self.address, source, len(content))

    def close(self, n_code: int, n_constant: int) -> None:
        """Makes the first `n_code` bytes executable and the next `n_constant` read-only, both whole
        pages; the rest stays writable. Raises OSError where the system refuses, after unmapping all
        pages."""
        try:
            self._protect(0, n_code, mmap.PROT_READ | mmap.PROT_EXEC)
            self._protect(n_code, n_constant, mmap.PROT_READ)
        except OSError:
            _system().munmap(self.address, self._n_bytes)
            raise

    def _protect(self, start: int, n_bytes: int, protection: int) -> None:
        assert start % PAGE == n_bytes % PAGE == 0
        if n_bytes and _system().mprotect(self.address + start, n_bytes, protection):
            raise _error()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
