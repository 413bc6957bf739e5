"""A graph made ready to run: placed, planned, and run as often as wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend, Places
from ggmlpy.graph.arrays import element_view, read_array
from ggmlpy.graph.buffer import Buffer, BufferType, Bytes, Place
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor
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
    """One arena a buffer type for many executables, of which one runs at a time.

    An executable keeps the arena that it was made with; a larger one later replaces it for those
    that come after. `n_bytes` counts every arena that is still held by one of them.
    """

    def __init__(self) -> None:
        self._newest: dict[BufferType, Buffer] = {}
        self._made: WeakSet[Buffer] = WeakSet()

    def take(self, memory: BufferType, n_bytes: int) -> Buffer:
        """At least `n_bytes` of the memory, shared with what was taken before."""
        held = self._newest.get(memory)
        if held is None or held.n_bytes < n_bytes:
            held = self._newest[memory] = memory.allocate(n_bytes)
            self._made.add(held)
        return held

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
        pool = ArenaPool() if arenas is None else arenas
        self._arenas = {
            memory: pool.take(memory, n_bytes)
            for memory, n_bytes in self.layout.arena_bytes.items()
        }
        self._places: dict[str, dict[Tensor, Place]] = {}  # by backend
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
        """Where a tensor's bytes are after a run."""
        root = tensor.root
        holders = self.schedule.holders.get(root)
        if holders:
            return self._in_arena(tensor, holders[-1])
        assert root.place is not None, f"{tensor} was not computed by this graph"
        return Place(root.place.buffer, root.place.offset + tensor.view_offs)

    def _in_arena(self, tensor: Tensor, memory: BufferType) -> Place:
        start = self.layout.offsets[tensor.root, memory]
        return Place(self._arenas[memory], start + tensor.view_offs)

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
        root = copy.root
        to, n_bytes = self._in_arena(root, target.buffer_type), root.spec.n_bytes
        if copy.source is None:
            assert root.place is not None, f"{root} has no data"
            at = root.place
        else:
            at = self._in_arena(root, copy.source)
        return partial(to.buffer.copy_from, to.offset, at.buffer, at.offset, n_bytes)

    def _place(self, tensor: Tensor, backend: Backend) -> Place:
        known = self._places.setdefault(backend.name, {})
        place = known.get(tensor)
        if place is None:
            place = known[tensor] = self._new_place(tensor, backend)
        return place

    def _new_place(self, tensor: Tensor, backend: Backend) -> Place:
        root = tensor.root
        if not lies_in_place(root, backend):
            return self._in_arena(tensor, backend.buffer_type)
        at = root.place if Flag.WEIGHT not in root.flags else backend.weight(root)
        assert at is not None
        return Place(at.buffer, at.offset + tensor.view_offs)
