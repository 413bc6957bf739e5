"""The mock backend: computes with another backend, in memory of its own, with delays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from ggmlpy.backends.base import Backend, Event, Places, Plan
from ggmlpy.backends.mock.hazards import Access, HazardError
from ggmlpy.backends.mock.memory import MockBuffer, MockMemory
from ggmlpy.backends.mock.queue import MockEvent, Queue
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.rounding import Rounding
from ggmlpy.backends.step import Step
from ggmlpy.errors import BackendError, GgmlpyError
from ggmlpy.graph.buffer import BufferType, HostBuffer, Place
from ggmlpy.graph.count import Counts
from ggmlpy.graph.tensor import Tensor

_OFFLOAD_ROWS = 32  # least rows of a product whose weight is copied to the device


class MockBackend(Backend):
    """Runs the nodes that `inner` supports, in memory that numpy cannot see.

    name         distinguishes several mock devices, as in "mock:1"
    seed         of the random delays; with an even one the device can copy to and from others
    inner        a backend of the host, which computes; None: the reference
    only         names of the supported ops; None: all that `inner` supports
    op_offload   copy weights of large products from the host, for the product alone
    max_bytes    size of the largest buffer
    """

    is_async = True
    takes_counts = True

    def __init__(
        self,
        name: str = "mock",
        *,
        seed: int = 0,
        inner: Backend | None = None,
        only: Iterable[str] | None = None,
        op_offload: bool = False,
        max_bytes: int = 1 << 40,
    ) -> None:
        self.name = name
        self.queue = Queue(name, seed)
        self.buffer_type = MockMemory(self.queue, max_bytes)
        self.failure: GgmlpyError | None = None  # the first one since the last synchronize
        self._only = None if only is None else frozenset(only)
        self._inner = ReferenceBackend() if inner is None else inner
        self._op_offload = op_offload
        self._has_peers = seed % 2 == 0

    def supports(self, node: Tensor) -> bool:
        named = node.op is not None and (self._only is None or node.op.name in self._only)
        return named and self._inner.supports(node)

    def rounding(self, node: Tensor) -> Rounding:
        return self._inner.rounding(node)

    def offload_op(self, node: Tensor) -> bool:
        is_product = node.op is not None and node.op.name == "mul_mat"
        return self._op_offload and is_product and node.ne[1] >= _OFFLOAD_ROWS

    def supports_step(self, step: Step) -> bool:
        return self._inner.supports_step(step)

    def plan(self, steps: Sequence[Step], places: Places) -> Plan:
        revealed: dict[Tensor, Place] = {}
        for tensor in (tensor for step in steps for tensor in step.tensors):
            at = places[tensor]
            if not isinstance(at.buffer, MockBuffer) or at.buffer.type is not self.buffer_type:
                raise BackendError(f"{tensor} lies in {at.buffer}, which {self.name} cannot reach")
            revealed[tensor] = Place(at.buffer.revealed_to(self.queue), at.offset)
        return _MockPlan(self, self._inner.plan(steps, revealed), steps, places)

    # --- the queue ---

    def submit(
        self, work: Callable[[], None], touched: Sequence[tuple[Tensor | str, Place, int, bool]]
    ) -> None:
        """Queue work. `touched` has its accesses: name for messages, place, bytes, is it a write.

        Raises HazardError for an access that is not ordered with an earlier one.
        """
        clock, name = self.queue.begin(), self.name
        for what, place, n_bytes, writes in touched:
            if isinstance(place.buffer, MockBuffer):
                end = place.offset + n_bytes
                said = f"{name}: {what}"
                access = Access(place.offset, end, writes, name, clock[name], said)
                place.buffer.touch(access, clock)
        self.queue.submit(lambda: self._run(work))

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except GgmlpyError as error:  # raised by the next synchronize
            self.failure = self.failure or error

    def can_copy(self, source: BufferType, target: BufferType) -> bool:
        if self._has_peers and all(isinstance(type, MockMemory) for type in (source, target)):
            return True
        return super().can_copy(source, target)

    def copy(self, target: Place, source: Place, n_bytes: int) -> None:
        if not self.can_copy(source.buffer.type, target.buffer.type):
            raise BackendError(f"{self.name} cannot copy from {source.buffer} to {target.buffer}")
        copy = _Copy(self.queue, target, source, n_bytes)
        self.submit(
            copy.run, [("a copy", source, n_bytes, False), ("a copy", target, n_bytes, True)]
        )

    def record(self) -> Event:
        return self.queue.record()

    def wait(self, event: Event) -> None:
        if isinstance(event, MockEvent):
            self.queue.wait(event)
        else:
            event.wait()

    def synchronize(self) -> None:
        self.queue.synchronize()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


class _MockPlan(Plan):
    def __init__(
        self, backend: MockBackend, inner: Plan, steps: Sequence[Step], places: Places
    ) -> None:
        self.n_threads = inner.n_threads
        self._backend = backend
        self._inner = inner
        self._counts: Counts | None = None
        self._buffers = {place.buffer for place in places.values()}
        self._touched = [
            (step.node, places[tensor], tensor.spec.n_bytes, writes)
            for step in steps
            for tensors, writes in ((step.operands, False), (step.results, True))
            for tensor in tensors.values()
        ]

    def set_counts(self, counts: Counts) -> None:
        self._counts = dict(counts)

    def submit(self) -> None:
        self._backend.submit(partial(self._run, self._counts), self._touched)

    def _run(self, counts: Counts | None) -> None:
        """`counts` are those of when the run was submitted; None: the bounds."""
        if counts is not None:
            self._inner.set_counts(counts)
        for buffer in self._buffers:
            if isinstance(buffer, MockBuffer):
                buffer.check_not_freed()
        self._inner.submit()
        self._inner.check()


class _Copy:
    """A copy between two devices, or between a device and the host.

    A source on the host is read when the copy is queued and when it runs: its bytes must be equal.
    A target on the host is poisoned until the copy has run.
    """

    def __init__(self, queue: Queue, target: Place, source: Place, n_bytes: int) -> None:
        self._queue = queue
        self._target, self._source, self._n_bytes = target, source, n_bytes
        self._before = self._digest() if isinstance(source.buffer, HostBuffer) else b""
        if isinstance(target.buffer, HostBuffer):
            target.host_bytes[target.offset : target.offset + n_bytes] = 0xFF

    def _digest(self) -> bytes:
        at = self._source
        return hashlib.sha256(at.host_bytes[at.offset : at.offset + self._n_bytes].data).digest()

    def run(self) -> None:
        if self._before and self._digest() != self._before:
            raise HazardError("host memory was changed while a copy was still to read it")
        data = self._bytes(self._source)
        self._bytes(self._target)[:] = data

    def _bytes(self, place: Place) -> np.ndarray:
        buffer = place.buffer
        if isinstance(buffer, HostBuffer):
            raw = buffer.data
        else:
            assert isinstance(buffer, MockBuffer)
            buffer.check_not_freed()
            raw = buffer.revealed_to(buffer.memory.queue).data
        return raw[place.offset : place.offset + self._n_bytes]
