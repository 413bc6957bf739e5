"""Runs over backends with queues: the order of their work, and what errors and interrupts leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.base import Backend, Event, Places, Plan
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, from_numpy, zeros
from ggmlpy.sched.assignment import Pin
from ggmlpy.sched.executable import ArenaPool, Executable


def by_op(**backend: str) -> Pin:
    """Pins nodes by the name of their op."""
    return lambda node: None if node.op is None else backend.get(node.op.name)


class _Late(ReferenceBackend):
    """Runs work in memory of the host when it is waited for."""

    is_async = True

    def __init__(self, name: str = "late") -> None:
        self.name = name
        self.queued: list[Callable[[], None]] = []

    def plan(self, steps: Sequence[Step], places: Places) -> Plan:
        return _LatePlan(self, super().plan(steps, places))

    def record(self) -> Event:
        return _LateEvent(self, self.queued[-1:])

    def wait(self, event: Event) -> None:
        self.queued.append(event.wait)

    def synchronize(self) -> None:
        while self.queued:
            self.queued.pop(0)()


class _LatePlan(Plan):
    def __init__(self, backend: _Late, inner: Plan) -> None:
        self._backend, self._inner = backend, inner

    def submit(self) -> None:
        self._backend.queued.append(self._inner.submit)

    def check(self) -> None:
        self._inner.check()


class _LateEvent(Event):
    def __init__(self, backend: _Late, behind: list[Callable[[], None]]) -> None:
        self._backend, self._behind = backend, behind

    def wait(self) -> None:
        while any(work is self._behind[0] for work in self._backend.queued if self._behind):
            self._backend.queued.pop(0)()


@pytest.mark.parametrize("where", ["late host", "host late", "late later", "later late host"])
def test_queues_that_share_memory_are_in_order_without_a_copy(where: str) -> None:
    names = {"sqr": "late", "neg": where.split()[-1].replace("host", "reference")}
    names["abs"] = where.split()[0].replace("host", "reference")
    x = from_numpy(np.array([1, -3], np.float32))
    y = ops.sub(ops.neg(ops.sqr(x)), ops.abs(x))
    backends: list[Backend] = [ReferenceBackend(), _Late(), _Late("later")]
    executable = Executable(Graph(y), backends, by_op(**names, sub="reference"))
    assert not any(split.copies for split in executable.schedule.splits)
    for scale in range(1, 4):
        x.array()[:] = scale, -3 * scale
        executable.run()
        want = [-(scale**2) - scale, -9 * scale**2 - 3 * scale]
        assert executable.read(y)[0, 0, 0].tolist() == want


def test_a_run_waits_for_the_run_before_it_in_another_queue() -> None:
    state = zeros("f32", (4,), flags=Flag.STATE)
    written = ops.cpy(ops.scale_bias(state, 1.0, 1.0), state)
    backends = [_Late(), _Late("later")]
    executable = Executable(Graph(written), backends, by_op(scale_bias="late", cpy="later"))
    for _ in range(3):
        executable.submit()
    executable.synchronize()
    assert state.numpy().tolist() == [3, 3, 3, 3]


# --- errors and interrupts ----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["submit", "synchronize"])
def test_inputs_may_be_changed_after_an_interrupt(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(8):
        one, two = MockBackend("mock:0", seed=seed), MockBackend("mock:1", seed=seed)
        x = from_numpy(np.ones(64, np.float32))
        y = ops.add(ops.neg(x), ops.sqr(ops.abs(x)))
        pin = by_op(neg="mock:0", abs="mock:1", add="mock:0")
        executable = Executable(Graph(y), [one, two], pin)
        interrupted = one if where == "synchronize" else two
        with monkeypatch.context() as patched:
            patched.setattr(interrupted, where, _interrupt_once(interrupted, where, patched))
            with pytest.raises(KeyboardInterrupt):
                executable.run()
        assert not one.queue._work
        assert not two.queue._work
        x.array()[:] = 2
        executable.run()  # raises HazardError if an upload is still to read the old values
        assert (executable.read(y) == 2).all()


def _interrupt_once(
    backend: MockBackend, name: str, patched: pytest.MonkeyPatch
) -> Callable[..., None]:
    original = getattr(backend, name)

    def interrupt(*arguments: object) -> None:
        patched.setattr(backend, name, original)
        raise KeyboardInterrupt

    return interrupt


@pytest.mark.parametrize("seed", range(8))
def test_a_run_that_fails_leaves_no_error_and_no_work_for_the_next(seed: int) -> None:
    """Two queues and a plan without a queue fail in one run: the first is raised, once."""
    one, two = MockBackend("mock:0", seed=seed), MockBackend("mock:1", seed=seed)
    ids = from_numpy(np.array([1, 7], np.int32))
    x = from_numpy(np.arange(32, dtype=np.float32).reshape(4, 8))
    names = ("mock:0", "mock:1", "reference")
    picked = [ops.get_rows(x, ids).named(f"of {name}") for name in names]
    where = dict(zip(picked, names, strict=True))
    backends = [one, two, ReferenceBackend()]
    executable = Executable(Graph(*picked), backends, where.get)
    with pytest.raises(IndexOutOfRange, match=r"of mock:0.*7"):
        executable.run()
    assert not one.queue._work and not two.queue._work
    ids.array()[:] = 0, 3
    executable.run()
    for rows in picked:
        np.testing.assert_array_equal(executable.read(rows)[0, 0], x.numpy()[[0, 3]])


def test_a_plan_forgets_the_error_of_a_run_that_nobody_checked() -> None:
    ids = from_numpy(np.array([9], np.int32))
    rows = ops.get_rows(from_numpy(np.ones((4, 8), np.float32)), ids)
    executable = Executable(Graph(rows), [ReferenceBackend()])
    executable.submit()
    ids.array()[:] = 0
    executable.run()


def test_nothing_of_a_run_is_kept_after_it() -> None:
    arenas = ArenaPool()
    executable = Executable(
        Graph(ops.sqr(from_numpy(np.ones(8, np.float32)))), [MockBackend()], arenas=arenas
    )
    for _ in range(3):
        executable.submit()
        assert arenas.reading
        executable.synchronize()
        assert not arenas.reading
