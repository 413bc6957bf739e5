"""A graph made ready to run: placed, planned, and run as often as wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend, Place, Places
from ggmlpy.graph.arrays import element_view, read_array
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.storage import Storage
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched.allocator import Layout, allocate
from ggmlpy.sched.scheduler import (
    Copy,
    Pin,
    Schedule,
    Split,
    assign,
    cut,
    lies_in_place,
    wanted_roots,
)
from ggmlpy.sched.writes import check_writes


class ArenaPool:
    """One arena a backend for many executables, of which one runs at a time.

    An executable keeps the arena that it was made with; a larger one later replaces it for those
    that come after. `n_bytes` counts every arena that is still held by one of them.
    """

    def __init__(self) -> None:
        self._newest: dict[str, Storage] = {}
        self._made: WeakKeyDictionary[Storage, str] = WeakKeyDictionary()  # with its backend's name

    def take(self, backend: Backend, n_bytes: int) -> Storage:
        """At least `n_bytes` of the backend's memory, shared with what was taken before."""
        held = self._newest.get(backend.name)
        if held is None or held.n_bytes < n_bytes:
            held = self._newest[backend.name] = backend.allocate(n_bytes)
            self._made[held] = backend.name
        return held

    @property
    def n_bytes(self) -> int:
        return sum(self.bytes_by_backend.values())

    @property
    def bytes_by_backend(self) -> dict[str, int]:
        """`n_bytes` of each backend that took any."""
        held: dict[str, int] = {}
        for storage, name in self._made.items():
            held[name] = held.get(name, 0) + storage.n_bytes
        return held


class Executable:
    """`run()` computes every node; inputs are whatever the input leaves hold by then.

    `layout` tells the arenas' sizes, `schedule` the splits, `n_threads` the CPU threads of the
    plan that has most. Results stay until the next run. Raises WriteError, KernelError.
    """

    def __init__(
        self,
        graph: Graph,
        backends: Sequence[Backend],
        pin: Pin | None = None,
        arenas: ArenaPool | None = None,
    ) -> None:
        check_writes(graph)
        self.graph = graph
        self.schedule: Schedule = cut(graph, assign(graph, backends, pin))
        self.layout: Layout = allocate(graph, self.schedule.splits)
        self._backends = {s.backend.name: s.backend for s in self.schedule.splits}
        pool = ArenaPool() if arenas is None else arenas
        self._arenas = {
            name: pool.take(self._backends[name], n_bytes)
            for name, n_bytes in self.layout.arena_bytes.items()
        }
        self._places: dict[str, dict[Tensor, Place]] = {name: {} for name in self._backends}
        self.n_threads = 1
        wanted = wanted_roots(graph, self.schedule.splits)
        self._steps = [
            self._step(split, roots)
            for split, roots in zip(self.schedule.splits, wanted, strict=True)
        ]

    def run(self) -> None:
        """Run every split in order. Raises IndexOutOfRange for a bad index in an input."""
        for step in self._steps:
            step()

    def read(self, tensor: Tensor) -> NDArray[Any]:
        """The values `[ne3, ne2, ne1, ne0]` after a run, as a copy; quantised types as f32."""
        data, offset = self._host_bytes(tensor)
        return read_array(data, tensor.spec, offset)

    def array(self, tensor: Tensor) -> NDArray[Any]:
        """The values of a plain type, in place where they lie on the host: the next run's too."""
        data, offset = self._host_bytes(tensor)
        return element_view(data, tensor.spec, offset)

    def on_host(self, tensor: Tensor) -> bool:
        """Whether `array` gives the memory itself, the same for every run."""
        holders = self.schedule.holders.get(tensor.root)
        return not holders or holders[-1].reads_host

    def raw(self, tensor: Tensor) -> NDArray[np.uint8]:
        """The bytes of the tensor's extent after a run, as a copy."""
        data, offset = self._host_bytes(tensor)
        return data[offset : offset + tensor.spec.n_bytes].copy()

    def _host_bytes(self, tensor: Tensor) -> tuple[NDArray[np.uint8], int]:
        holders = self.schedule.holders.get(tensor.root)
        if not holders:
            assert tensor.root.storage is not None, f"{tensor} was not computed by this graph"
            return tensor.root.storage.data, tensor.view_offs
        backend = holders[-1]
        at = self._place(tensor, backend)
        return backend.read(at.storage, at.offset, tensor.spec.n_bytes), 0

    def _step(self, split: Split, wanted: set[Tensor]) -> Callable[[], None]:
        places: Places = {
            t: self._place(t, split.backend) for node in split.nodes for t in (*node.src, node)
        }
        plan = split.backend.plan(split.nodes, places, wanted)
        self.n_threads = max(self.n_threads, plan.n_threads)
        if not split.copies:
            return plan.run
        copies = [self._copy(copy, split.backend) for copy in split.copies]

        def step() -> None:
            for copy in copies:
                copy()
            plan.run()

        return step

    def _copy(self, copy: Copy, target: Backend) -> Callable[[], None]:
        to = self._place(copy.root, target)
        n_bytes = copy.root.spec.n_bytes
        if copy.source is None:
            assert copy.root.storage is not None
            host = copy.root.storage.data
            return lambda: target.write(to.storage, to.offset, host[:n_bytes])
        source = copy.source
        at = self._place(copy.root, source)
        return lambda: target.write(
            to.storage, to.offset, source.read(at.storage, at.offset, n_bytes)
        )

    def _place(self, tensor: Tensor, backend: Backend) -> Place:
        known = self._places[backend.name]
        place = known.get(tensor)
        if place is None:
            place = known[tensor] = self._new_place(tensor, backend)
        return place

    def _new_place(self, tensor: Tensor, backend: Backend) -> Place:
        root = tensor.root
        if lies_in_place(root, backend):
            assert root.storage is not None
            return Place(_usable(root.storage, backend), tensor.view_offs)
        start = self.layout.offsets[root, backend.name]
        return Place(self._arenas[backend.name], start + tensor.view_offs)


def _usable(storage: Storage, backend: Backend) -> Storage:
    return storage if backend.can_read(storage) else backend.resident(storage)
