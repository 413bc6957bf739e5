"""The contract of a backend: what runs nodes, and the memory it runs them in.

A third party writes a subclass of Backend, registers its factory under the entry point group
`ggmlpy.backends`, and passes the conformance suite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from weakref import WeakKeyDictionary

from ggmlpy.graph.buffer import HOST, Buffer, BufferType, Place
from ggmlpy.graph.tensor import Tensor

Places = Mapping[Tensor, Place]


class Plan(ABC):
    """Nodes made ready to run, as often as wanted, on the memory they were planned for."""

    n_threads: int = 1  # CPU threads that run them

    @abstractmethod
    def run(self) -> None:
        """Run every node once, in order; results are there when it returns.

        Raises IndexOutOfRange where an index tensor points outside what it indexes.
        """


class Backend(ABC):
    """Runs nodes. Required: `name`, `supports`, `plan`. Optional: the rest, for other memory.

    Results lie in arenas of `buffer_type`. What lies in memory that the backend cannot use
    (`supports_buffer_type`) is copied to it by the scheduler: weights once, the rest in each run.
    """

    name: str
    buffer_type: BufferType = HOST

    @abstractmethod
    def supports(self, node: Tensor) -> bool:
        """Whether `plan` can run this node."""

    @abstractmethod
    def plan(
        self, nodes: Sequence[Tensor], places: Places, wanted: Set[Tensor] | None = None
    ) -> Plan:
        """Prepare computing nodes (views left out). `places` knows them and their sources.

        `wanted` holds those roots whose bytes are read after the plan has run: by other splits, or
        because they are outputs. Other values are of no use but to `nodes`, and a backend may leave
        them out where it computes several nodes together. None: all are wanted.
        """

    def settings(self) -> str:
        """What was decided for this machine, to show to people: threads, instruction set."""
        return ""

    def supports_buffer_type(self, type: BufferType) -> bool:
        """Whether nodes may read and write buffers of this type in place."""
        return type is self.buffer_type or (type.is_host and self.buffer_type.is_host)

    def weight(self, leaf: Tensor) -> Place:
        """Where this backend reads a weight: in place, or in a copy that it makes once."""
        place = leaf.place
        assert place is not None, f"{leaf} has no data"
        if self.supports_buffer_type(place.buffer.type):
            return place
        kept = _UPLOADED.setdefault(leaf, {})
        if self.buffer_type not in kept:
            buffer = self.buffer_type.allocate(self.buffer_type.tensor_bytes(leaf.spec))
            buffer.copy_from(0, place.buffer, place.offset, leaf.spec.n_bytes)
            kept[self.buffer_type] = buffer
        return Place(kept[self.buffer_type])


# Copies of weights in memory other than where they were loaded, as long as the weights are there.
_UPLOADED: WeakKeyDictionary[Tensor, dict[BufferType, Buffer]] = WeakKeyDictionary()
