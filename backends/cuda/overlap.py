"""Launches that begin before those before them end (programmatic dependent launch).

A kernel that is launched so is set up, and its first blocks start, as soon as all blocks of the
kernel before it run. Each kernel of this package waits by an instruction of its own until the
launches before it are complete (`common.cuh`). CUDA has it from compute capability 9.0 on, and in
captured graphs since version 12.3. CuPy does not offer it: here is the one call of CUDA's driver
library that goes past it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from ggmlpy.backends.cuda.driver import Grid

_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_FIRST_CAPABILITY = (9, 0)
_FIRST_VERSION = 12_030


class Attribute(ctypes.Structure):
    """CUlaunchAttribute, whose value is a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("n_attributes", ctypes.c_uint),
    )


def driver_library() -> Any:
    """CUDA's driver library, or None where it cannot be loaded."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


class OverlappingLaunch:
    """Launches kernels that may overlap with the one before them."""

    def __init__(self, launch_kernel_ex: Callable[..., int]) -> None:
        self._launch = launch_kernel_ex
        self._attribute = Attribute(id=_SERIALIZATION)
        self._attribute.value[0] = 1

    @classmethod
    def of(cls, capability: tuple[int, int], version: int) -> OverlappingLaunch | None:
        """For a device and a version of CUDA's driver; None where they do not have it."""
        if capability < _FIRST_CAPABILITY or version < _FIRST_VERSION:
            return None
        launch = getattr(driver_library(), "cuLaunchKernelEx", None)
        return None if launch is None else cls(launch)

    def __call__(
        self,
        function: int,
        grid: Grid,
        block: Grid,
        shared_bytes: int,
        stream: int,
        parameters: int,
    ) -> int:
        """The status of CUDA's driver, 0 for success. `parameters` is where the addresses of a
        kernel's parameters are."""
        config = Config(grid, block, shared_bytes, stream, ctypes.pointer(self._attribute), 1)
        status = self._launch(
            ctypes.byref(config), ctypes.c_void_p(function), ctypes.c_void_p(parameters), None
        )
        return int(status)
