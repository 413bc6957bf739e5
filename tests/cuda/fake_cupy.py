"""The part of CuPy that the driver uses, on memory of the host: calls are noted, copies are done.
Code for the device is a text.

Work on a stream is done at once, or kept while it is captured. The current device and contexts are
per thread, as CUDA has them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from ggmlpy.backends.cuda.driver import Driver
from ggmlpy.backends.cuda.source import Unit
from ggmlpy.errors import KernelError

PINNED = 1
TOTAL_BYTES = 81_559 << 20


class CudaError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError{status}: as the test wants it")
        self.status = status


class CUDARuntimeError(CudaError):
    pass


class CUDADriverError(CudaError):
    pass


class FakeCupy:
    """What `import cupy` gives. `calls` are (function, current device, arguments), in order;
    `failures` are statuses by the name of the function that shall fail."""

    def __init__(self, n_devices: int = 2, driver_version: int = 13000) -> None:
        self.n_devices = n_devices
        self.driver_version = driver_version
        self.calls: list[tuple[str, int, tuple[Any, ...]]] = []
        self.failures: dict[str, int] = {}
        self.free_bytes = 1024 << 20
        self.memory: dict[int, Any] = {}
        self.streams: dict[int, FakeStream] = {}
        self.threads = threading.local()
        self.structs: list[tuple[bytes, bytes]] = []
        self.struct_bytes = (0, 0)  # of the parameters of kernels
        self.static_shared_bytes = 0  # of kernels
        self.cuda = SimpleNamespace(
            runtime=self._runtime(),
            driver=self._driver(),
            function=SimpleNamespace(Module=lambda: FakeModule(self)),
            Stream=lambda non_blocking: FakeStream(self, non_blocking),
            Event=lambda disable_timing: FakeEvent(self, disable_timing),
        )

    @property
    def device(self) -> int:
        device: int = getattr(self.threads, "device", 0)
        return device

    def names(self) -> list[str]:
        """Of the functions called."""
        return [name for name, _, _ in self.calls]

    def devices(self, name: str) -> list[int]:
        """The current device at each call of a function."""
        return [device for called, device, _ in self.calls if called == name]

    def note(self, name: str, *args: Any, error: type[CudaError] = CUDARuntimeError) -> None:
        self.calls.append((name, self.device, args))
        if name in self.failures:
            raise error(self.failures[name])

    def _runtime(self) -> SimpleNamespace:
        return SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            cudaDevAttrMaxSharedMemoryPerBlockOptin=97,
            hostAllocPortable=PINNED,
            memcpyDefault=4,
            streamCaptureModeRelaxed=2,
            getDeviceCount=self.get_device_count,
            driverGetVersion=lambda: self.driver_version,
            getDevice=lambda: self.device,
            setDevice=self.set_device,
            getDeviceProperties=self.get_device_properties,
            deviceGetAttribute=lambda attribute, device: {97: 232_448}[attribute],
            memGetInfo=self.mem_get_info,
            malloc=self.malloc,
            hostAlloc=lambda n_bytes, flags: self.malloc(n_bytes, "hostAlloc", flags),
            free=lambda address: self.release("free", address),
            freeHost=lambda address: self.release("freeHost", address),
            memcpyAsync=self.memcpy_async,
            memsetAsync=self.memset_async,
            deviceCanAccessPeer=lambda device, peer: int({device, peer} == {0, 1}),
            deviceEnablePeerAccess=lambda peer: self.note("deviceEnablePeerAccess", peer),
        )

    def _driver(self) -> SimpleNamespace:
        return SimpleNamespace(
            CUDADriverError=CUDADriverError,
            funcGetAttribute=self.func_get_attribute,
            funcSetAttribute=lambda *args: self.of_driver("funcSetAttribute", *args),
            launchKernel=self.launch_kernel,
        )

    def get_device_count(self) -> int:
        self.note("getDeviceCount")
        return self.n_devices

    def set_device(self, device: int) -> None:
        self.threads.device = device

    def get_device_properties(self, device: int) -> dict[str, Any]:
        return {
            "name": b"NVIDIA H100 80GB HBM3",
            "major": 9,
            "minor": 0,
            "multiProcessorCount": 132,
            "totalGlobalMem": TOTAL_BYTES,
        }

    def mem_get_info(self) -> tuple[int, int]:
        self.note("memGetInfo")
        self.threads.contexts = {*getattr(self.threads, "contexts", ()), self.device}
        return self.free_bytes, TOTAL_BYTES

    def malloc(self, n_bytes: int, name: str = "malloc", *flags: int) -> int:
        self.note(name, n_bytes, *flags)
        memory = ctypes.create_string_buffer(b"\xee" * n_bytes, n_bytes)
        self.memory[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def release(self, name: str, address: int) -> None:
        self.note(name, address)
        del self.memory[address]

    def memcpy_async(self, target: int, source: int, n_bytes: int, kind: int, stream: int) -> None:
        self.note("memcpyAsync", n_bytes, kind)
        self.streams[stream].do(lambda: ctypes.memmove(target, source, n_bytes))

    def memset_async(self, target: int, value: int, n_bytes: int, stream: int) -> None:
        self.note("memsetAsync", n_bytes)
        self.streams[stream].do(lambda: ctypes.memset(target, value, n_bytes))

    def of_driver(self, name: str, *args: int) -> None:
        """A function of CUDA's driver, which needs a context."""
        self.note(name, *args, error=CUDADriverError)
        if self.device not in getattr(self.threads, "contexts", ()):
            raise CUDADriverError(201)  # CUDA_ERROR_INVALID_CONTEXT

    def func_get_attribute(self, attribute: int, function: int) -> int:
        self.of_driver("funcGetAttribute", attribute, function)
        return {1: self.static_shared_bytes}[attribute]

    def launch_kernel(self, function: int, *args: int) -> None:
        *sizes, stream, parameters, extra = args
        self.of_driver("launchKernel", function, *sizes)
        assert extra == 0
        first, second = (ctypes.c_size_t * 2).from_address(parameters)
        n_args, n_run = self.struct_bytes
        structs = ctypes.string_at(first, n_args), ctypes.string_at(second, n_run)
        self.streams[stream].do(lambda: self.structs.append(structs))


class FakeModule:
    def __init__(self, cupy: FakeCupy) -> None:
        self.cupy = cupy

    def load(self, cubin: bytes) -> None:
        self.cupy.note("load", cubin, error=CUDADriverError)

    def get_function(self, name: str) -> SimpleNamespace:
        self.cupy.note("get_function", name, error=CUDADriverError)
        return SimpleNamespace(ptr=0xF00)


class FakeStream:
    def __init__(self, cupy: FakeCupy, non_blocking: bool) -> None:
        assert non_blocking
        self.cupy = cupy
        self.ptr = len(cupy.streams) + 100
        self.captured: list[Callable[[], Any]] | None = None
        cupy.note("Stream")
        cupy.streams[self.ptr] = self

    def do(self, work: Callable[[], Any]) -> None:
        if self.captured is not None:
            self.captured.append(work)
        else:
            work()

    def synchronize(self) -> None:
        assert self.captured is None, "CUDA gives up the capture"
        self.cupy.note("synchronize", self.ptr)

    def wait_event(self, event: FakeEvent) -> None:
        self.cupy.note("wait_event", event)

    def begin_capture(self, mode: int) -> None:
        self.cupy.note("begin_capture", mode)
        self.captured = []

    def end_capture(self) -> FakeGraph:
        work, self.captured = self.captured, None
        self.cupy.note("end_capture")
        if work is None:
            raise CUDARuntimeError(401)  # cudaErrorIllegalState
        return FakeGraph(self.cupy, work)


class FakeGraph:
    def __init__(self, cupy: FakeCupy, work: list[Callable[[], Any]]) -> None:
        self.cupy = cupy
        self.work = work

    def upload(self, stream: FakeStream) -> None:
        self.cupy.note("upload", stream.ptr)

    def launch(self, stream: FakeStream) -> None:
        self.cupy.note("graphLaunch", stream.ptr)
        for one in self.work:
            one()


class FakeEvent:
    def __init__(self, cupy: FakeCupy, disable_timing: bool) -> None:
        assert disable_timing
        self.cupy = cupy

    def record(self, stream: FakeStream) -> None:
        self.cupy.note("record", stream.ptr)

    def synchronize(self) -> None:
        self.cupy.note("event.synchronize")


class FakeCubins:
    """Compiles to a text."""

    loaded: list[tuple[str, ...]]

    def __init__(self, *, max_major: int) -> None:
        self.compiler = SimpleNamespace(arch_for=lambda capability: f"sm_{capability}")
        self.max_major = max_major
        self.loaded = []

    def load(self, units: Iterable[Unit], arch: str) -> dict[Unit, bytes]:
        self.loaded.append(tuple(str(unit) for unit in units))
        if any(unit.file == "wrong.cu" for unit in units):
            raise KernelError("wrong.cu does not compile")
        return {unit: f"{unit} for {arch}".encode() for unit in units}


def bytes_at(driver: Driver, address: int, n_bytes: int) -> bytes:
    """What lies in memory of the device."""
    host = driver.allocate_pinned(n_bytes)
    driver.copy(host.ctypes.data, address, n_bytes)
    driver.synchronize()
    return host.tobytes()
