"""A graph made ready to run: placed, planned, and run as often as wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend, Event, Places, Plan
from ggmlpy.graph.arrays import element_view, read_array
from ggmlpy.graph.buffer import Buffer, BufferType, Bytes, Place
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched.allocator import Layout, allocate
from ggmlpy.sched.assignment import Pin, assign
from ggmlpy.sched.passes import run_passes
from ggmlpy.sched.scheduler import Copy, Schedule, Split, cut, lies_in_place
from ggmlpy.sched.transfers import Uploads, transfer
from ggmlpy.sched.writes import check_writes


class ArenaPool:
    """One arena a buffer type for many executables, of which one runs at a time.

    An executable keeps the arena that it was made with; a larger one later replaces it for those
    that come after. `n_bytes` counts every arena that is still held by one of them.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[BufferType, str], Buffer] = {}
        self._made: WeakSet[Buffer] = WeakSet()
        self.reading: list[Event] = []  # copies under way that read memory of the host

    def take(self, memory: BufferType, n_bytes: int, use: str = "results") -> Buffer:
        """At least `n_bytes` of the memory, shared with what was taken for that use before."""
        held = self._newest.get((memory, use))
        if held is None or held.n_bytes < n_bytes:
            held = self._newest[memory, use] = memory.allocate(n_bytes)
            self._made.add(held)
        return held

    def wait(self) -> None:
        """Wait for the copies that read memory of the host: it may change after that."""
        for event in self.reading:
            event.wait()
        self.reading.clear()

    @property
    def n_bytes(self) -> int:
        return sum(self.bytes_by_type.values())

    @property
    def bytes_by_type(self) -> dict[str, int]:
        """`n_bytes` by the names of buffer types."""
        held: dict[str, int] = {}
        for arena in self._made:
            held[arena.type.name] = held.get(arena.type.name, 0) + arena.n_bytes
        return held


def scheduled(
    graph: Graph,
    backends: Sequence[Backend],
    pin: Pin | None = None,
    passes: str | Iterable[str] | None = None,
) -> Schedule:
    """The graph's splits, with the steps that the passes leave. Raises KernelError."""
    schedule = cut(graph, assign(graph, backends, pin))
    run_passes(graph, schedule.splits, passes)
    return schedule


class Executable:
    """`run()` computes every node; inputs are whatever the input leaves hold by then.

    `submit` and `synchronize` are its two halves: between them the inputs must not change, where a
    backend has a queue of its own. `layout` tells the arenas' sizes, `schedule` the splits,
    `n_threads` the CPU threads of the plan that has most. Results stay until the next run; of other
    values only those that no pass has fused have memory. `passes` are those of passes.py by name,
    "all" or "none"; None is what GGMLPY_PASSES says. Raises WriteError, KernelError.
    """

    def __init__(
        self,
        graph: Graph,
        backends: Sequence[Backend],
        pin: Pin | None = None,
        arenas: ArenaPool | None = None,
        passes: str | Iterable[str] | None = None,
    ) -> None:
        check_writes(graph)
        self.graph = graph
        self.schedule: Schedule = scheduled(graph, backends, pin, passes)
        self.layout: Layout = allocate(graph, self.schedule.splits)
        self._pool = ArenaPool() if arenas is None else arenas
        self._arenas = {
            memory: self._pool.take(memory, n_bytes)
            for memory, n_bytes in self.layout.arena_bytes.items()
        }
        self._owners = {b.buffer_type: b for b in reversed(backends)}
        self._inputs = Uploads(self.schedule.uploads, self._owners, self._pool)
        self._places: dict[str, dict[Tensor, Place]] = {}  # by backend
        self._plans: list[Plan] = []
        self._parts = [*self._inputs.steps, *map(self._ready, self.schedule.splits)]
        self.n_threads = max((plan.n_threads for plan in self._plans), default=1)
        self._queues = [b for b in self._owners.values() if b.is_async]

    def run(self) -> None:
        """Run every split in order. Raises IndexOutOfRange for a bad index in an input."""
        self.submit()
        self.synchronize()

    def submit(self) -> None:
        """Begin a run: results are there once it is synchronized."""
        for part in self._parts:
            part()

    def synchronize(self) -> None:
        """Wait for the end of what was submitted. Raises what went wrong in it, by node."""
        for backend in self._queues:
            backend.synchronize()
        for plan in self._plans:
            plan.check()

    def read(self, tensor: Tensor) -> NDArray[Any]:
        """The values `[ne3, ne2, ne1, ne0]` after a run, as a copy; quantised types as f32."""
        return read_array(self._bytes(tensor), tensor.spec)

    def array(self, tensor: Tensor) -> NDArray[Any]:
        """The values of a plain type, in place where they lie on the host: the next run's too."""
        return element_view(self._bytes(tensor), tensor.spec)

    def on_host(self, tensor: Tensor) -> bool:
        """Whether `array` gives the memory itself, the same for every run."""
        return self._result(tensor).buffer.type.is_host

    def raw(self, tensor: Tensor) -> NDArray[np.uint8]:
        """The bytes of the tensor's extent after a run, as a copy."""
        return self._bytes(tensor).copy()

    def _bytes(self, tensor: Tensor) -> Bytes:
        at = self._result(tensor)
        return at.buffer.read(at.offset, tensor.spec.n_bytes)

    def _result(self, tensor: Tensor) -> Place:
        """Where a tensor's bytes are after a run: on the host if they are there too."""
        root = tensor.root
        holders = self.schedule.holders.get(root)
        if root.is_leaf and root not in self.schedule.moved:
            assert root.place is not None, f"{tensor} has no data"
            return Place(root.place.buffer, root.place.offset + tensor.view_offs)
        assert holders, f"{tensor} was not computed by this graph"
        return self._copy_of(tensor, next((m for m in holders if m.is_host), holders[0]))

    def _copy_of(self, tensor: Tensor, memory: BufferType) -> Place:
        """Where a computed tensor, or a copy of a leaf, lies in some memory."""
        root = tensor.root
        at = self._inputs.place(root, memory)
        if at is None:
            start = self.layout.offsets.get((root, memory))
            assert start is not None, f"{root} has no memory: it is no output, and a pass fused it"
            at = Place(self._arenas[memory], start)
        return Place(at.buffer, at.offset + tensor.view_offs)

    def _ready(self, split: Split) -> Callable[[], None]:
        """What a run does for a split: its copies, then its plan."""
        places: Places = {
            tensor: self._place(tensor, split.backend)
            for step in split.steps
            for tensor in step.tensors
        }
        plan = split.backend.plan(split.steps, places)
        self._plans.append(plan)
        transfers = [self._transfer(copy, split.backend) for copy in split.copies]
        if not transfers and not self._owns_queues():
            return plan.submit
        on_host, pool = split.backend.buffer_type.is_host, self._pool

        def submit() -> None:
            if on_host:
                pool.wait()
            for copy in transfers:
                copy()
            plan.submit()

        return submit

    def _owns_queues(self) -> bool:
        return any(backend.is_async for backend in self._owners.values())

    def _transfer(self, copy: Copy, target: Backend) -> Callable[[], None]:
        to, at = self._copy_of(copy.root, target.buffer_type), copy.root.place
        if copy.source is not None:
            at = self._copy_of(copy.root, copy.source)
        assert at is not None, f"{copy.root} has no data"
        source = self._owners.get(at.buffer.type)
        return partial(transfer, self._pool, target, to, source, at, copy.root.spec.n_bytes)

    def _place(self, tensor: Tensor, backend: Backend) -> Place:
        known = self._places.setdefault(backend.name, {})
        place = known.get(tensor)
        if place is None:
            place = known[tensor] = self._new_place(tensor, backend)
        return place

    def _new_place(self, tensor: Tensor, backend: Backend) -> Place:
        root = tensor.root
        if lies_in_place(root, backend) and root not in self.schedule.moved:
            assert root.place is not None
            return Place(root.place.buffer, root.place.offset + tensor.view_offs)
        return self._copy_of(tensor, backend.buffer_type)
