"""The compiled runtime and units in this process, through ctypes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ggmlpy.backends.cuda.driver import Access, Grid
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
        ("image", ctypes.c_uint64),
        ("image_end", ctypes.c_uint64),
        ("shared", ctypes.c_uint64),
        ("shared_end", ctypes.c_uint64),
        ("device", ctypes.c_uint64),
        ("device_bytes", ctypes.c_uint64),
        ("ranges", ctypes.c_void_p),
        ("n_ranges", ctypes.c_uint64),
    )


class _Range(ctypes.Structure):
    """`Range` of emulator.cpp."""

    _fields_ = (
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("what", ctypes.c_char_p),
        ("writes", ctypes.c_uint64),
    )


class _Image(ctypes.Structure):
    """`Image` of emulator.cpp."""

    _fields_ = (
        ("inside", ctypes.c_uint64),
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("zeros", ctypes.c_uint64),
        ("zeros_end", ctypes.c_uint64),
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
    """A kernel in this process: its address, and what it must be launched with.

    path    of the shared object that it is in
    image   where that lies in memory: from, to
    shared  its static shared memory in it: from, to
    """

    form: Form
    address: int
    args_bytes: int
    max_threads: int
    path: Path
    image: tuple[int, int]
    shared: tuple[int, int]


class Prepared:
    """A launch that can run any number of times."""

    def __init__(
        self,
        entry: Entry,
        grid: Grid,
        block: Grid,
        shared_bytes: int,
        args: bytes,
        run: bytes,
        device: tuple[int, int],
        accesses: Sequence[Access],
    ) -> None:
        """`device` is the address and the bytes of its memory."""
        self.entry = entry
        # The structs of kernels are aligned to 8 bytes.
        structs = [ctypes.create_string_buffer(struct, len(struct) + 8) for struct in (args, run)]
        ranges = (_Range * len(accesses))(
            *(_Range(x.address, x.address + x.n_bytes, x.what.encode(), x.writes) for x in accesses)
        )
        self._held = structs, ranges
        self.launch = _Launch(
            entry=entry.address,
            args=ctypes.addressof(structs[0]),
            run=ctypes.addressof(structs[1]),
            grid=(ctypes.c_uint32 * 3)(*grid),
            block=(ctypes.c_uint32 * 3)(*block),
            shared_bytes=shared_bytes,
            image=entry.image[0],
            image_end=entry.image[1],
            shared=entry.shared[0],
            shared_end=entry.shared[1],
            device=device[0],
            device_bytes=device[1],
            ranges=ctypes.addressof(ranges),
            n_ranges=len(accesses),
        )


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
        self._library.emulated_release.argtypes = [ctypes.c_uint64, ctypes.c_uint64]

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
        library, symbol = self._units[form.unit], f"kernel_{form.name}"
        try:
            address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
        except AttributeError:
            raise KernelError(f"{form.unit} has no kernel {form.name}") from None
        assert address is not None
        image = _Image(inside=address)
        self._library.emulated_image(ctypes.byref(image))
        return Entry(
            form,
            address,
            ctypes.c_int.in_dll(library, f"{symbol}_args_bytes").value,
            ctypes.c_int.in_dll(library, f"{symbol}_threads").value,
            Path(library._name),
            (image.begin, image.end),
            (image.zeros, image.zeros_end),
        )

    def reserve(self, n_bytes: int) -> int:
        """Addresses for a device's memory, of which pages are taken as they are used. Behind it is
        its shadow, a byte of state per byte first."""
        address = int(self._library.emulated_reserve(n_bytes))
        if address == 0:
            raise AllocationError(f"no addresses for {n_bytes:,} bytes of an emulated device")
        return address

    def release(self, address: int, n_bytes: int) -> None:
        """Gives reserved memory back."""
        self._library.emulated_release(address, n_bytes)

    def launch(self, prepared: Prepared, seed: int) -> str | None:
        """Runs a launch. Returns what was wrong with it, if anything was."""
        error = _Error()
        with self._lock:
            prepared.launch.seed = seed & 0xFFFFFFFF
            rc = self._library.emulated_launch(ctypes.byref(prepared.launch), ctypes.byref(error))
        if rc:
            raise AllocationError("no memory for the stacks or the shadow of emulated threads")
        if not error.text:
            return None
        text = error.text.decode(errors="replace")
        where = _line(prepared.entry.path, error.pc) if error.pc else ""
        return f"{where}block {_index(error.block)}, thread {_index(error.thread)}: {text}"


@cache
def runtime() -> Runtime:
    """That of this process. Raises BackendError without a compiler."""
    return Runtime()


def _index(of: ctypes.Array[ctypes.c_uint32]) -> str:
    """`3`, or `(3, 0, 1)` where more than x counts."""
    x, y, z = of
    return str(x) if y == z == 0 else f"({x}, {y}, {z})"


def _line(path: Path, pc: int) -> str:
    """`norm.cu:23, ` for an address behind a call, where binutils are installed."""
    tool = shutil.which("addr2line")
    if tool is None or not 0 < pc < 1 << 32:
        return ""
    command = [tool, "-i", "-s", "-e", str(path), hex(pc - 1)]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.split("\n")
    known = [line.split(" ")[0] for line in lines if line and "?" not in line]
    # Calls that were inlined come first: functions of the header say less than who calls them.
    known = [line for line in known if not line.startswith("cuda_on_cpu.hpp")]
    return f"{' in '.join(known[:3])}, " if known else ""
