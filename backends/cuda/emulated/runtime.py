"""The compiled runtime and units in this process, through ctypes."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ggmlpy.backends.cuda.driver import Grid
from ggmlpy.backends.cuda.emulated.compiler import Objects
from ggmlpy.backends.cuda.source import Form, Unit
from ggmlpy.errors import AllocationError, BackendError, KernelError

_TEXT_BYTES = 512


class _Launch(ctypes.Structure):
    """`Launch` of emulator.cpp."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("run", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("seed", ctypes.c_uint32),
    )


class _Error(ctypes.Structure):
    """`Error` of emulator.cpp."""

    _fields_ = (
        ("pc", ctypes.c_uint64),
        ("block", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32 * 3),
        ("text", ctypes.c_char * _TEXT_BYTES),
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel in this process: its address, and what it must be launched with."""

    form: Form
    address: int
    args_bytes: int
    max_threads: int


class Runtime:
    """The runtime, which runs one launch at a time, and the units that were loaded."""

    def __init__(self) -> None:
        """Raises BackendError without a compiler."""
        self._objects = Objects()
        self._folder = Path(tempfile.mkdtemp(prefix="ggmlpy-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._units: dict[Unit, ctypes.CDLL] = {}
        self._library = self._load("runtime", self._objects.runtime(), ctypes.RTLD_GLOBAL)
        self._library.emulated_reserve.restype = ctypes.c_uint64
        self._library.emulated_reserve.argtypes = [ctypes.c_uint64]

    def _load(self, name: str, code: bytes, mode: int) -> ctypes.CDLL:
        path = self._folder / f"{name}.so"
        path.write_bytes(code)
        try:
            return ctypes.CDLL(str(path), mode)
        except OSError as error:
            raise BackendError(f"the emulation cannot load {name}: {error}") from error

    def entries(self, forms: Iterable[Form]) -> dict[Form, Entry]:
        """Kernels of forms. Raises KernelError for a source that does not compile."""
        wanted = list(dict.fromkeys(forms))
        with self._loading:
            missing = sorted({form.unit for form in wanted} - self._units.keys(), key=str)
            for unit, code in self._objects.units(missing).items():
                name = f"{len(self._units)}-{Path(unit.file).stem}"
                self._units[unit] = self._load(name, code, ctypes.RTLD_LOCAL)
            return {form: self._entry(form) for form in wanted}

    def _entry(self, form: Form) -> Entry:
        library, symbol = self._units[form.unit], f"emulated_{form.name}"
        try:
            address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
        except AttributeError:
            raise KernelError(f"{form.unit} has no kernel {form.name}") from None
        assert address is not None
        return Entry(
            form,
            address,
            ctypes.c_int.in_dll(library, f"{symbol}_args_bytes").value,
            ctypes.c_int.in_dll(library, f"{symbol}_threads").value,
        )

    def reserve(self, n_bytes: int) -> int:
        """Addresses for a device's memory, of which pages are taken as they are used."""
        address = int(self._library.emulated_reserve(n_bytes))
        if address == 0:
            raise AllocationError(f"no addresses for {n_bytes:,} bytes of an emulated device")
        return address

    def launch(
        self,
        entry: Entry,
        grid: Grid,
        block: Grid,
        shared_bytes: int,
        args: bytes,
        run: bytes,
        seed: int,
    ) -> str | None:
        """Runs a launch. Returns what was wrong with it, if anything was."""
        error = _Error()
        # The structs of kernels are aligned to 8 bytes.
        held = [ctypes.create_string_buffer(struct, len(struct) + 8) for struct in (args, run)]
        launch = _Launch(
            entry=entry.address,
            args=ctypes.addressof(held[0]),
            run=ctypes.addressof(held[1]),
            grid=(ctypes.c_uint32 * 3)(*grid),
            block=(ctypes.c_uint32 * 3)(*block),
            shared_bytes=shared_bytes,
            seed=seed & 0xFFFFFFFF,
        )
        with self._lock:
            rc = self._library.emulated_launch(ctypes.byref(launch), ctypes.byref(error))
        if rc:
            raise AllocationError("no memory for the stacks of emulated threads")
        if not error.text:
            return None
        text = error.text.decode(errors="replace")
        return f"block {_index(error.block)}, thread {_index(error.thread)}: {text}"


@cache
def runtime() -> Runtime:
    """That of this process. Raises BackendError without a compiler."""
    return Runtime()


def _index(of: ctypes.Array[ctypes.c_uint32]) -> str:
    """`3`, or `(3, 0, 1)` where more than x counts."""
    x, y, z = of
    return str(x) if y == z == 0 else f"({x}, {y}, {z})"
