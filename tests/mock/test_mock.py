"""The device for tests: what runs on it is right, and what a program forgets on it is found."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.base import Backend, Places, Plan, Weight
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.mock.hazards import HazardError
from ggmlpy.backends.mock.memory import POISON, MockBuffer
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.errors import AllocationError, BackendError, GgmlpyError, IndexOutOfRange
from ggmlpy.graph.buffer import (
    HOST,
    Buffer,
    BufferType,
    Bytes,
    HostBuffer,
    Place,
    Rows,
    aligned_bytes,
)
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy, zeros
from ggmlpy.sched.assignment import Pin
from ggmlpy.sched.executable import ArenaPool, Executable
from ggmlpy.sched.transfers import transfer

RNG = np.random.default_rng(3)
SEEDS = range(8)


def values(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return RNG.standard_normal(shape, dtype=np.float32)


def loaded(device: Backend, *shape: int) -> Tensor:
    leaf = from_bytes(values(*shape).tobytes(), "f32", shape[::-1], name="w")
    device.load_weights([Weight(leaf, frozenset({"mul_mat"}))])
    return leaf


def across(one: Backend, two: Backend) -> tuple[Tensor, list[Tensor]]:
    """A chain through two devices and the host, and the leaves that are its inputs."""
    x, y = from_numpy(values(4, 32)), from_numpy(values(4, 32))
    h = ops.mul_mat(loaded(one, 32, 32), ops.add(x, y))
    h = ops.mul_mat(loaded(two, 32, 32), ops.silu(h))
    host = from_bytes(values(32, 32).tobytes(), "f32", (32, 32))
    h = ops.mul_mat(host, ops.add(h, y))
    return ops.mul_mat(loaded(one, 16, 32), h), [x, y]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_graph_over_two_devices_and_the_host(seed: int) -> None:
    one, two = MockBackend("mock:0", seed=seed), MockBackend("mock:1", seed=seed)
    y, inputs = across(one, two)
    executable = Executable(Graph(y), [one, two, ReferenceBackend()])
    ran_on = [split.backend.name for split in executable.schedule.splits]
    assert ran_on == ["mock:0", "mock:1", "reference", "mock:0"]
    for _ in range(3):
        for leaf in inputs:
            leaf.array()[:] = values(leaf.spec.n_elements)
        executable.run()
        got = executable.read(y)
        alone = Executable(Graph(y), [_Anywhere()])
        alone.run()
        np.testing.assert_array_equal(got, alone.read(y))


class _Apart(ReferenceBackend):
    """A device of another kind: without a queue, and its buffers have `read` and `write` only."""

    name = "apart"

    def __init__(self) -> None:
        self.buffer_type = _ApartMemory("apart", "apart", is_host=False)

    def plan(self, steps: Sequence[Step], places: Places) -> Plan:
        revealed = {}
        for tensor, at in places.items():
            assert isinstance(at.buffer, _ApartBuffer)
            revealed[tensor] = Place(at.buffer.kept, at.offset)
        return super().plan(steps, revealed)


class _ApartMemory(BufferType):
    def _allocate(self, n_bytes: int) -> Buffer:
        return _ApartBuffer(self, n_bytes)


class _ApartBuffer(Buffer):
    def __init__(self, type: BufferType, n_bytes: int) -> None:
        super().__init__(type, n_bytes, 1 << 60)
        self.kept = HostBuffer(aligned_bytes(n_bytes))

    def read(self, offset: int, n_bytes: int) -> Bytes:
        return self.kept.read(offset, n_bytes).copy()

    def write(self, offset: int, data: Bytes) -> None:
        self.kept.write(offset, data)


@pytest.mark.parametrize("seed", SEEDS)
def test_devices_of_two_kinds_exchange_values_through_the_host(seed: int) -> None:
    mock, apart = MockBackend(seed=seed), _Apart()
    y, inputs = across(mock, apart)
    executable = Executable(Graph(y), [mock, apart, ReferenceBackend()])
    ran_on = [split.backend.name for split in executable.schedule.splits]
    assert ran_on == ["mock", "apart", "reference", "mock"]
    back = Executable(Graph(ops.neg(ops.sqr(inputs[0]))), [apart, mock], _by_op(neg="mock"))
    alone = Executable(Graph(y), [_Anywhere()])
    for _ in range(3):
        for leaf in inputs:
            leaf.array()[:] = values(leaf.spec.n_elements)
        for ran in (executable, alone, back):
            ran.run()
        np.testing.assert_array_equal(executable.read(y), alone.read(y))
        want = -(inputs[0].numpy() ** 2)
        np.testing.assert_array_equal(back.read(back.graph.outputs[0])[0, 0], want)


@pytest.mark.parametrize("seed", (0, 1))
def test_two_devices_copy_directly_only_if_one_of_them_can(seed: int) -> None:
    one, two = MockBackend("mock:0", seed=seed), MockBackend("mock:1", seed=seed)
    at, to = Place(one.buffer_type.allocate(64)), Place(two.buffer_type.allocate(64))
    at.buffer.write(0, np.arange(64, dtype=np.uint8))
    if seed:
        with pytest.raises(BackendError, match=r"mock:0 cannot copy from .* to .*mock:1"):
            one.copy(to, at, 64)
    transfer(ArenaPool(), two, to, one, at, 64)
    assert to.buffer.read(0, 64).tolist() == list(range(64))


def _by_op(**backend: str) -> Pin:
    return lambda node: None if node.op is None else backend.get(node.op.name)


class _Anywhere(ReferenceBackend):
    """The oracle, on a graph whose weights lie on devices: it reads them back."""

    name = "anywhere"


def test_work_runs_when_it_is_waited_for_and_not_before() -> None:
    """A plan that is still queued has written nothing; with some seeds it is, after submit."""
    n_late = 0
    for seed in range(20):
        device = MockBackend(seed=seed)
        state = zeros("f32", (64,), flags=Flag.STATE, buffer_type=device.buffer_type)
        x = values(64)
        executable = Executable(Graph(ops.cpy(ops.neg(ops.sqr(from_numpy(x))), state)), [device])
        assert state.place is not None
        assert isinstance(state.place.buffer, MockBuffer)
        data = state.place.buffer.revealed_to(device.queue).data.view(np.float32)
        executable.submit()
        if device.queue._work:
            n_late += 1
            assert not data.any()
        executable.synchronize()
        assert not device.queue._work
        np.testing.assert_array_equal(data, -(x**2))
    assert n_late > 0


# --- what is found ------------------------------------------------------------------------------


def test_numpy_cannot_write_to_its_memory() -> None:
    cache = zeros("f32", (8, 4), flags=Flag.STATE, name="k", buffer_type=MockBackend().buffer_type)
    with pytest.raises(GgmlpyError, match=r"k.*memory of mock, where numpy cannot write"):
        cache.array()[:] = 1
    with pytest.raises(AssertionError):
        _ = cache.place.host_bytes  # type: ignore[union-attr]
    assert not cache.numpy().any()


def test_a_missing_wait_between_devices_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = MockBackend("mock:0"), MockBackend("mock:1")
    y, _ = across(one, two)
    monkeypatch.setattr(two, "wait", lambda event: None)
    with pytest.raises(HazardError, match=r"mock:1: .* without waiting for mock:0: a copy"):
        Executable(Graph(y), [one, two, ReferenceBackend()]).run()


def test_a_copy_over_what_a_device_still_reads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = MockBackend("mock:0"), MockBackend("mock:1")
    h = ops.mul_mat(loaded(one, 32, 32), from_numpy(values(4, 32)))
    executable = Executable(Graph(ops.mul_mat(loaded(two, 32, 32), h)), [one, two])
    for _ in range(3):
        executable.submit()
    executable.synchronize()
    monkeypatch.setattr(one, "wait", lambda event: None)
    executable.submit()
    with pytest.raises(HazardError, match="mock:0: a copy writes"):
        executable.submit()  # the first run's product may still be reading


@pytest.mark.parametrize("seed", SEEDS)
def test_an_input_that_changes_too_early_is_found(seed: int) -> None:
    device = MockBackend(seed=seed)
    x = from_numpy(np.zeros(64, np.float32))
    executable = Executable(Graph(ops.sqr(x)), [device])
    n_found = 0
    for i in range(1, 20):
        executable.submit()
        x.array()[:] = i
        try:
            executable.synchronize()
        except HazardError as error:
            assert "host memory was changed" in str(error)
            n_found += 1
    assert n_found > 0


def test_memory_that_was_freed_is_not_used() -> None:
    device = MockBackend()
    cache = zeros("f32", (8, 4), flags=Flag.STATE, buffer_type=device.buffer_type)
    executable = Executable(Graph(ops.sqr(cache)), [device])
    executable.run()
    assert cache.place is not None
    cache.place.buffer.free()
    with pytest.raises(BackendError, match="used after it was freed"):
        executable.run()
    with pytest.raises(BackendError, match="used after it was freed"):
        cache.numpy()


@pytest.mark.parametrize("access", ["read", "write", "free", "write source", "read source"])
def test_a_host_that_does_not_wait_for_the_queue_of_another_device_is_found(access: str) -> None:
    """mock:0 copies to memory of mock:1, whose queue does not wait for it."""
    for seed in range(0, 20, 2):
        one, two = MockBackend("mock:0", seed=seed), MockBackend("mock:1", seed=seed)
        source, target = one.buffer_type.allocate(64), two.buffer_type.allocate(64)
        buffer = source if "source" in access else target
        calls: dict[str, Callable[[], object]] = {
            "read": lambda: buffer.read(0, 8),  # noqa: B023  (called in this round)
            "write": lambda: buffer.write(0, np.zeros(8, np.uint8)),  # noqa: B023
            "free": buffer.free,
        }
        if "source" in access:  # mock:1 reads memory of mock:0
            two.copy(Place(target), Place(source), 64)
        else:
            one.copy(Place(target), Place(source), 64)
        call = calls[access.split()[0]]
        if access == "read source":
            call()  # two reads are in any order
            continue
        with pytest.raises(HazardError, match=r"the host .* without waiting for mock:.: a copy"):
            call()
        two.synchronize()
        one.synchronize()
        call()


def test_memory_that_nothing_refers_to_is_poisoned() -> None:
    device = MockBackend()
    buffer = device.buffer_type.allocate(64)
    assert isinstance(buffer, MockBuffer)
    data = buffer.revealed_to(device.queue).data
    assert not data.any()
    del buffer
    assert (data == POISON).all()


def test_memory_of_another_device_is_out_of_reach() -> None:
    one, two = MockBackend("mock:0"), MockBackend("mock:1")
    x = zeros("f32", (8,), buffer_type=one.buffer_type)
    y = ops.sqr(x)
    assert x.place is not None
    places = {x: x.place, y: Place(two.buffer_type.allocate(64))}
    with pytest.raises(BackendError, match="mock:1 cannot reach"):
        two.plan([Step.of(y)], places)


def test_an_index_out_of_range_is_told_when_it_is_waited_for() -> None:
    device = MockBackend(seed=1)
    ids = from_numpy(np.array([1, 7], np.int32))
    rows = ops.get_rows(from_numpy(values(4, 8)), ids).named("picked")
    executable = Executable(Graph(rows), [device])
    executable.submit()
    with pytest.raises(IndexOutOfRange, match=r"picked.*7"):
        executable.synchronize()
    ids.array()[:] = 0, 3
    executable.run()  # the failure was told once


def test_waiting_for_an_event_raises_no_error_of_the_work_before_it() -> None:
    device = MockBackend(seed=1)
    ids = from_numpy(np.array([7], np.int32))
    executable = Executable(Graph(ops.get_rows(from_numpy(values(4, 8)), ids)), [device])
    executable.submit()
    device.record().wait()
    with pytest.raises(IndexOutOfRange):
        device.synchronize()
    device.synchronize()  # once


@pytest.mark.parametrize("seed", SEEDS)
def test_queued_work_keeps_the_memory_that_it_uses(seed: int) -> None:
    device, seen = MockBackend(seed=seed), HostBuffer(np.zeros(64, np.uint8))
    buffer = device.buffer_type.allocate(64)
    buffer.write(0, np.arange(64, dtype=np.uint8))
    device.copy(Place(seen), Place(buffer), 64)
    del buffer
    gc.collect()
    device.synchronize()
    assert seen.data.tolist() == list(range(64))


# --- buffers ------------------------------------------------------------------------------------


def test_rows_of_a_buffer_as_on_the_host() -> None:
    """read, write, copy and clear rows: the same bytes in both kinds of memory."""
    rng = np.random.default_rng(0)
    host, device = HOST.allocate(40 * 24 + 8), MockBackend().buffer_type.allocate(40 * 24 + 8)
    rows = Rows(8, 24)
    for _ in range(50):
        index = rng.permutation(40)[: rng.integers(0, 12)]
        other = np.setdiff1d(rng.permutation(40), index)[: len(index)]
        new = rng.integers(0, 256, (len(index), 24), np.uint8)
        for buffer in (host, device):
            buffer.write_rows(rows, index, new)
            buffer.copy_rows(rows, index, other)
            buffer.clear_rows(rows, index[:2])
        assert host.read(0, 968).tobytes() == device.read(0, 968).tobytes()
        got = device.read_rows(rows, other)
        assert np.array_equal(got, host.read_rows(rows, other))


def test_weights_are_loaded_into_as_few_buffers_as_fit() -> None:
    device = MockBackend(max_bytes=300)
    leaves = [from_bytes(values(1, 32).tobytes(), "f32", (32,)) for _ in range(5)]
    before = [leaf.tobytes() for leaf in leaves]
    device.load_weights([Weight(leaf, frozenset()) for leaf in leaves])
    places = [leaf.place for leaf in leaves]
    assert all(place is not None for place in places)
    assert len({place.buffer for place in places if place is not None}) == 3  # of 128 bytes, by two
    assert [leaf.tobytes() for leaf in leaves] == before
    with pytest.raises(AllocationError, match="at most 300"):
        device.load_weights([Weight(from_numpy(values(128)), frozenset())])


def test_a_weight_is_not_kept_on_the_host_too() -> None:
    device = MockBackend()
    leaf = from_bytes(bytearray(values(4, 32).tobytes()), "f32", (32, 4))
    assert leaf.place is not None
    buffer = ref(leaf.place.buffer)
    device.load_weights([Weight(leaf, frozenset())])
    y = ops.mul_mat(leaf, from_numpy(values(2, 32)))
    Executable(Graph(y), [device]).run()
    gc.collect()
    assert buffer() is None


def test_a_copy_to_the_host_is_poison_until_it_is_over() -> None:
    for seed in range(50):
        device = MockBackend(seed=seed)
        source, target = device.buffer_type.allocate(64), HostBuffer(np.zeros(64, np.uint8))
        device.copy(Place(target), Place(source), 64)
        if device.queue._work:
            assert (target.data == 0xFF).all()
            transfer(ArenaPool(), ReferenceBackend(), Place(target), device, Place(source), 64)
            assert not target.data.any()
            return
    raise AssertionError("no copy was late")
