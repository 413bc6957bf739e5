"""Runs over backends with queues: the order of their work, and what errors and interrupts leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.base import Backend, Event, Places, Plan
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, from_numpy, zeros
from ggmlpy.sched.assignment import Pin
from ggmlpy.sched.executable import Executable


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
