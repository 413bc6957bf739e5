"""How fast this machine reads memory: what no model that is larger than the caches can outrun."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.limits import starting_threads

N_BYTES = 512 * 2**20  # more than any cache holds


def read_bandwidth(n_threads: int, *, n_bytes: int = N_BYTES, n_repeat: int = 5) -> float:
    """Bytes a second that so many threads read together: the best of some rounds.

    Measured with numpy's maximum of bytes, and not with this package's kernels, so that a kernel
    that reads badly cannot lower the mark that it is held against. It is the lightest reduction
    there is, a load and one instruction for every 16 to 64 bytes, and holds no lock meanwhile.
    """
    part_bytes = n_bytes // n_threads
    with starting_threads(), ThreadPoolExecutor(n_threads) as pool:
        # Each thread writes its part first: where there are several memories, it is then near.
        parts = list(pool.map(lambda _: np.ones(part_bytes, np.uint8), range(n_threads)))
        return max(_round(pool, parts) for _ in range(n_repeat))


def _round(pool: ThreadPoolExecutor, parts: list[NDArray[np.uint8]]) -> float:
    started = perf_counter()
    list(pool.map(np.max, parts))
    return sum(part.nbytes for part in parts) / (perf_counter() - started)
