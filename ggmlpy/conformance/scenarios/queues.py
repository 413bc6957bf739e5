"""Work in a queue: results are read after synchronisation only, and runs follow one another.

Inputs go up and results come down by copies in the backend's queue, without a wait in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy import ops
from ggmlpy.backends.step import Step
from ggmlpy.conformance.checks import NotSupported
from ggmlpy.conformance.run import computing, unsupported
from ggmlpy.conformance.suite import ConformanceTest, Subject
from ggmlpy.graph.buffer import Place
from ggmlpy.graph.count import Symbol
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, zeros
from ggmlpy.sched.executable import Executable

_N, _ROWS = 67, 33


def _chain(x: Tensor) -> Tensor:
    """A few nodes, so that a queue has something to do: -(3 x)^2."""
    return ops.neg(ops.sqr(ops.scale(x, 3.0)))


def _values(n: int) -> np.ndarray:
    """Small whole numbers: every backend squares them exactly."""
    return (np.arange(n * _N, dtype=np.float32) % 31 - 15).reshape(n, _N)


@dataclass(frozen=True, slots=True)
class QueueTest:
    """Copies up, a plan, copies down, and again, with one wait at the end."""

    id = "queue of copies and runs"
    op = "queue"

    def nodes(self, seed: int) -> list[Tensor]:
        return computing(_chain(zeros("f32", (_N, _ROWS))))

    def check(self, subject: Subject) -> str:
        backend = subject.backend
        x = zeros("f32", (_N, _ROWS))
        nodes = computing(_chain(x))
        reason = unsupported(backend, nodes)
        if reason:
            raise NotSupported(reason)
        memory, host = backend.buffer_type, backend.host_buffer_type
        places = {t: Place(memory.allocate(t.spec.n_bytes)) for t in (x, *nodes)}
        plan = backend.plan([Step.of(node) for node in nodes], places)
        n_bytes = x.spec.n_bytes
        up = [Place(host.allocate(n_bytes)) for _ in range(2)]
        down = [Place(host.allocate(n_bytes)) for _ in range(2)]
        for i, place in enumerate(up):
            place.host_bytes[:n_bytes] = (_values(_ROWS) + i).view(np.uint8).reshape(-1)
        for source, target in zip(up, down, strict=True):
            backend.copy(places[x], source, n_bytes)
            plan.submit()
            backend.copy(target, places[nodes[-1]], n_bytes)
        backend.record().wait()
        backend.synchronize()
        plan.check()
        for i, target in enumerate(down):
            got = target.host_bytes[:n_bytes].view(np.float32).reshape(_ROWS, _N)
            want = -((3 * (_values(_ROWS) + i)) ** 2)
            if not np.array_equal(got, want):
                return f"run {i} of 2: {int((got != want).sum())} of {got.size} values are wrong"
        return ""


@dataclass(frozen=True, slots=True)
class CountsTest:
    """Fewer rows than a plan is made for: their values are right, the memory behind is left."""

    id = "counts that a run sets"
    op = "counts"

    def nodes(self, seed: int) -> list[Tensor]:
        return computing(_chain(zeros("f32", (_N, _ROWS))))

    def check(self, subject: Subject) -> str:
        backend = subject.backend
        if not backend.takes_counts:
            raise NotSupported(f"{backend.name} does not take counts")
        rows = Symbol("T", _ROWS)
        x = zeros("f32", (_N, rows.count), flags=Flag.INPUT)
        y = _chain(x)
        reason = unsupported(backend, computing(y))
        if reason:
            raise NotSupported(reason)
        executable = Executable(Graph(y), [backend])
        for n in (_ROWS, 1, 7, _ROWS - 1, 2):
            x.array().reshape(-1)[:] = (_values(_ROWS) + n).reshape(-1)
            executable.set_counts({rows: n})
            executable.run()
            got, want = executable.read(y)[0, 0], -((3 * (_values(_ROWS) + n)) ** 2)[:n]
            if got.shape != want.shape or not np.array_equal(got, want):
                return f"{n} of {_ROWS} rows: values differ from those of a plan for {n}"
        return ""


TESTS: list[ConformanceTest] = [QueueTest(), CountsTest()]
