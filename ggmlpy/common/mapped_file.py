"""Files mapped into memory, of which no descriptor stays open.

`mmap.mmap` keeps one for each mapped file, and a process may often open 1024 only: fewer than three
large models have weights. So the system's `mmap` is called instead, except on Windows, where
handles are not that few, and on 32-bit systems, where the type of its last argument varies.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CALLS_SYSTEM = sys.platform != "win32" and sys.maxsize > 1 << 32
_FAILED = ctypes.c_void_p(-1).value


def map_file(descriptor: int, n_bytes: int) -> NDArray[np.uint8]:
    """The first `n_bytes` of an open file, mapped until the last array of them is gone.

    The pages are shared with all who map the file, up to the first write: machine code may write to
    them, which changes this process's copy of a page and not the file. Raises OSError.
    """
    if n_bytes == 0:
        raise OSError(errno.EINVAL, "an empty file cannot be mapped")
    if _CALLS_SYSTEM:
        content = np.asarray(_Pages(descriptor, n_bytes))
    else:
        content = _map_by_python(descriptor, n_bytes)
    content.flags.writeable = False
    return content


def _map_by_python(descriptor: int, n_bytes: int) -> NDArray[np.uint8]:
    try:
        return np.frombuffer(mmap.mmap(descriptor, n_bytes, access=mmap.ACCESS_COPY), np.uint8)
    except (ValueError, OverflowError) as error:  # the file has shrunk, or is too large
        raise OSError(errno.EINVAL, str(error)) from error


class _Pages:
    """Pages of a file, which numpy takes as an array of bytes, and which are unmapped with it."""

    def __init__(self, descriptor: int, n_bytes: int) -> None:
        address = _system().mmap(
            None, n_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, descriptor, 0
        )
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._place = (address, n_bytes)
        self._unmap = _system().munmap
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (n_bytes,),
            "data": (address, False),
        }

    def __del__(self) -> None:
        if hasattr(self, "_unmap"):  # not if mapping failed
            self._unmap(*self._place)


@cache
def _system() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
    ]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library
