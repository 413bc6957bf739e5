"""The emulated device: memory, the stream, events, captured graphs, and kernels that are right."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.backends.cuda.args import FAILURE, RUN, TENSOR
from ggmlpy.backends.cuda.driver import Access, Allocation
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available, compiler
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.mock.hazards import HazardError
from ggmlpy.errors import AllocationError, BackendError, KernelError
from ggmlpy.graph.buffer import address_of

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

FILE = str(Path(__file__).parent / "emulated.cu")
ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("n", "i4")], align=True)
THREADS = 256


def uploaded(driver: EmulatedDriver, array: NDArray[Any]) -> Allocation:
    memory = driver.allocate(array.nbytes)
    driver.copy(memory.address, address_of(array), array.nbytes)
    driver.synchronize()
    return memory


def downloaded(driver: EmulatedDriver, memory: Allocation, dtype: str) -> NDArray[Any]:
    found = np.empty(memory.n_bytes, np.uint8)
    driver.copy(address_of(found), memory.address, memory.n_bytes)
    driver.synchronize()
    return found.view(dtype)


def launch(
    driver: EmulatedDriver,
    name: str,
    y: Allocation,
    x: Allocation,
    *,
    n_blocks: int = 1,
    threads: int = THREADS,
    n: int = 0,
    shared_bytes: int = 0,
    defines: Iterable[tuple[str, str]] = (),
    file: str = FILE,
) -> None:
    """Queue a launch that may write `y` and read `x`."""
    form = Form(file, name, tuple(defines))
    args = np.zeros((), ARGS)
    args["y"]["data"], args["x"]["data"], args["n"] = y.address, x.address, n
    driver.launch(
        driver.functions([form])[form],
        (n_blocks, 1, 1),
        (threads, 1, 1),
        shared_bytes,
        args,
        np.zeros((), RUN),
        [Access("y", y.address, y.n_bytes, True), Access("x", x.address, x.n_bytes, False)],
    )


@pytest.fixture
def driver() -> EmulatedDriver:
    return EmulatedDriver()


@pytest.mark.parametrize("seed", range(3))
def test_sums_and_shuffles(seed: int) -> None:
    driver = EmulatedDriver(seed=seed)
    values = np.arange(7 * THREADS, dtype=np.float32)
    x, y = uploaded(driver, values), driver.allocate(7 * 2 * 4)
    launch(driver, "sums", y, x, n_blocks=7)
    found = downloaded(driver, y, "f4").reshape(2, 7)
    rows = values.reshape(7, THREADS)
    assert found[0].tolist() == rows.sum(1).tolist()
    assert found[1].tolist() == rows[:, THREADS - 32 + 5].tolist()


def test_atomics_and_votes(driver: EmulatedDriver) -> None:
    values = (np.arange(1000) % 3).astype(np.float32)
    x, y = uploaded(driver, values), driver.allocate(8)
    driver.fill(y.address, 0, 8)
    launch(driver, "count", y, x, n_blocks=4, n=1000)
    assert downloaded(driver, y, "i4").tolist() == [666, 1024]


def test_dynamic_shared_memory(driver: EmulatedDriver) -> None:
    values = np.arange(100, dtype=np.float32)
    x, y = uploaded(driver, values), driver.allocate(400)
    launch(driver, "reversed", y, x, threads=100, n=100, shared_bytes=400)
    assert downloaded(driver, y, "f4").tolist() == values[::-1].tolist()
    assert driver.n_launches == 1


def test_captured_work_runs_with_each_launch(driver: EmulatedDriver) -> None:
    x, y = uploaded(driver, np.ones(1024, np.float32)), driver.allocate(8)
    driver.fill(y.address, 0, 8)
    graph = driver.capture(lambda: launch(driver, "count", y, x, n_blocks=4, n=1024))
    assert downloaded(driver, y, "i4").tolist() == [0, 0]
    graph.launch()
    graph.launch()
    assert downloaded(driver, y, "i4").tolist() == [2048, 2048]


def test_capture_refuses_what_waits(driver: EmulatedDriver) -> None:
    pageable, y = np.zeros(4, np.uint8), driver.allocate(4)
    with pytest.raises(BackendError, match="pageable"):
        driver.capture(lambda: driver.copy(y.address, address_of(pageable), 4))
    with pytest.raises(BackendError, match="cannot be captured"):
        driver.capture(driver.synchronize)
    pinned = driver.allocate_pinned(4)
    driver.capture(lambda: driver.copy(y.address, address_of(pinned), 4)).launch()
    driver.synchronize()


def test_memory_is_limited_and_freed() -> None:
    driver = EmulatedDriver(total_bytes=8 << 20)
    kept = driver.allocate(5 << 20)
    assert kept.address % 256 == 0
    assert driver.free_bytes() == 3 << 20
    with pytest.raises(AllocationError, match=r"asked for 4 MB .*: 3 MB of 8 MB are free"):
        driver.allocate(4 << 20)
    del kept
    assert driver.free_bytes() == 8 << 20
    driver.allocate(8 << 20)


def test_launches_that_cuda_refuses(driver: EmulatedDriver) -> None:
    x = driver.allocate(4)
    with pytest.raises(BackendError, match="1 to 256 threads"):
        launch(driver, "sums", x, x, threads=257)
    with pytest.raises(BackendError, match="a grid may have"):
        launch(driver, "sums", x, x, n_blocks=0)
    with pytest.raises(BackendError, match="shared memory"):
        launch(driver, "sums", x, x, shared_bytes=1 << 20)
    with pytest.raises(KernelError, match="no kernel nothing"):
        launch(driver, "nothing", x, x)


def test_host_memory_is_read_late() -> None:
    pinned = EmulatedDriver().allocate_pinned(1 << 10)
    found = 0
    for seed in range(8):
        driver = EmulatedDriver(seed=seed)
        y = driver.allocate(1 << 10)
        driver.copy(y.address, address_of(pinned), 1 << 10)
        pinned[:] += 1
        try:
            driver.synchronize()
        except HazardError as error:
            assert "host memory was changed" in str(error)
            found += 1
    assert found


def test_host_memory_is_poisoned_until_it_is_written() -> None:
    seen = set()
    for seed in range(8):
        driver = EmulatedDriver(seed=seed)
        x, pinned = uploaded(driver, np.ones(16, np.uint8)), driver.allocate_pinned(16)
        driver.copy(address_of(pinned), x.address, 16)
        event = driver.record()
        seen.add(int(pinned[0]))
        event.synchronize()
        assert pinned.tolist() == [1] * 16
    assert seen == {0xFF, 1}


def test_devices_wait_for_each_other() -> None:
    first, second = EmulatedDriver("cuda:0"), EmulatedDriver("cuda:1")
    x, y = uploaded(first, np.ones(64, np.uint8)), second.allocate(64)
    first.fill(x.address, 7, 64)
    with pytest.raises(HazardError, match=r"cuda:1: a copy reads .* without waiting for cuda:0"):
        second.copy(y.address, x.address, 64)
    second.wait(first.record())
    second.copy(y.address, x.address, 64)
    assert downloaded(second, y, "u1").tolist() == [7] * 64
    assert not first.can_copy_from(EmulatedDriver("cuda:2", seed=1))


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    reason = compiler.available()
    assert reason is not None and "apt install g++" in reason and "ziglang" in reason
    with pytest.raises(BackendError, match=r"need a C\+\+ compiler"):
        compiler.required()


def test_a_source_that_does_not_compile(driver: EmulatedDriver, tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text('#include "common.cuh"\nint wrong = nothing;\n', encoding="utf-8")
    with pytest.raises(KernelError, match=r"wrong.cu does not compile .*\n.*nothing"):
        driver.functions([Form(str(source), "wrong")])


def test_what_a_kernel_may_do_with_its_run(driver: EmulatedDriver) -> None:
    """Counts and the failure need not be among the accesses of a launch."""
    counts = uploaded(driver, np.array([3, 5], np.int32))
    failure, y = driver.allocate(FAILURE.itemsize), driver.allocate(4)
    driver.fill(failure.address, 0, failure.n_bytes)
    form = Form(FILE, "fails")
    args, run = np.zeros((), ARGS), np.zeros((), RUN)
    args["y"]["data"], args["y"]["ne"]["form"] = y.address, 1
    run["counts"], run["failure"], run["launch"] = counts.address, failure.address, 7
    driver.launch(
        driver.functions([form])[form],
        (3, 1, 1),
        (THREADS, 1, 1),
        0,
        args,
        run,
        [Access("y", y.address, y.n_bytes, True)],
    )
    found = downloaded(driver, failure, "u1").view(FAILURE)
    assert found["launch"] == 7
    assert found["value"] == 5


def test_bytes_side_by_side() -> None:
    driver = EmulatedDriver(seed=4)
    x, y = uploaded(driver, np.ones(4, np.uint8)), driver.allocate(3 * 2 * THREADS)
    launch(driver, "bytes", y, x, n_blocks=3)
    assert downloaded(driver, y, "u1").tolist() == [1, 2, 3] * 2 * THREADS


def test_a_launch_waits_for_another_device() -> None:
    first, second = EmulatedDriver("cuda:0"), EmulatedDriver("cuda:1")
    x, y = uploaded(first, np.ones(THREADS, np.float32)), first.allocate(8)
    source = uploaded(second, np.ones(THREADS, np.float32))
    second.copy(x.address, source.address, x.n_bytes)
    with pytest.raises(HazardError, match=r"cuda:0: sums\(\): x reads .* cuda:1: a copy, which"):
        launch(first, "sums", y, x)
    first.wait(second.record())
    launch(first, "sums", y, x)
    assert downloaded(first, y, "f4").tolist() == [THREADS, 1]
