"""Records of what cells of a KV cache hold and store, by which a change is taken back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.memory.spans import Spans

EMPTY = -1  # the position of a cell that holds nothing

Cells = NDArray[np.int64]
Positions = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which of a stream's cells hold which position of whom, to go back to."""

    stream: int
    cells: Cells
    positions: Positions
    members: NDArray[np.bool_]
    evicted: tuple[Spans, ...]  # of every sequence


@dataclass(frozen=True, slots=True)
class Appended:
    """Cells behind all others of some streams, one for each of a ubatch's tokens."""

    streams: NDArray[np.int64]  # each once
    ends: NDArray[np.int64]  # of these streams before
    cells: Cells


@dataclass(frozen=True, slots=True)
class SavedRows:
    """What some of a stream's cells store, to write back: of every leaf [cells, bytes of a row]."""

    stream: int
    cells: Cells
    rows: list[NDArray[np.uint8]]
