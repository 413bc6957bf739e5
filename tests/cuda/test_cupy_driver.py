"""The driver's logic against a CuPy that is not one (`fake_cupy.py`): what is called with what, on
which device, and how errors are reported. `test_cupy_launches.py` has kernels and captured graphs.

It cannot show that CUDA takes these calls as meant: that copies are asynchronous, that memory is
free when it should be. Only a GPU shows that.
"""

from __future__ import annotations

import gc
import inspect
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ggmlpy.backends.cuda.cupy_driver import CupyDriver, device_count
from ggmlpy.errors import AllocationError, BackendError
from tests.cuda import fake_cupy
from tests.cuda.fake_cupy import FakeCupy, bytes_at

MB = 1 << 20


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
