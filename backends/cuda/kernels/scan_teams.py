"""Teams of threads, each of which keeps vectors in registers (scan.cuh)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cuda.kernel import Launch
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form

_HELD = 8  # elements of a thread, as in scan.cuh
_MAX_THREADS = 256
_THREADS = 64  # of a block, if a team has no more: many blocks where there are few heads


def _lanes(n: int) -> int:
    """Threads of a team whose vectors have n elements: a power of two."""
    return 1 << (blocks(n, _HELD) - 1).bit_length()


def team_fits(n: int) -> bool:
    """Whether a team can keep vectors of n elements."""
    return _lanes(n) <= _MAX_THREADS


def launch_teams(form: Form, args: np.dtype[Any], n: int, n_teams: int, n_seqs: int) -> Launch:
    """A kernel in which each sequence has `n_teams` teams, whose vectors have n elements. All
    threads of a block are of one sequence."""
    lanes = _lanes(n)
    threads = max(_THREADS, lanes)
    grid = blocks(n_teams, threads // lanes) * int(n_seqs), 1, 1
    return Launch(form, args, grid, threads, values={"lanes": lanes})
