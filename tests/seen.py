"""Which cells a token would see, by its sequence's list."""

from __future__ import annotations

import numpy as np

from ggmlpy.memory.cell_table import Index
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.spans import Positions


def seen_cells(cells: KVCells, seq: int, position: int) -> tuple[Index, Positions]:
    """Cells in their stream and positions, in the list's order, for a token at a position."""
    rows = cells.lists.rows_of(seq) - cells.stream_of(seq) * cells.kv_size
    held = cells.lists.positions_of(seq)
    assert (held[1:] >= held[:-1]).all()
    first = 0 if cells.window is None else position - cells.window + 1
    shown = (held <= position) & (held >= first)
    return rows[shown].astype(np.int64), held[shown]
