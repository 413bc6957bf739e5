"""The read bandwidth of this machine, an upper bound for models larger than the caches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.limits import starting_threads

N_BYTES = 512 * 2**20  # larger than any cache


def read_bandwidth(n_threads: int, *, n_bytes: int = N_BYTES, n_repeat: int = 5) -> float:
    """Bytes per second that `n_threads` threads read together: the best of several rounds.

    Measured with numpy's maximum of bytes instead of this package's kernels, so that a slow kernel
    cannot lower the bound that it is compared with. It is the cheapest reduction, a load and one
    instruction for every 16 to 64 bytes, and releases the GIL.
    """
    part_bytes = n_bytes // n_threads
    with starting_threads(), ThreadPoolExecutor(n_threads) as pool:
        # Each thread first writes its part, which is then in its NUMA node.
        parts = list(pool.map(lambda _: np.ones(part_bytes, np.uint8), range(n_threads)))
        return max(_round(pool, parts) for _ in range(n_repeat))


def _round(pool: ThreadPoolExecutor, parts: list[NDArray[np.uint8]]) -> float:
    started = perf_counter()
    list(pool.map(np.max, parts))
    return sum(part.nbytes for part in parts) / (perf_counter() - started)
