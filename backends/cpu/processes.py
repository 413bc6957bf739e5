"""Python processes like this one: they find the same modules."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ROOT = str(Path(__file__).parents[3])  # where `import ggmlpy` finds this package


def python() -> list[str]:
    """A Python like this one: -O takes assertions out of what is compiled."""
    return [sys.executable, "-P", *["-O"] * sys.flags.optimize]


def search_path() -> list[str]:
    """Where another process finds what this one has imported.

    In an interactive session "" stands for the folder that it is in. That may be where this package
    comes from, while another copy is installed; and it may have been left since.
    """
    path = [entry or os.curdir for entry in sys.path]
    return path if _ROOT in path else [*path, _ROOT]
