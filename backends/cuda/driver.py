"""What the backend needs of CUDA: one device, with memory, one stream, events, modules and graphs.

`cupy_driver.py` implements it for GPUs, `emulated/` on the CPU. Addresses are ints. Work on the
stream (copies, fills, launches, graphs) runs in order; the calls return before it has run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cuda.source import Form

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device is.

    name           as CUDA has it: "NVIDIA H200"
    capability     of its instructions: (9, 0)
    n_sm           its multiprocessors
    total_bytes    its memory
    shared_bytes   the shared memory that a block may have when it asks for more than 48 KiB
    """

    name: str
    capability: tuple[int, int]
    n_sm: int
    total_bytes: int
    shared_bytes: int


class Allocation(ABC):
    """Device memory, aligned to 256 bytes, which is freed with the last reference to it.

    Freeing it is safe while work that uses it is queued on this driver's stream.
    """

    address: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes of device memory that a launch may access, and `what` they are, for messages. Reading
    what it may write is allowed too."""

    what: str
    address: int
    n_bytes: int
    writes: bool


class DriverEvent(ABC):
    """A point in a stream."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until the stream has passed this point."""


class Function(ABC):
    """A compiled kernel of a driver."""

    name: str


class Captured(ABC):
    """Work that was captured from the stream."""

    @abstractmethod
    def launch(self) -> None:
        """Queue all of it on the stream."""


class Driver(ABC):
    """One device and its stream. Raises BackendError for an error of CUDA, which a later call may
    report; AllocationError where memory is short."""

    name: str  # as a backend's: "cuda", "cuda:1", "cuda-emulated"
    info: DeviceInfo

    # --- memory ---

    @abstractmethod
    def free_bytes(self) -> int:
        """Bytes of device memory that can be allocated."""

    @abstractmethod
    def allocate(self, n_bytes: int) -> Allocation:
        """Device memory of undefined content. Raises AllocationError."""

    @abstractmethod
    def allocate_pinned(self, n_bytes: int) -> NDArray[np.uint8]:
        """Zeroed host memory that copies to and from the device use directly. Raises
        AllocationError."""

    @abstractmethod
    def copy(self, target: int, source: int, n_bytes: int) -> None:
        """Queue a copy between addresses of this device, of the host, or of a device that
        `can_copy_from` names. Pageable host memory may be read or written before this returns, or
        later: it must stay until the stream has passed it."""

    @abstractmethod
    def fill(self, target: int, value: int, n_bytes: int) -> None:
        """Queue setting bytes of the device to one value."""

    def can_copy_from(self, other: Driver) -> bool:
        """Whether `copy` reaches memory of another device."""
        return other is self

    # --- order ---

    @abstractmethod
    def record(self) -> DriverEvent:
        """An event behind all work that was queued so far."""

    @abstractmethod
    def wait(self, event: DriverEvent) -> None:
        """Let work that is queued from now on start after an event of any stream of this kind of
        driver."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until all queued work is complete. Raises BackendError for its errors."""

    # --- kernels ---

    @abstractmethod
    def functions(self, forms: Iterable[Form]) -> dict[Form, Function]:
        """The compiled kernels of forms: from the cache, else compiled, several at a time, with
        progress. Raises KernelError for a source that does not compile."""

    @abstractmethod
    def launch(
        self,
        function: Function,
        grid: Grid,
        block: Grid,
        shared_bytes: int,
        args: NDArray[Any],
        run: NDArray[Any],
        accesses: Sequence[Access],
    ) -> None:
        """Queue a launch. `args` and `run` are the kernel's two parameters, structs by value (0-d
        structured arrays), which are copied before this returns. The emulation holds the kernel
        to `accesses`, and to no others than those of `run`."""

    @abstractmethod
    def capture(self, work: Callable[[], None]) -> Captured:
        """Capture the work that a function queues, which is not run: launches, fills, and copies
        within the device or from and to pinned memory."""
