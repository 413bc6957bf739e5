"""The CUDA backend on the emulated device: plans, graphs, counts, copies, errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends import get_backend
from ggmlpy.backends.base import Backend
from ggmlpy.backends.cuda import kernel as kernels
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.backends.cuda.kernel import Launch, Layout, Work, kernel_of
from ggmlpy.backends.mock.hazards import HazardError
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.errors import AllocationError, BackendError
from ggmlpy.graph.buffer import HostBuffer, Place
from ggmlpy.graph.count import Symbol
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor, from_numpy, zeros
from ggmlpy.sched.executable import Executable

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

EPS = 1e-6


@pytest.fixture
def device() -> CudaBackend:
    return CudaBackend(EmulatedDriver())


@pytest.fixture
def peer() -> CudaBackend:
    return CudaBackend(EmulatedDriver("cuda-emulated:1", seed=2))


def on(backend: Backend, array: NDArray[Any], name: str = "x") -> Tensor:
    """A leaf in memory of the backend."""
    leaf = zeros("f32", array.shape[::-1], name=name, buffer_type=backend.buffer_type)
    assert leaf.place is not None
    leaf.place.buffer.write(leaf.place.offset, array.astype(np.float32).reshape(-1).view(np.uint8))
    return leaf


def normed(x: NDArray[Any]) -> NDArray[Any]:
    y: NDArray[Any] = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS)
    return y


class Captures:
    """Counts captured graphs and their launches."""

    def __init__(self, device: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_captured = 0
        capture = device.driver.capture

        def counted(work: Any) -> Any:
            self.n_captured += 1
            return capture(work)

        monkeypatch.setattr(device.driver, "capture", counted)


def test_later_runs_are_a_captured_graph(
    device: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = Captures(device, monkeypatch)
    x = from_numpy(np.ones((3, 40), np.float32))
    y = ops.rms_norm(x, EPS)
    run = Executable(Graph(y), [device])
    for n_runs in range(1, 5):
        values = np.random.default_rng(n_runs).standard_normal((3, 40)).astype(np.float32)
        x.array()[:] = values.reshape(x.array().shape)
        run.run()
        np.testing.assert_allclose(run.array(y)[0, 0], normed(values), rtol=1e-5)
        assert captures.n_captured == (n_runs > 1)


def test_counts_are_read_on_the_device(
    device: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One captured graph serves all of them, and writes nothing past a run's rows."""
    captures = Captures(device, monkeypatch)
    T = Symbol("T", 40)
    values = np.random.default_rng(1).standard_normal((40, 24)).astype(np.float32)
    x = on(device, values)
    rows = ops.view_2d(x, 24, T.count, 24 * 4, 0)
    y = ops.rms_norm(rows, EPS)
    run = Executable(Graph(y), [device])
    place = run.place(y)
    for n in (40, 1, 17, 40, 3, 5, 7, 9, 11, 13, 15, 2):  # more than there are pinned counts
        place.buffer.clear(place.offset, 40 * 24 * 4)
        run.set_counts({T: n})
        run.run()
        raw = place.buffer.read(place.offset, 40 * 24 * 4).view(np.float32).reshape(40, 24)
        np.testing.assert_allclose(raw[:n], normed(values[:n]), rtol=1e-5)
        assert not raw[n:].any()
    assert captures.n_captured == 1


def test_runs_that_are_submitted_together_have_their_own_counts(device: CudaBackend) -> None:
    T = Symbol("T", 16)
    x = on(device, np.ones((16, 8)))
    y = ops.rms_norm(ops.view_2d(x, 8, T.count, 32, 0), EPS)
    step, memory = Step.of(y), device.buffer_type.allocate(16 * 32)
    places = {y: Place(memory), y.src[0]: x.place}
    plan = device.plan([step], places)  # type: ignore[arg-type]
    found = device.host_buffer_type.allocate(20 * 16 * 32)
    for n in range(1, 17):
        memory.clear(0, memory.n_bytes)
        plan.set_counts({T: n})
        plan.submit()
        device.copy(Place(found, n * 512), Place(memory), 512)
    device.synchronize()
    assert isinstance(found, HostBuffer)
    rows: NDArray[np.bool_] = found.data.view(np.float32).reshape(20, 16, 8)[..., 0] != 0
    for n in range(1, 17):
        assert rows[n].tolist() == [True] * n + [False] * (16 - n)


def test_results_of_the_host_and_the_device_in_one_graph(device: CudaBackend) -> None:
    """One node is pinned to the host, between two of the device."""
    values = np.random.default_rng(2).standard_normal((5, 32)).astype(np.float32)
    x = from_numpy(values)
    first = ops.rms_norm(x, EPS)
    middle = ops.sqr(first)
    y = ops.rms_norm(middle, EPS)
    pin = {first: device.name, middle: "reference", y: device.name}.get
    run = Executable(Graph(y), [device, ReferenceBackend()], pin)
    assert [split.backend.name for split in run.schedule.splits] == [
        "cuda-emulated",
        "reference",
        "cuda-emulated",
    ]
    for _ in range(3):
        run.run()
        np.testing.assert_allclose(run.array(y)[0, 0], normed(normed(values) ** 2), rtol=1e-5)


# --- two devices ---


def test_devices_copy_from_each_other(device: CudaBackend, peer: CudaBackend) -> None:
    x = on(device, np.arange(64).reshape(2, 32))
    target = peer.buffer_type.allocate(256)
    assert peer.can_copy(device.buffer_type, peer.buffer_type)
    assert x.place is not None
    peer.wait(device.record())
    peer.copy(Place(target), x.place, 256)
    assert target.read(0, 256).view(np.float32).tolist() == list(range(64))


def test_a_missing_event_is_found(device: CudaBackend, peer: CudaBackend) -> None:
    """The copy may run before what it copies is there: no event orders the two streams."""
    x = on(device, np.ones((2, 32)))
    y = ops.rms_norm(x, EPS)
    memory, target = device.buffer_type.allocate(256), peer.buffer_type.allocate(256)
    device.synchronize()
    peer.synchronize()
    plan = device.plan([Step.of(y)], {y: Place(memory), x: x.place})  # type: ignore[dict-item]
    plan.submit()
    with pytest.raises(HazardError):
        peer.copy(Place(target), Place(memory), 256)
        peer.synchronize()


def test_the_event_orders_them(device: CudaBackend, peer: CudaBackend) -> None:
    x = on(device, np.ones((2, 32)))
    y = ops.rms_norm(x, EPS)
    memory, target = device.buffer_type.allocate(256), peer.buffer_type.allocate(256)
    device.synchronize()
    peer.synchronize()
    plan = device.plan([Step.of(y)], {y: Place(memory), x: x.place})  # type: ignore[dict-item]
    plan.submit()
    peer.wait(device.record())
    peer.copy(Place(target), Place(memory), 256)
    np.testing.assert_allclose(target.read(0, 256).view(np.float32), 1, rtol=1e-5)


# --- memory ---


def test_memory_that_is_short_says_what_is_free() -> None:
    device = CudaBackend(EmulatedDriver(total_bytes=64 << 20))
    held = device.buffer_type.allocate(40 << 20)
    with pytest.raises(AllocationError, match=r"asked for 30 MB .*24 MB of 64 MB are free"):
        device.buffer_type.allocate(30 << 20)
    del held
    device.buffer_type.allocate(30 << 20)


def test_buffers_are_zeroed_and_bounded(device: CudaBackend) -> None:
    buffer = device.buffer_type.allocate(1000)
    assert not buffer.read(0, 1000).any()
    buffer.write(10, np.arange(7, dtype=np.uint8))
    buffer.clear(12, 2)
    other = device.buffer_type.allocate(50)
    other.copy_from(1, buffer, 10, 7)
    assert other.read(0, 9).tolist() == [0, 0, 1, 0, 0, 4, 5, 6, 0]
    with pytest.raises(BackendError, match="bytes 990 to 1001 of"):
        buffer.read(990, 11)


# --- errors ---


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """rms_norm asks for more shared memory than a block may have."""
    found = kernel_of(Step.of(ops.rms_norm(zeros("f32", (32, 2)), EPS)))
    assert found is not None

    def launcher(w: Work) -> Iterator[Launch]:
        for launch in found.launcher(w):
            yield replace(launch, shared_bytes=1 << 20)

    made = replace(found, launcher=launcher)
    monkeypatch.setitem(kernels._KERNELS, ("rms_norm", ("f32",)), [made])
    yield


@pytest.mark.usefixtures("faulty")
def test_a_launch_that_fails_names_its_node(device: CudaBackend) -> None:
    x = on(device, np.ones((2, 32)))
    y = ops.rms_norm(x, EPS)
    y.name = "attn_norm-3"
    run = Executable(Graph(y), [device])
    with pytest.raises(BackendError, match=r"^attn_norm-3 \(rms_norm\(.*shared memory"):
        run.run()


def test_unknown_devices_are_refused() -> None:
    with pytest.raises(BackendError):
        get_backend("cuda:9")


def test_blocking_names_the_node_of_a_kernel_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are longer than they were said to be: the kernel writes behind its result."""
    found = kernel_of(Step.of(ops.rms_norm(zeros("f32", (32, 2)), EPS)))
    assert found is not None

    def launcher(w: Work) -> Iterator[Launch]:
        longer = Layout(w["x"], (64, 2, 1, 1), (4, 128, 256, 256))
        for launch in found.launcher(w):
            yield replace(launch, values={**launch.values, "x": longer})

    made = replace(found, launcher=launcher)
    monkeypatch.setitem(kernels._KERNELS, ("rms_norm", ("f32",)), [made])
    for value, start in (("", "rms_norm"), ("1", "attn_norm-3 (rms_norm")):
        monkeypatch.setenv("GGMLPY_CUDA_BLOCKING", value)
        device = CudaBackend(EmulatedDriver())
        y = ops.rms_norm(on(device, np.ones((2, 32))), EPS)
        y.name = "attn_norm-3"
        with pytest.raises(BackendError, match="out of bounds") as caught:
            Executable(Graph(y), [device]).run()
        assert str(caught.value).startswith(start)
        assert "attn_norm-3" in str(caught.value)
