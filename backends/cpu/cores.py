"""The number of threads to use: physical cores that are available to this process."""

from __future__ import annotations

import math
import os
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def default_n_threads() -> int:
    """Physical cores in this process's affinity, at most its CPU quota, at least 1.

    Two hardware threads of one core share its vector units and its path to memory, so a second
    one adds synchronisation and no speed.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cpus = os.sched_getaffinity(0)
    cores = {_core_of(cpu) for cpu in cpus}
    return max(1, min(len(cores), _quota()))


def _core_of(cpu: int) -> tuple[str, str]:
    """(package, core) of a logical CPU; its own number where the system does not report it."""
    folder = _TOPOLOGY / f"cpu{cpu}" / "topology"
    try:
        package = (folder / "physical_package_id").read_text()
        return package, (folder / "core_id").read_text()
    except OSError:
        return "", str(cpu)


def _quota() -> int:
    """Whole CPUs that a container's limit allows; a large number where there is no limit."""
    try:
        quota, period = _QUOTA.read_text().split()
        return max(1, math.floor(int(quota) / int(period)))
    except (OSError, ValueError):
        return 1 << 30
