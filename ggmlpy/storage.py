"""Memory that leaves and results lie in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import AllocationError

ALIGNMENT = 64  # one cache line, and one AVX512 vector


def aligned_bytes(n_bytes: int) -> NDArray[np.uint8]:
    """Zeroed host memory whose address is a multiple of ALIGNMENT. Raises AllocationError."""
    try:
        raw = np.zeros(n_bytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: beyond what an address can reach
        raise AllocationError(f"{n_bytes} bytes of memory cannot be had") from error
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + n_bytes]


@dataclass(eq=False, slots=True, weakref_slot=True)
class Storage:
    """Bytes on the host, compared by identity.

    `device` names the backend whose memory holds them: "host" is what every CPU-side backend reads.
    `let_go` is there for bytes of a mapped file, see `release`.
    """

    data: NDArray[np.uint8]
    device: str = "host"
    let_go: Callable[[int, int], None] | None = None
    address: int = field(init=False)

    @property
    def n_bytes(self) -> int:
        return self.data.nbytes

    def __post_init__(self) -> None:
        self.address = int(self.data.__array_interface__["data"][0])

    def release(self, begin: int, end: int) -> None:
        """Say that the bytes from `begin` to `end` are not needed for now.

        Those of a mapped file leave the process's memory, and come back when they are read again.
        """
        if self.let_go is not None:
            self.let_go(begin, end)
