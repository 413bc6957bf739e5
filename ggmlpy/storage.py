"""Memory that leaves and results lie in."""

from __future__ import annotations

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
    """

    data: NDArray[np.uint8]
    device: str = "host"
    address: int = field(init=False)

    @property
    def n_bytes(self) -> int:
        return self.data.nbytes

    def __post_init__(self) -> None:
        self.address = int(self.data.__array_interface__["data"][0])
