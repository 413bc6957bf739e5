"""Kernels and captured graphs of the driver against a CuPy that is not one (`fake_cupy.py`): what
is loaded once, what a launch passes, what a capture holds, and what ends it.

It cannot show that kernels get their structs, or that a graph can be made of what is captured. Only
a GPU shows that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from ggmlpy.backends.cuda.args import RUN, TENSOR
from ggmlpy.backends.cuda.cupy_driver import CupyDriver
from ggmlpy.backends.cuda.driver import Function
from ggmlpy.backends.cuda.source import Form
from ggmlpy.errors import BackendError, KernelError
from tests.cuda.fake_cupy import FakeCupy, bytes_at

ARGS = np.dtype([("y", TENSOR), ("eps", "f4")], align=True)
FORM = Form("norm.cu", "rms_norm", (("BLOCK", "256"),))


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
