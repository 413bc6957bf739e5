"""External functions that compiled code may call, and their addresses in this process."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

# Memory functions that LLVM inserts, C's maths, waiting, and reading a file.
_MEMORY = ("memcpy", "memmove", "memset")
_MATH = ("exp", "log", "sin", "cos", "tan", "tanh", "pow", "erf", "fmod")
_WAITING = ("usleep", "clock")
_READING = ("pread",)
NAMES = (*_MEMORY, *_MATH, *(name + "f" for name in _MATH), *_WAITING, *_READING)


@cache
def addresses() -> Mapping[str, int]:
    """Addresses of those NAMES that this system has."""
    found = {name: _address(name) for name in NAMES}
    if sys.platform == "win32":
        switch = ctypes.cast(ctypes.windll.kernel32.SwitchToThread, ctypes.c_void_p).value
        found["usleep"] = switch
    return {name: address for name, address in found.items() if address}


def _address(name: str) -> int | None:
    if sys.platform == "win32":  # where no library stands for all that the process has loaded
        import llvmlite.binding as llvm

        address: int | None = llvm.address_of_symbol(name)
        return address
    for library in _libraries():
        if hasattr(library, name):
            return ctypes.cast(library[name], ctypes.c_void_p).value
    return None


def _libraries() -> Iterator[Any]:
    """What this process has loaded; then C's maths, which a Python that has a copy of its own may
    not have loaded."""
    yield ctypes.CDLL(None)
    with contextlib.suppress(OSError):
        yield ctypes.CDLL("libm.so.6")
