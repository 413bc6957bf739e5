"""The driver's logic against a CuPy that is not one (`fake_cupy.py`): what is called with what, on
which device, how errors are reported, and what a capture holds.

It cannot show that CUDA takes these calls as meant: that kernels get their structs, that copies are
asynchronous, that a graph can be made of what is captured. Only a GPU shows that.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ggmlpy.backends.cuda import cupy_driver, overlap
from ggmlpy.backends.cuda.args import RUN, TENSOR
from ggmlpy.backends.cuda.cupy_driver import CupyDriver, device_count
from ggmlpy.backends.cuda.driver import Driver, Function
from ggmlpy.backends.cuda.source import Form, Unit
from ggmlpy.errors import AllocationError, BackendError, KernelError
from tests.cuda import fake_cupy
from tests.cuda.fake_cupy import FakeCupy

ARGS = np.dtype([("y", TENSOR), ("eps", "f4")], align=True)
FORM = Form("norm.cu", "rms_norm", (("BLOCK", "256"),))
MB = 1 << 20


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


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(cupy_driver, "Cubins", FakeCubins)
    monkeypatch.setattr(overlap, "driver_library", lambda: None)  # this machine may have a GPU
    return fake


@pytest.fixture
def driver(cupy: FakeCupy) -> CupyDriver:
    return CupyDriver()


def bytes_at(driver: Driver, address: int, n_bytes: int) -> bytes:
    host = driver.allocate_pinned(n_bytes)
    driver.copy(host.ctypes.data, address, n_bytes)
    driver.synchronize()
    return host.tobytes()


# --- devices ---


def test_a_driver_knows_its_device(cupy: FakeCupy) -> None:
    driver = CupyDriver(1)
    assert (driver.name, CupyDriver().name) == ("cuda:1", "cuda")
    info = driver.info
    assert (info.name, info.capability) == ("NVIDIA H100 80GB HBM3", (9, 0))
    assert (info.n_sm, info.total_bytes) == (132, fake_cupy.TOTAL_BYTES)
    assert info.shared_bytes == 227 << 10
    assert device_count() == 2


def test_every_call_is_made_on_its_device_and_the_callers_is_restored(cupy: FakeCupy) -> None:
    cupy.n_devices = 3
    drivers = [CupyDriver(i) for i in range(3)]
    cupy.set_device(1)
    for driver in drivers:
        memory = driver.allocate(64)
        driver.fill(memory.address, 1, 64)
        driver.record().synchronize()
        del memory
    assert cupy.device == 1
    for name in ("Stream", "malloc", "memsetAsync", "record", "event.synchronize", "free"):
        assert cupy.devices(name) == [0, 1, 2], name


def test_an_error_restores_the_callers_device(cupy: FakeCupy) -> None:
    driver = CupyDriver(1)
    cupy.failures["memsetAsync"] = 1
    with pytest.raises(BackendError):
        driver.fill(0, 0, 1)
    assert cupy.device == 0


@pytest.mark.parametrize(
    ("n", "version", "failure", "message"),
    [
        (0, 13000, None, "cuda:2: there is no GPU that CUDA can use"),
        (0, 13000, 100, "cuda:2: there is no GPU that CUDA can use"),
        (0, 0, 35, "cuda:2: no CUDA driver is installed"),
        (2, 12000, 35, "cuda:2: CUDA cannot be used here: cudaError35"),
        (2, 13000, None, "cuda:2: there is no such device; CUDA has 2, from 0 on"),
    ],
)
def test_a_device_that_cannot_be_had_is_an_error(
    cupy: FakeCupy, n: int, version: int, failure: int | None, message: str
) -> None:
    cupy.n_devices, cupy.driver_version = n, version
    if failure is not None:
        cupy.failures["getDeviceCount"] = failure
        assert device_count() == 0
    with pytest.raises(BackendError, match=message):
        CupyDriver(2)


def test_without_cupy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for ask in (CupyDriver, device_count):
        with pytest.raises(BackendError, match=r"needs CuPy: pip install 'ggmlpy\[cuda13\]'"):
            ask()


def test_a_broken_cupy_is_told_from_a_missing_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("site")
    (folder / "cupy.py").write_text("import a_module_that_cupy_needs\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    with pytest.raises(BackendError, match=r"CuPy cannot be loaded: .*a_module_that"):
        device_count()


def test_code_is_of_a_version_that_the_driver_can_load(cupy: FakeCupy) -> None:
    cupy.driver_version = 12080
    cubins: Any = CupyDriver()._cubins
    assert cubins.max_major == 12


# --- memory ---


def test_memory_is_freed_with_its_last_reference_behind_the_work_that_uses_it(
    cupy: FakeCupy, driver: CupyDriver
) -> None:
    memory = driver.allocate(1000)
    assert memory.n_bytes == 1000
    driver.fill(memory.address, 7, 1000)
    del memory
    assert cupy.names()[-2:] == ["synchronize", "free"]
    assert not cupy.memory


def test_memory_outlives_its_driver(cupy: FakeCupy) -> None:
    memory = CupyDriver().allocate(1000)
    gc.collect()
    assert memory.address in cupy.memory
    del memory
    assert not cupy.memory


def test_memory_of_a_device_that_failed_is_no_second_error(
    cupy: FakeCupy, driver: CupyDriver
) -> None:
    memory = driver.allocate(8)
    cupy.failures["synchronize"] = 700
    with pytest.raises(BackendError, match="cuda: waiting for the device: cudaError700"):
        driver.synchronize()
    del memory
    assert "free" not in cupy.names()


def test_memory_of_no_bytes_has_an_address(cupy: FakeCupy, driver: CupyDriver) -> None:
    memory = driver.allocate(0)
    assert memory.address
    assert memory.n_bytes == 0
    driver.copy(memory.address, memory.address, 0)
    driver.fill(memory.address, 0, 0)
    assert "memcpyAsync" not in cupy.names()
    assert "memsetAsync" not in cupy.names()
    assert driver.allocate_pinned(0).nbytes == 0


def test_too_much_memory_is_an_error_with_numbers(cupy: FakeCupy, driver: CupyDriver) -> None:
    cupy.failures["malloc"] = 2
    text = "cuda: asked for 4,096 MB of device memory: 1,024 MB of 81,559 MB are free"
    with pytest.raises(AllocationError, match=f"^{text}$"):
        driver.allocate(4096 * MB)
    assert driver.free_bytes() == 1024 * MB
    cupy.failures["memGetInfo"] = 700
    with pytest.raises(AllocationError, match="asked for 1 MB of device memory: out of memory"):
        driver.allocate(1)


def test_too_much_pinned_memory_is_an_error(cupy: FakeCupy, driver: CupyDriver) -> None:
    cupy.failures["hostAlloc"] = 2
    with pytest.raises(AllocationError, match="asked for 2 MB of pinned host memory: cudaError2"):
        driver.allocate_pinned(2 * MB)


def test_pinned_memory_is_zeroed_and_lives_as_long_as_a_view_of_it(
    cupy: FakeCupy, driver: CupyDriver
) -> None:
    pinned = driver.allocate_pinned(24)
    assert pinned.dtype == np.uint8
    assert pinned.tobytes() == bytes(24)
    view = pinned[8:].view(np.int64)
    del pinned
    view[:] = 5
    assert "freeHost" not in cupy.names()
    del view
    assert cupy.names()[-2:] == ["synchronize", "freeHost"]
    assert ("hostAlloc", 0, (24, fake_cupy.PINNED)) in cupy.calls


def test_copies_and_fills_move_bytes(driver: CupyDriver) -> None:
    first, second = driver.allocate(16), driver.allocate(16)
    host = np.arange(16, dtype=np.uint8)
    driver.copy(first.address, host.ctypes.data, 16)
    driver.fill(first.address + 4, 9, 4)
    driver.copy(second.address, first.address, 16)
    assert bytes_at(driver, second.address, 16) == bytes([0, 1, 2, 3, 9, 9, 9, 9, *range(8, 16)])


def test_memory_of_a_peer_can_be_copied(cupy: FakeCupy) -> None:
    cupy.n_devices = 3
    first, second, third = (CupyDriver(i) for i in range(3))
    assert first.can_copy_from(second)
    assert ("deviceEnablePeerAccess", 0, (1,)) in cupy.calls
    assert first.can_copy_from(first)
    assert first.can_copy_from(CupyDriver())
    assert not first.can_copy_from(third)
    cupy.failures["deviceEnablePeerAccess"] = 704  # it is enabled already
    assert second.can_copy_from(first)
    cupy.failures["deviceEnablePeerAccess"] = 1
    with pytest.raises(BackendError, match="asking for access to the memory of cuda:1"):
        first.can_copy_from(second)


def test_memory_of_another_kind_of_driver_cannot_be_copied(driver: CupyDriver) -> None:
    other: Any = SimpleNamespace(device=0)
    assert not driver.can_copy_from(other)


# --- order ---


def test_a_stream_waits_for_an_event_of_another_device(cupy: FakeCupy) -> None:
    first, second = CupyDriver(0), CupyDriver(1)
    event = first.record()
    second.wait(event)
    assert cupy.devices("record") == [0]
    assert cupy.devices("wait_event") == [1]


# --- kernels ---


def test_units_are_compiled_and_loaded_once(cupy: FakeCupy, driver: CupyDriver) -> None:
    other = Form("norm.cu", "norm", FORM.defines)
    found = driver.functions([FORM, other, FORM])
    assert [function.name for function in found.values()] == ["rms_norm", "norm"]
    again = driver.functions([other])
    assert again[other] is found[other]
    cubins: Any = driver._cubins
    assert cubins.loaded == [("norm.cu -DBLOCK=256",)]
    loads = [args for name, _, args in cupy.calls if name == "load"]
    assert loads == [(b"norm.cu -DBLOCK=256 for sm_(9, 0)",)]
    assert "funcGetAttribute" in cupy.names()  # it is on the device before any capture


def test_a_unit_that_does_not_compile_is_an_error(driver: CupyDriver) -> None:
    with pytest.raises(KernelError, match=r"wrong\.cu"):
        driver.functions([Form("wrong.cu", "k")])


@pytest.mark.parametrize(
    ("name", "message"),
    [("load", "cuda: loading norm.cu -DBLOCK=256"), ("get_function", r"cuda: loading rms_norm\(")],
)
def test_code_that_cannot_be_loaded_is_an_error(
    cupy: FakeCupy, driver: CupyDriver, name: str, message: str
) -> None:
    cupy.failures[name] = 209
    with pytest.raises(BackendError, match=message):
        driver.functions([FORM])
    del cupy.failures[name]
    assert FORM in driver.functions([FORM])


def function_of(driver: CupyDriver) -> Function:
    return driver.functions([FORM])[FORM]


def launch(driver: CupyDriver, function: Function, shared_bytes: int = 0, eps: float = 0.5) -> None:
    args, run = np.zeros((), ARGS), np.zeros((), RUN)
    args["y"]["data"], args["eps"], run["launch"] = 0x1234, eps, 3
    driver.launch(function, (7, 2, 1), (256, 1, 1), shared_bytes, args, run, [])
    args["eps"] = -1  # CUDA has its copy


def test_a_launch_passes_two_structs_by_value(cupy: FakeCupy, driver: CupyDriver) -> None:
    cupy.struct_bytes = (ARGS.itemsize, RUN.itemsize)
    launch(driver, function_of(driver), 64)
    assert cupy.calls[-1] == ("launchKernel", 0, (0xF00, 7, 2, 1, 256, 1, 1, 64))
    ((args, run),) = cupy.structs
    passed = np.frombuffer(args, ARGS)[0]
    assert (int(passed["y"]["data"]), float(passed["eps"])) == (0x1234, 0.5)
    assert int(np.frombuffer(run, RUN)[0]["launch"]) == 3


def test_more_than_48_kib_of_shared_memory_are_asked_for_once(
    cupy: FakeCupy, driver: CupyDriver
) -> None:
    function = function_of(driver)
    for kib in (48, 64, 64, 50, 100):
        launch(driver, function, kib << 10)
    asked = [args for name, _, args in cupy.calls if name == "funcSetAttribute"]
    assert asked == [(0xF00, 8, 64 << 10), (0xF00, 8, 100 << 10)]


def test_static_shared_memory_is_a_part_of_the_48_kib(cupy: FakeCupy, driver: CupyDriver) -> None:
    cupy.static_shared_bytes = 1024
    function = function_of(driver)
    for kib in (47, 48, 48):
        launch(driver, function, kib << 10)
    asked = [args for name, _, args in cupy.calls if name == "funcSetAttribute"]
    assert asked == [(0xF00, 8, 48 << 10)]


def test_a_launch_that_fails_names_the_kernel(cupy: FakeCupy, driver: CupyDriver) -> None:
    cupy.failures["launchKernel"] = 1
    text = r"cuda: launching rms_norm with grid \(7, 2, 1\) and block \(256, 1, 1\): cudaError1"
    with pytest.raises(BackendError, match=text):
        launch(driver, function_of(driver))


def in_thread(work: Callable[[], object]) -> None:
    problems: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not problems, problems


def test_another_thread_gets_a_context_first(cupy: FakeCupy) -> None:
    for driver in (CupyDriver(0), CupyDriver(1)):
        function = function_of(driver)
        in_thread(partial(launch, driver, function))
    assert cupy.devices("launchKernel") == [0, 1]


# --- graphs ---


def test_captured_work_runs_when_it_is_launched(cupy: FakeCupy, driver: CupyDriver) -> None:
    memory, function = driver.allocate(8), function_of(driver)
    driver.fill(memory.address, 1, 8)

    def work() -> None:
        driver.fill(memory.address, 2, 4)
        launch(driver, function)

    captured = driver.capture(work)
    assert bytes_at(driver, memory.address, 8) == bytes([1] * 8)
    assert not cupy.structs
    captured.launch()
    captured.launch()
    assert bytes_at(driver, memory.address, 8) == bytes([2] * 4 + [1] * 4)
    assert len(cupy.structs) == 2
    assert ("begin_capture", 0, (2,)) in cupy.calls
    assert "upload" in cupy.names()


def test_memory_that_goes_in_a_capture_is_freed_after_it(
    cupy: FakeCupy, driver: CupyDriver
) -> None:
    """As the garbage collector may have it. Waiting for the stream would end the capture."""
    memories = [driver.allocate(8), driver.allocate_pinned(8)]

    def work() -> None:
        memories.clear()
        assert len(cupy.memory) == 2

    driver.capture(work)
    assert not cupy.memory


def test_no_capture_begins_while_another_thread_frees_memory(
    cupy: FakeCupy, driver: CupyDriver
) -> None:
    """It waits for the stream, which would end the capture."""
    memories = [driver.allocate(8)]
    waits, capturing = threading.Event(), threading.Event()

    def wait_for_stream() -> None:
        waits.set()
        assert not capturing.wait(0.2)

    driver._memory.synchronize = wait_for_stream
    thread = threading.Thread(target=memories.clear)
    thread.start()
    assert waits.wait(10)
    driver.capture(capturing.set)
    thread.join()
    assert not cupy.memory


def test_an_error_ends_the_capture(cupy: FakeCupy, driver: CupyDriver) -> None:
    memory = driver.allocate(8)

    def work() -> None:
        driver.fill(memory.address, 2, 4)
        raise KeyError("of the caller")

    for status in (None, 901):
        if status:
            cupy.failures["end_capture"] = status  # CUDA has given the capture up
        with pytest.raises(KeyError, match="of the caller"):
            driver.capture(work)
    cupy.failures.clear()
    driver.fill(memory.address, 3, 8)
    assert bytes_at(driver, memory.address, 8) == bytes([3] * 8)


@pytest.mark.parametrize("call", ["begin_capture", "end_capture"])
@pytest.mark.parametrize("is_done", [True, False])
def test_an_interrupt_ends_the_capture(
    driver: CupyDriver, monkeypatch: pytest.MonkeyPatch, call: str, is_done: bool
) -> None:
    """One that comes right before or after one of CuPy's functions."""
    memory = driver.allocate(8)
    function = getattr(driver._stream, call)

    def interrupted(*args: Any) -> None:
        monkeypatch.setattr(driver._stream, call, function)
        if is_done:
            function(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(driver._stream, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver.capture(lambda: driver.fill(memory.address, 2, 4))
    driver.fill(memory.address, 3, 8)
    assert bytes_at(driver, memory.address, 8) == bytes([3] * 8)


def test_a_capture_that_cuda_gave_up_is_an_error(cupy: FakeCupy, driver: CupyDriver) -> None:
    cupy.failures["end_capture"] = 901
    with pytest.raises(BackendError, match="cuda: capturing a graph: cudaError901"):
        driver.capture(lambda: None)


def test_a_capture_within_a_capture_is_an_error(driver: CupyDriver) -> None:

    def work() -> None:
        driver.capture(lambda: None)

    with pytest.raises(BackendError, match="being captured"):
        driver.capture(work)


# --- the fake ---


def test_the_fake_has_only_what_cupy_has() -> None:
    """Needs CuPy, and no GPU."""
    cuda = pytest.importorskip("cupy", reason="CuPy is not installed").cuda
    fake = FakeCupy().cuda
    for part in ("runtime", "driver", "function"):
        for name, value in vars(getattr(fake, part)).items():
            assert hasattr(getattr(cuda, part), name), f"{part}.{name}"
            if isinstance(value, int):
                assert getattr(getattr(cuda, part), name) == value, name
    for kind, other in (
        (fake_cupy.FakeStream, cuda.Stream),
        (fake_cupy.FakeEvent, cuda.Event),
        (fake_cupy.FakeGraph, cuda.Graph),
        (fake_cupy.FakeModule, cuda.function.Module),
    ):
        own = {name for name, _ in inspect.getmembers(kind, inspect.isfunction)}
        missing = {name for name in own - {"do"} if not hasattr(other, name)}
        assert not missing, other
    assert cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == 8
    assert cuda.driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES == 1
