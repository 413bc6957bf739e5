"""The contract of a backend: what runs steps of nodes, and the memory it runs them in.

A third party writes a subclass of Backend, registers its factory under the entry point group
`ggmlpy.backends`, and passes the conformance suite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ggmlpy.backends.step import Step
from ggmlpy.common.progress import tell
from ggmlpy.graph.buffer import HOST, BufferType, Place
from ggmlpy.graph.tensor import Tensor

Places = Mapping[Tensor, Place]


class Event(ABC):
    """A point in the queue of a backend: all that was submitted before it."""

    @abstractmethod
    def wait(self) -> None:
        """Let the host wait until the queue is past this point."""


class _Past(Event):
    def wait(self) -> None:
        pass


_PAST = _Past()


class Plan(ABC):
    """Steps made ready to run, as often as wanted, on the memory they were planned for."""

    n_threads: int = 1  # CPU threads that run them

    @abstractmethod
    def submit(self) -> None:
        """Queue every step once, in order, behind what was submitted before.

        May return before anything has run. What goes wrong while it runs is raised by `check`, or
        by `Backend.synchronize`.
        """

    def check(self) -> None:  # noqa: B027  (a backend may tell it at synchronize instead)
        """Raise what went wrong in runs that are over: IndexOutOfRange, by node, where an index
        tensor points outside what it indexes. Once the backend is synchronized."""


class Backend(ABC):
    """Runs nodes. Required: `name`, `supports`, `plan`. Optional: the rest, for other memory.

    Results lie in arenas of `buffer_type`. What lies in memory that the backend cannot use
    (`supports_buffer_type`) is copied to it by the scheduler, in each run.

    A backend whose work may run after `Plan.submit` has returned sets `is_async`, and has a queue:
    plans and copies run in the order in which they were submitted; `record` and `wait` order them
    with those of other queues. Others run plans at once, and need none of that.
    """

    name: str
    buffer_type: BufferType = HOST
    host_buffer_type: BufferType = HOST  # memory of the host that copies here are fastest from
    is_async: bool = False

    @abstractmethod
    def supports(self, node: Tensor) -> bool:
        """Whether `plan` can run this node."""

    def supports_step(self, step: Step) -> bool:
        """Whether `plan` can run these nodes, each of which it supports, as the one step they are.

        Asked for the fused steps of passes; where it is False the nodes run one by one.
        """
        return False

    @abstractmethod
    def plan(self, steps: Sequence[Step], places: Places) -> Plan:
        """Prepare steps: computing nodes, views left out, and fused ones that are supported.

        `places` knows their operands and results.
        """

    def settings(self) -> str:
        """What was decided for this machine, to show to people: threads, instruction set."""
        return ""

    def supports_buffer_type(self, type: BufferType) -> bool:
        """Whether nodes may read and write buffers of this type in place."""
        return type is self.buffer_type or (type.is_host and self.buffer_type.is_host)

    def offload_op(self, node: Tensor) -> bool:
        """Whether bringing a weight of `node` from the host for this one product pays."""
        return False

    def load_weights(self, weights: Sequence[Weight]) -> None:
        """Take the weights of a model into memory, once: by default as they are stored.

        Each weight's `place` is in memory of this backend afterwards, and nothing of it is kept
        anywhere else. Tells progress (`ggmlpy.common.progress`). Raises
        FileError, AllocationError; what was loaded by then stays.
        """
        upload(self.buffer_type, [w.leaf for w in weights if not self._holds(w.leaf)])

    def _holds(self, leaf: Tensor) -> bool:
        return leaf.place is not None and self.supports_buffer_type(leaf.place.buffer.type)

    # --- the queue ---

    def copy(self, target: Place, source: Place, n_bytes: int) -> None:
        """Queue a copy to or from memory of this backend; the host's bytes must not change, or be
        read, before it is over."""
        target.buffer.copy_from(target.offset, source.buffer, source.offset, n_bytes)

    def record(self) -> Event:
        """An event behind all that was submitted by now."""
        return _PAST

    def wait(self, event: Event) -> None:
        """Let what is submitted from now on start when `event` (of any backend) is past."""
        event.wait()

    def synchronize(self) -> None:  # noqa: B027  (nothing to wait for without a queue)
        """Let the host wait until all that was submitted is over. Raises what went wrong in it."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A leaf to load, and the ops that read it: by them a backend decides in which form."""

    leaf: Tensor
    ops: frozenset[str]


def upload(memory: BufferType, leaves: Sequence[Tensor]) -> None:
    """Move leaves to memory of this type, into as few buffers as its largest one allows."""
    n_all = sum(memory.tensor_bytes(leaf.spec) for leaf in leaves)
    n_done = 0
    for group in _groups(memory, leaves):
        buffer = memory.allocate(sum(memory.tensor_bytes(leaf.spec) for leaf in group))
        offset = 0
        for leaf in group:
            assert leaf.place is not None, f"{leaf} has no data"
            buffer.copy_from(offset, leaf.place.buffer, leaf.place.offset, leaf.spec.n_bytes)
            leaf.place = Place(buffer, offset)
            offset += memory.tensor_bytes(leaf.spec)
            tell("loading weights", (n_done + offset) / n_all)
        n_done += offset


def _groups(memory: BufferType, leaves: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    group: list[Tensor] = []
    n_bytes = 0
    for leaf in leaves:
        n_leaf = memory.tensor_bytes(leaf.spec)
        if group and n_bytes + n_leaf > memory.max_bytes:
            yield group
            group, n_bytes = [], 0
        group.append(leaf)
        n_bytes += n_leaf
    if group:
        yield group
