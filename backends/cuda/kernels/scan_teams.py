"""Teams of threads, each of which keeps vectors in registers (scan.cuh), and where states are that
they read and write (scan_states.cuh)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.args import SPAN, TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form

# The struct Lists, as fields of the arguments.
LISTS = (("spans", TENSOR), ("to", TENSOR), ("stored", TENSOR), ("rows", SPAN))
SCAN_ROWS = Form("scan_rows.cu", "scan_rows")

_HELD = 8  # elements of a thread, as in scan.cuh
_MAX_THREADS = 256
_ROWS_ARGS = np.dtype(
    [("ids", TENSOR), ("to", TENSOR), ("stored", TENSOR), ("rows", SPAN)], align=True
)
_ROWS_THREADS = 1024  # of scan_rows
_THREADS = 64  # of a block, if a team has no more: many blocks where there are few heads


def _lanes(n: int) -> int:
    """Threads of a team whose vectors have n elements: a power of two."""
    return 1 << (blocks(n, _HELD) - 1).bit_length()


def team_fits(n: int) -> bool:
    """Whether a team can keep vectors of n elements."""
    return _lanes(n) <= _MAX_THREADS


def launch_teams(
    w: Work, form: Form, args: np.dtype[Any], n: int, n_teams: int, n_seqs: int
) -> Iterator[Launch]:
    """A kernel in which each sequence has `n_teams` teams, whose vectors have n elements. All
    threads of a block are of one sequence."""
    lanes = _lanes(n)
    threads = max(_THREADS, lanes)
    values: dict[str, Any] = {"lanes": lanes}
    if "to" in w.step.operands:
        kind = f"rows of scans in tables of {w['stored'].ne[1]}"
        values["rows"], is_new = w.derived(kind, w["ids"], 8, w["to"])
        if is_new:
            yield Launch(SCAN_ROWS, _ROWS_ARGS, (1, 1, 1), _ROWS_THREADS, values=values)
    grid = blocks(n_teams, threads // lanes) * int(n_seqs), 1, 1
    yield Launch(form, args, grid, threads, values=values)
