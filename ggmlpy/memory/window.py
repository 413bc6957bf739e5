"""What later tokens see of a sequence, with a window or without: nothing is kept here.

A token at position p sees the cells of its sequence that hold positions up to p; with a window of
n positions only those above p - n.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ggmlpy.memory.spans import EMPTY, Positions, Spans

Flags = NDArray[np.bool_]


def first_kept(position: int, window: int | None) -> int:
    """The lowest position that must be held when the next token's is `position`.

    That is the first one the token sees, or the last one before it, which tells where the sequence
    ends.
    """
    if window is None:
        return 0
    return max(0, position + 1 - max(window, 2))


def missed(held: Positions, evicted: Spans, window: int | None) -> Spans:
    """The evicted positions that must be held, for a sequence that holds `held`."""
    if not evicted:
        return evicted
    position = max(int(held.max(initial=EMPTY)) + 1, evicted.end)
    return evicted.between(first_kept(position, window))


def kept_cells(held: Positions, members: Flags, window: int | None) -> Flags:
    """Which cells must be held for the next token of each sequence, [sequences, cells].

    `held` [cells] are the positions that the cells hold, `members` [sequences, cells] says which
    belong to which sequence.
    """
    if window is None:
        return members.copy()
    last = np.where(members, held, EMPTY).max(axis=1, initial=EMPTY)
    first = last + 2 - max(window, 2)  # as in first_kept
    kept: Flags = members & (held >= first[:, None])
    return kept
