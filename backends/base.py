"""The contract of a backend: what runs nodes, and the memory it runs them in.

A third party writes a subclass of Backend, registers its factory under the entry point group
`ggmlpy.backends`, and passes the conformance suite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import BackendError
from ggmlpy.graph.storage import Storage, aligned_bytes
from ggmlpy.graph.tensor import Tensor

HOST = "host"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's first byte is."""

    storage: Storage
    offset: int

    @property
    def address(self) -> int:
        return self.storage.address + self.offset


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

    The default memory is the host's. Leaves in host memory are read in place (`reads_host`);
    results lie in arenas of the backend's own, so the scheduler copies what crosses to another.
    """

    name: str
    reads_host: bool = True  # False: weights are uploaded, inputs are copied before each run

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

    def allocate(self, n_bytes: int) -> Storage:
        """Memory that this backend can run nodes in."""
        return Storage(aligned_bytes(n_bytes), device=self.name)

    def can_read(self, storage: Storage) -> bool:
        """Whether nodes may read and write this memory without a copy."""
        return storage.device == self.name or (self.reads_host and storage.device == HOST)

    def resident(self, storage: Storage) -> Storage:
        """This backend's own copy of a weight, made once; asked only where `can_read` is false."""
        raise BackendError(f"{self.name} keeps no copies of weights that lie on {storage.device}")

    def read(self, storage: Storage, offset: int, n_bytes: int) -> NDArray[np.uint8]:
        """Bytes of this backend's memory, on the host. May be a view: copy it to keep it."""
        return storage.data[offset : offset + n_bytes]

    def write(self, storage: Storage, offset: int, data: NDArray[np.uint8]) -> None:
        """Put host bytes into this backend's memory."""
        storage.data[offset : offset + data.nbytes] = data
