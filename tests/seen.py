"""Which cells a token would see, by its sequence's list."""

from __future__ import annotations

import numpy as np

from ggmlpy.memory.cell_table import Index
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.spans import Positions
from ggmlpy.models.memory import Window


def seen_cells(cells: KVCells, seq: int, position: int) -> tuple[Index, Positions]:
    """Cells in their stream and positions, in the list's order, for a token at a position."""
    rows = cells.lists.rows_of(seq) - cells.stream_of(seq) * cells.kv_size
    held = cells.lists.positions_of(seq)
    assert (held[1:] >= held[:-1]).all()
    first = first_seen(position, cells.window)
    shown = (held <= position) & (held >= first)
    return rows[shown].astype(np.int64), held[shown]


def first_seen(position: int, window: Window | None) -> int:
    """The first position that one sees, of all up to it; each is asked whether it is hidden."""
    for other in range(position + 1):
        match window:
            case None:
                return 0
            case Window(size, "standard") if position - other < size:
                return other
            case Window(size, "chunked") if position // size == other // size:
                return other
            case Window(size, "symmetric") if position - other <= size // 2:
                return other
    return position
