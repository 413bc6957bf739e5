"""Executables: graphs that are scheduled, allocated and planned, and can be run repeatedly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend, Event, Places, Plan
from ggmlpy.graph.arrays import element_view, read_array
from ggmlpy.graph.buffer import Buffer, BufferType, Bytes, Place
from ggmlpy.graph.count import Counts, Symbol, has_counts
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched.allocator import Allocation, allocate
from ggmlpy.sched.assignment import Pin, assign
from ggmlpy.sched.counts import check_counts, checked_counts
from ggmlpy.sched.passes import run_passes
from ggmlpy.sched.scheduler import Copy, Schedule, Split, cut, lies_in_place
from ggmlpy.sched.transfers import Part, Uploads, fetch, in_order, transfer
from ggmlpy.sched.writes import check_writes


class ArenaPool:
    """Arenas that executables share, of which one runs at a time: one per buffer type and use.

    An executable keeps the arena that it was made with. A larger one, made for a later executable,
    replaces it for those that follow. `n_bytes` is the size of all arenas that are in use.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[BufferType, str], Buffer] = {}
        self._made: WeakSet[Buffer] = WeakSet()
        self.reading: list[Event] = []  # behind submitted copies that read host memory

    def take(self, memory: BufferType, n_bytes: int, use: str = "results") -> Buffer:
        """A buffer of at least `n_bytes`, shared with earlier calls for the same use."""
        held = self._newest.get((memory, use))
        if held is None or held.n_bytes < n_bytes:
            held = self._newest[memory, use] = memory.allocate(n_bytes)
            self._made.add(held)
        return held

    def wait(self) -> None:
        """Wait for submitted copies that read host memory, so that it may be changed."""
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
    """The graph's splits after the passes. Raises KernelError, ArgumentError for a pass."""
    schedule = cut(graph, assign(graph, backends, pin))
    run_passes(graph, schedule.splits, passes)
    return schedule


class Executable:
    """A graph prepared for execution: `run()` computes every node from the current inputs.

    `run` is `submit` and then `synchronize`. Where a backend has a queue, the input leaves must not
    change between the two. Outputs can be read until the next run. Other values may be overwritten
    within a run, and those inside fused steps have no memory.

    passes      passes by name, "all" or "none"; None: those of GGMLPY_PASSES, or else all
    symbols     those of the graph's counts, each its bound until `set_counts` gives it a value
    schedule    the splits
    allocation  the sizes of the arenas
    n_threads   the CPU threads of the plan that uses most

    Raises WriteError, ShapeError for counts that do not fit, KernelError, ArgumentError for an
    unknown pass.
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
        self.symbols: tuple[Symbol, ...] = check_counts(graph)
        self._counts: Counts = {symbol: symbol.bound for symbol in self.symbols}
        self._is_set = True  # whether all records have these counts
        self.graph = graph
        self.schedule: Schedule = scheduled(graph, backends, pin, passes)
        self.allocation: Allocation = allocate(graph, self.schedule.splits)
        self._pool = ArenaPool() if arenas is None else arenas
        self._arenas = {
            memory: self._pool.take(memory, n_bytes)
            for memory, n_bytes in self.allocation.arena_bytes.items()
        }
        self._owners = {b.buffer_type: b for b in reversed(backends)}
        self._inputs = Uploads(self.schedule.uploads, self._owners, self._pool)
        self._places: dict[Backend, dict[Tensor, Place]] = {}
        self._plans: list[Plan] = []
        self._counting: list[Plan] = []  # those with counts that a run may set
        self._queues = [b for b in backends if b.is_async]
        self._parts = in_order(
            [
                *self._inputs.steps,
                *((split.backend, self._ready(split)) for split in self.schedule.splits),
                *itertools.starmap(self._return, self.schedule.returns.items()),
            ]
        )
        self.n_threads = max((plan.n_threads for plan in self._plans), default=1)

    def set_counts(self, counts: Mapping[Symbol, int]) -> None:
        """Set the values of all symbols for the runs that are submitted from now on.

        A run computes with these counts, and writes nothing past them. Raises ArgumentError for a
        value that is missing, below 1 or above its bound, Unsupported for a backend without this.
        """
        if self._is_set and counts == self._counts:
            return
        counts = checked_counts(self.symbols, counts)
        self._is_set = False  # an interrupt may leave some records with the counts before
        for plan in self._counting:
            plan.set_counts(counts)
        self._counts, self._is_set = counts, True

    def run(self) -> None:
        """Run every split in order. Raises IndexOutOfRange for a bad index in an input.

        After an error or an interrupt nothing of the run is queued any more: inputs may be changed.
        """
        try:
            self.submit()
            self.synchronize()
        except BaseException:
            self._wait()
            raise

    def submit(self) -> None:
        """Start a run. Its results can be read after `synchronize`."""
        for part in self._parts:
            part()

    def synchronize(self) -> None:
        """Wait until submitted runs are complete. Raises their first error."""
        failure = self._wait() if self._queues else None
        for plan in self._plans:  # all of them: an error that is left would be a later run's
            try:
                plan.check()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _wait(self) -> Exception | None:
        """Wait for all queues, also after an error of one. Returns the first error."""
        failure: Exception | None = None
        for backend in self._queues:
            try:
                backend.synchronize()
            except Exception as error:
                failure = failure or error
        self._pool.wait()  # at once: drops events that have passed
        return failure

    def read(self, tensor: Tensor) -> NDArray[Any]:
        """The values `[ne3, ne2, ne1, ne0]` after a run, as a copy; quantised types as f32."""
        return read_array(self._bytes(tensor), tensor.spec.at(self._counts))

    def array(self, tensor: Tensor) -> NDArray[Any]:
        """The elements `[ne3, ne2, ne1, ne0]` as stored. If `on_host`, runs change the array."""
        return element_view(self._bytes(tensor), tensor.spec.at(self._counts))

    def on_host(self, tensor: Tensor) -> bool:
        """Whether `array` returns a view of the memory, the same after runs with its counts."""
        return self._result(tensor).buffer.type.is_host

    def place(self, tensor: Tensor) -> Place:
        """Where the tensor lies after a run: on the host, if there is a valid copy."""
        return self._result(tensor)

    def raw(self, tensor: Tensor) -> NDArray[np.uint8]:
        """The bytes of the tensor's extent after a run, as a copy."""
        return self._bytes(tensor).copy()

    def _bytes(self, tensor: Tensor) -> Bytes:
        at = self._result(tensor)
        return at.buffer.read(at.offset, tensor.spec.at(self._counts).n_bytes)

    def _result(self, tensor: Tensor) -> Place:
        """The place of a tensor after a run: on the host, if there is a valid copy."""
        root = tensor.root
        holders = self.schedule.holders.get(root)
        if root.is_leaf:
            assert root.place is not None, f"{tensor} has no data"
            return Place(root.place.buffer, root.place.offset + tensor.view_offs)
        assert holders, f"{tensor} was not computed by this graph"
        return self._copy_of(tensor, next((m for m in holders if m.is_host), holders[0]))

    def _copy_of(self, tensor: Tensor, memory: BufferType) -> Place:
        """The place of a computed tensor, or of a copy of a leaf, in some memory."""
        root = tensor.root
        at = self._inputs.place(root, memory)
        if at is None and memory.is_host and root in self.schedule.fetched:
            at = fetch(root, memory)
        if at is None:
            start = self.allocation.offsets.get((root, memory))
            assert start is not None, f"{root} has no memory: it is no output, and a pass fused it"
            at = Place(self._arenas[memory], start)
        return Place(at.buffer, at.offset + tensor.view_offs)

    def _ready(self, split: Split) -> Callable[[], None]:
        """Plan a split. Returns the function that submits its copies, then its plan."""
        places: Places = {
            tensor: self._place(tensor, split.backend)
            for step in split.steps
            for tensor in step.tensors
        }
        plan = split.backend.plan(split.steps, places)
        self._plans.append(plan)
        if any(has_counts(x.ne) for node in split.nodes for x in (node, *node.src)):
            self._counting.append(plan)
        transfers = [self._transfer(copy, split.backend) for copy in split.copies]
        if not transfers and not self._queues:
            return plan.submit
        on_host, pool = split.backend.buffer_type.is_host, self._pool

        def submit() -> None:
            if on_host:
                pool.wait()
            for copy in transfers:
                copy()
            plan.submit()

        return submit

    def _return(self, leaf: Tensor, memory: BufferType) -> Part:
        """Copies a leaf back to its own place."""
        to, at = leaf.place, self._copy_of(leaf, memory)
        assert to is not None
        source, target = self._owners[memory], self._owners.get(to.buffer.type)
        copy = partial(transfer, self._pool, target, to, source, at, leaf.spec.n_bytes)

        def submit() -> None:
            self._pool.wait()
            copy()

        return source, submit

    def _transfer(self, copy: Copy, target: Backend) -> Callable[[], None]:
        to, at = self._place(copy.root, target), copy.root.place
        if copy.source is not None:
            at = self._copy_of(copy.root, copy.source)
        assert at is not None, f"{copy.root} has no data"
        source = self._owners.get(at.buffer.type)
        return partial(transfer, self._pool, target, to, source, at, copy.root.spec.n_bytes)

    def _place(self, tensor: Tensor, backend: Backend) -> Place:
        known = self._places.setdefault(backend, {})
        place = known.get(tensor)
        if place is None:
            place = known[tensor] = self._new_place(tensor, backend)
        return place

    def _new_place(self, tensor: Tensor, backend: Backend) -> Place:
        root = tensor.root
        if lies_in_place(root, backend):
            assert root.place is not None
            return Place(root.place.buffer, root.place.offset + tensor.view_offs)
        return self._copy_of(tensor, backend.buffer_type)
