"""The driver of GPUs: CUDA through CuPy, of which the project uses nothing else anywhere.

CuPy is taken for its bindings: memory comes from cudaMalloc and not from CuPy's pool, kernels from
`cubins.py` and not from CuPy's compiler. Every call makes its device the current one and restores
the one before, which may be the caller's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cuda.cubins import Cubins
from ggmlpy.backends.cuda.driver import (
    Access,
    Allocation,
    Captured,
    DeviceInfo,
    Driver,
    DriverEvent,
    Function,
    Grid,
)
from ggmlpy.backends.cuda.overlap import OverlappingLaunch
from ggmlpy.backends.cuda.source import Form, Unit
from ggmlpy.common.limits import NOT_LOADED, cannot_load
from ggmlpy.errors import AllocationError, BackendError

# In the environment: `0` lets each launch begin when the one before it is complete.
OVERLAP = "GGMLPY_CUDA_OVERLAP"
_INSTALL = "pip install 'ggmlpy[cuda13]' (or [cuda] for CUDA 12)"
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation, and the driver's CUDA_ERROR_OUT_OF_MEMORY
_OLD_DRIVER = 35  # cudaErrorInsufficientDriver
_NO_DEVICE = 100  # cudaErrorNoDevice
_PEER_ALREADY = 704  # cudaErrorPeerAccessAlreadyEnabled
_PLAIN_SHARED_BYTES = 48 << 10  # which every kernel may have without asking, static ones included
_STATIC_SHARED = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_MB = 1 << 20


def device_count() -> int:
    """The number of GPUs that CUDA shows to this process; 0 without a GPU or its driver.

    Raises BackendError without CuPy.
    """
    runtime = _cupy().cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError:
        return 0


def _cupy() -> Any:
    """CuPy, which is imported when a device is asked for. Raises BackendError without it."""
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name == "cupy":
            raise BackendError(f"the CUDA backend needs CuPy: {_INSTALL}") from None
        raise BackendError(cannot_load("CuPy", error)) from error
    except NOT_LOADED as error:
        raise BackendError(cannot_load("CuPy", error)) from error
    return cupy


class CupyDriver(Driver):
    """A GPU and a stream on it."""

    def __init__(self, device: int = 0) -> None:
        """Raises BackendError where CuPy, NVRTC, CUDA's driver or this device is missing."""
        self._cupy = _cupy()
        self._runtime = self._cupy.cuda.runtime
        self._errors = (self._runtime.CUDARuntimeError, self._cupy.cuda.driver.CUDADriverError)
        self.name = "cuda" if device == 0 else f"cuda:{device}"
        self._check_device(device)
        self.device = device
        self._memory = _Memory(self._runtime)
        with self._doing("opening the device"):
            self.info = self._device_info()
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
            # A driver loads machine code of its own major version of CUDA, and of older ones.
            version = int(self._runtime.driverGetVersion())
        self._memory.synchronize = self._stream.synchronize
        self._overlapping: OverlappingLaunch | None = None
        if os.environ.get(OVERLAP) != "0":
            self._overlapping = OverlappingLaunch.of(self.info.capability, version)
        self._cubins = Cubins(max_major=version // 1000)
        self._arch = self._cubins.compiler.arch_for(self.info.capability)
        self._loading = threading.Lock()
        self._modules: dict[Unit, Any] = {}
        self._functions: dict[Form, Function] = {}

    def _check_device(self, device: int) -> None:
        try:
            n = int(self._runtime.getDeviceCount())
        except self._errors as error:
            version = int(self._runtime.driverGetVersion())
            if version == 0:
                raise BackendError(f"{self.name}: no CUDA driver is installed") from None
            if error.status != _NO_DEVICE:
                hint = _remedy(version) if error.status == _OLD_DRIVER else ""
                raise BackendError(
                    f"{self.name}: CUDA cannot be used here: {error}{hint}"
                ) from error
            n = 0
        if n == 0:
            raise BackendError(f"{self.name}: there is no GPU that CUDA can use")
        if not 0 <= device < n:
            raise BackendError(f"{self.name}: there is no such device; CUDA has {n}, from 0 on")

    def _device_info(self) -> DeviceInfo:
        found = self._runtime.getDeviceProperties(self.device)
        return DeviceInfo(
            name=found["name"].decode(),
            capability=(int(found["major"]), int(found["minor"])),
            n_sm=int(found["multiProcessorCount"]),
            total_bytes=int(found["totalGlobalMem"]),
            shared_bytes=int(
                self._runtime.deviceGetAttribute(
                    self._runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, self.device
                )
            ),
        )

    @contextlib.contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Makes this device the current one, and CUDA's errors the project's."""
        try:
            with self._memory.on(self.device):
                yield
        except self._errors as error:
            if error.status == _OUT_OF_MEMORY:
                raise AllocationError(f"{self.name}: {what}: {self._free_text()}") from error
            raise BackendError(f"{self.name}: {what}: {error}") from error

    # --- memory ---

    def free_bytes(self) -> int:
        with self._doing("asking for free memory"):
            return int(self._runtime.memGetInfo()[0])

    def allocate(self, n_bytes: int) -> Allocation:
        with self._doing(f"asked for {_mb(n_bytes)} of device memory"):
            address = int(self._runtime.malloc(max(n_bytes, 1)))
        allocation = _CupyAllocation(address, n_bytes)
        _finally(allocation, self._memory, self.device, self._runtime.free, address)
        return allocation

    def allocate_pinned(self, n_bytes: int) -> NDArray[np.uint8]:
        size = max(n_bytes, 1)
        try:
            with self._memory.on(self.device):
                address = int(self._runtime.hostAlloc(size, self._runtime.hostAllocPortable))
        except self._errors as error:
            text = f"{self.name}: asked for {_mb(n_bytes)} of pinned host memory: {error}"
            raise AllocationError(text) from error
        memory = (ctypes.c_ubyte * size).from_address(address)
        _finally(memory, self._memory, self.device, self._runtime.freeHost, address)
        pinned = np.frombuffer(memoryview(memory), np.uint8)[:n_bytes]
        pinned[:] = 0
        return pinned

    def copy(self, target: int, source: int, n_bytes: int) -> None:
        if n_bytes:
            with self._doing(f"copying {n_bytes:,} bytes"):
                # "Default": CUDA tells by the addresses where they are.
                kind = self._runtime.memcpyDefault
                self._runtime.memcpyAsync(target, source, n_bytes, kind, self._stream.ptr)

    def fill(self, target: int, value: int, n_bytes: int) -> None:
        if n_bytes:
            with self._doing(f"filling {n_bytes:,} bytes"):
                self._runtime.memsetAsync(target, value, n_bytes, self._stream.ptr)

    def can_copy_from(self, other: Driver) -> bool:
        """Of another GPU, if this one can access its memory, which is then allowed to it."""
        if not isinstance(other, CupyDriver):
            return False
        if other.device == self.device:
            return True
        with self._doing(f"asking for access to the memory of {other.name}"):
            if not self._runtime.deviceCanAccessPeer(self.device, other.device):
                return False
            try:
                self._runtime.deviceEnablePeerAccess(other.device)
            except self._runtime.CUDARuntimeError as error:
                if error.status != _PEER_ALREADY:
                    raise
            return True

    def _free_text(self) -> str:
        """How much memory is free, as far as it can be told after an error."""
        try:
            with self._memory.on(self.device):
                free, total = self._runtime.memGetInfo()
        except self._errors:
            return "out of memory"
        return f"{free // _MB:,} MB of {total // _MB:,} MB are free"

    # --- order ---

    def record(self) -> DriverEvent:
        with self._doing("recording an event"):
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(self._stream)
        return _CupyEvent(self, event)

    def wait(self, event: DriverEvent) -> None:
        assert isinstance(event, _CupyEvent)
        with self._doing("waiting for an event"):
            self._stream.wait_event(event.event)

    def synchronize(self) -> None:
        with self._doing("waiting for the device"):
            self._stream.synchronize()

    # --- kernels ---

    def functions(self, forms: Iterable[Form]) -> dict[Form, Function]:
        wanted = list(dict.fromkeys(forms))
        with self._loading:
            units = {form.unit for form in wanted} - self._modules.keys()
            if units:
                self._load(sorted(units, key=str))
            for form in wanted:
                if form not in self._functions:
                    self._functions[form] = self._function(form)
            return {form: self._functions[form] for form in wanted}

    def _load(self, units: Sequence[Unit]) -> None:
        for unit, code in self._cubins.load(units, self._arch).items():
            with self._doing(f"loading {unit}"):
                module = self._cupy.cuda.function.Module()
                module.load(code)
            self._modules[unit] = module

    def _function(self, form: Form) -> Function:
        with self._doing(f"loading {form}"):
            kernel = self._modules[form.unit].get_function(form.name)
            # CUDA may load a kernel with its first use, which a capture would not allow.
            n_static = int(self._cupy.cuda.driver.funcGetAttribute(_STATIC_SHARED, kernel.ptr))
        return _CupyFunction(form.name, kernel, _PLAIN_SHARED_BYTES - n_static)

    def launch(
        self,
        function: Function,
        grid: Grid,
        block: Grid,
        shared_bytes: int,
        args: NDArray[Any],
        run: NDArray[Any],
        accesses: Sequence[Access],
    ) -> None:
        assert isinstance(function, _CupyFunction)
        # CUDA copies the structs before this returns.
        parameters = (ctypes.c_void_p * 2)(args.ctypes.data, run.ctypes.data)
        with self._doing(f"launching {function.name} with grid {grid} and block {block}"):
            if shared_bytes > function.allowed_bytes:
                self._cupy.cuda.driver.funcSetAttribute(
                    function.kernel.ptr, _MAX_DYNAMIC_SHARED, shared_bytes
                )
                function.allowed_bytes = shared_bytes
            at, stream = ctypes.addressof(parameters), self._stream.ptr
            if self._overlapping is None:
                self._cupy.cuda.driver.launchKernel(
                    function.kernel.ptr, *grid, *block, shared_bytes, stream, at, 0
                )
                return
            status = self._overlapping(function.kernel.ptr, grid, block, shared_bytes, stream, at)
            if status != 0:
                raise self._cupy.cuda.driver.CUDADriverError(status)

    def capture(self, work: Callable[[], None]) -> Captured:
        with self._doing("capturing a graph"), self._memory.kept():
            # "Relaxed": the other modes forbid this thread, and some of them other threads, calls
            # such as cudaMalloc, which the caller's own code may make at any time.
            try:
                self._stream.begin_capture(self._runtime.streamCaptureModeRelaxed)
                work()
                graph = self._stream.end_capture()
            except BaseException:  # an interrupt may come between any two of them
                with contextlib.suppress(*self._errors):  # it may have ended
                    self._stream.end_capture()
                raise
            graph.upload(self._stream)
        return _CupyCaptured(self, graph)


class _Memory:
    """Frees what is no longer referenced, in whatever thread and device that happens.

    Queued work may still use it, so the stream is passed first: CUDA itself only says that it may
    wait. While a graph is captured a stream cannot be waited for, so memory is kept until then.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self.synchronize: Callable[[], None] = lambda: None
        self._capturing = False
        self._kept: list[tuple[int, Callable[[int], None], int]] = []
        self._lock = threading.RLock()  # the garbage collector may free in a thread that holds it
        self._threads = threading.local()

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Makes a device the current one of this thread."""
        before = self._runtime.getDevice()
        if before == device and getattr(self._threads, "has_context", False):
            yield
            return
        self._runtime.setDevice(device)
        try:
            # CUDA makes a thread's context with its first call of the runtime that needs one; the
            # driver's functions, which load and launch kernels, fail without.
            if not getattr(self._threads, "has_context", False):
                self._runtime.memGetInfo()
                self._threads.has_context = True
            yield
        finally:
            self._runtime.setDevice(before)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Frees nothing in the block, but after it."""
        with self._lock:
            if self._capturing:
                raise BackendError("a graph is being captured from this stream already")
            self._capturing = True
        try:
            yield
        finally:
            with self._lock:
                self._capturing = False
                kept, self._kept = self._kept, []
            for one in kept:
                self.free(*one)

    def free(self, device: int, release: Callable[[int], None], address: int) -> None:
        with self._lock:  # to the end: another thread must not begin a capture meanwhile
            if self._capturing:
                self._kept.append((device, release, address))
                return
            # After an error of a kernel every call fails, and the memory is gone with the process.
            with contextlib.suppress(self._runtime.CUDARuntimeError), self.on(device):
                self.synchronize()
                release(address)


def _finally(
    owner: object, memory: _Memory, device: int, release: Callable[[int], None], address: int
) -> None:
    """Frees an address with the last reference to its owner. At exit the process frees it."""
    weakref.finalize(owner, memory.free, device, release, address).atexit = False


class _CupyAllocation(Allocation):
    def __init__(self, address: int, n_bytes: int) -> None:
        self.address = address
        self.n_bytes = n_bytes


class _CupyEvent(DriverEvent):
    def __init__(self, driver: CupyDriver, event: Any) -> None:
        self._driver = driver
        self.event = event

    def synchronize(self) -> None:
        with self._driver._doing("waiting for an event"):
            self.event.synchronize()


class _CupyFunction(Function):
    """A kernel, and the dynamic shared memory that its launches may have by now."""

    def __init__(self, name: str, kernel: Any, allowed_bytes: int) -> None:
        self.name = name
        self.kernel = kernel
        self.allowed_bytes = allowed_bytes


class _CupyCaptured(Captured):
    def __init__(self, driver: CupyDriver, graph: Any) -> None:
        self._driver = driver
        self._graph = graph

    def launch(self) -> None:
        with self._driver._doing("launching a graph"):
            self._graph.launch(self._driver._stream)


def _remedy(version: int) -> str:
    """What to do about a driver that is older than CuPy's CUDA."""
    major, minor = version // 1000, version % 1000 // 10
    extra = "install ggmlpy[cuda] in a new environment, or " if major == 12 else ""
    return f" (the driver has CUDA {major}.{minor}: {extra}update the driver)"


def _mb(n_bytes: int) -> str:
    return f"{-(-n_bytes // _MB):,} MB"
