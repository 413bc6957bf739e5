"""How much of a mapped file is in memory: shared by tests of what is let go."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is looked up in /proc")


def resident_bytes(path: Path) -> int:
    """Bytes of the file that this process has mapped and in memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if not line.split()[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total
