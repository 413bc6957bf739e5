"""The read bandwidth of this machine, an upper bound for models larger than the caches, and how
large those are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.limits import starting_threads

CPUS = Path("/sys/devices/system/cpu")  # of Linux
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


def last_level_cache_bytes() -> int | None:
    """The size of the last-level caches of this machine together; None if it does not say.

    Caches that several CPUs share count once.
    """
    found: dict[tuple[int, str], int] = {}  # by level and CPUs
    try:
        for cache in CPUS.glob("cpu[0-9]*/cache/index*"):
            cpus = (cache / "shared_cpu_list").read_text().strip()
            level = int((cache / "level").read_text())
            n_kib = int((cache / "size").read_text().strip().removesuffix("K"))
            found[level, cpus] = n_kib * 1024
    except (OSError, ValueError):
        return None
    last = max((level for level, _ in found), default=0)
    return sum(n_bytes for (level, _), n_bytes in found.items() if level == last) or None
