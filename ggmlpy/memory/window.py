"""What tokens see of their sequence, with a window or without: nothing is kept here.

A token at position p sees the cells of its sequence that hold positions up to p, or all of them
where attention is not causal; with a window only those that this leaves (see Window).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.memory.spans import EMPTY, Positions, Spans
from ggmlpy.models.memory import Buckets, Window

Flags = NDArray[np.bool_]
Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sight:
    """What the tokens of some layers see, and whether attention reads the positions of cells."""

    window: Window | None = None
    is_causal: bool = True
    needs_positions: bool = False
    buckets: Buckets | None = None


FULL = Sight()


def firsts_seen(positions: NDArray[np.integer], window: Window) -> Whole:
    """The lowest position that a token at each of these sees; it may be below 0."""
    at = positions.astype(np.int64)
    match window.kind:
        case "standard":
            return at + 1 - window.size
        case "chunked":
            return at // window.size * window.size
        case "symmetric":
            return at - window.size // 2


def firsts_kept(positions: NDArray[np.integer], window: Window) -> Whole:
    """The lowest position that must be held of each sequence whose next token has this position.

    That is the first one the token sees, or the last one before it, which tells where the sequence
    ends. It may be below 0.
    """
    return np.minimum(firsts_seen(positions, window), positions.astype(np.int64) - 1)


def first_kept(position: int, window: Window | None) -> int:
    """`firsts_kept` of one sequence, at least 0."""
    if window is None:
        return 0
    return max(0, firsts_kept(np.array([position]), window).item())


def missed(held: Positions, evicted: Spans, window: Window | None) -> Spans:
    """The evicted positions that must be held, for a sequence that holds `held`."""
    if not evicted:
        return evicted
    position = max(int(held.max(initial=EMPTY)) + 1, evicted.end)
    return evicted.between(first_kept(position, window))


def kept_cells(held: Positions, members: Flags, window: Window | None) -> Flags:
    """Which cells must be held for the next token of each sequence, [sequences, cells].

    `held` [cells] are the positions that the cells hold, `members` [sequences, cells] says which
    belong to which sequence.
    """
    if window is None:
        return members.copy()
    last = np.where(members, held, EMPTY).max(axis=1, initial=EMPTY)
    kept: Flags = members & (held >= firsts_kept(last + 1, window)[:, None])
    return kept
