"""Sets of positions as ranges, so that their size does not depend on the length of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_POSITION = np.iinfo(np.int32).max - 1  # the next token's is one more
EMPTY = -1  # the position of a cell that holds nothing

Positions = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Spans:
    """Positions from 0 up, as ranges in order; none is empty, neighbours do not touch."""

    ranges: tuple[range, ...] = ()

    @classmethod
    def of(cls, positions: NDArray[Any]) -> Spans:
        """The set of some positions."""
        if positions.size <= 1:  # each step of a text longer than its window
            return cls(tuple(range(int(each), int(each) + 1) for each in positions))
        held = np.unique(positions)
        runs = np.split(held, np.flatnonzero(np.diff(held) > 1) + 1)
        return cls(tuple(range(int(run[0]), int(run[-1]) + 1) for run in runs if run.size))

    @classmethod
    def parse(cls, pairs: Iterable[tuple[int, int]]) -> Spans:
        """From [start, stop] pairs in order. Raises ValueError."""
        ranges = tuple(range(start, stop) for start, stop in pairs)
        ends = [-1]
        for r in ranges:
            if not ends[-1] < r.start < r.stop <= MAX_POSITION + 1:
                raise ValueError(f"positions {r.start} up to {r.stop} after {ends[-1]}")
            ends.append(r.stop)
        return cls(ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __str__(self) -> str:
        return ", ".join(
            f"{r.start} to {r.stop - 1}" if len(r) > 1 else str(r.start) for r in self.ranges
        )

    @property
    def end(self) -> int:
        """One past the last position, 0 without any."""
        return self.ranges[-1].stop if self.ranges else 0

    def plus(self, other: Spans) -> Spans:
        """The positions of both."""
        if len(other.ranges) == 1 and self.end == other.ranges[0].start:  # the next position
            start = self.ranges[-1].start if self.ranges else 0
            return Spans((*self.ranges[:-1], range(start, other.end)))
        return _joined((*self.ranges, *other.ranges))

    def between(self, start: int, stop: int | None = None) -> Spans:
        """The positions from `start` up to `stop` (None: to the end)."""
        stop = self.end if stop is None else stop
        cut = (range(max(r.start, start), min(r.stop, stop)) for r in self.ranges)
        return Spans(tuple(r for r in cut if r))

    def without(self, start: int, stop: int | None = None) -> Spans:
        """The positions that are not from `start` up to `stop` (None: to the end)."""
        start = max(start, 0)
        after = Spans() if stop is None else self.between(max(start, stop))
        return self.between(0, start).plus(after)

    def overlap(self, other: Spans) -> Spans:
        """The positions that are in both."""
        return _joined(
            r for each in other.ranges for r in self.between(each.start, each.stop).ranges
        )

    def moved(self, where: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Spans:
        """The positions that `where` returns for these, without those below 0.

        `where` must map neighbours to neighbours, or to one position.
        """
        moved = []
        for r in self.ranges:
            first, last = where(np.array([r.start, r.stop - 1])).tolist()
            moved.append(range(max(first, 0), last + 1))
        return _joined(moved)

    def contains(self, positions: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of some positions are among these."""
        found = np.zeros(positions.shape, np.bool_)
        for r in self.ranges:
            found |= (positions >= r.start) & (positions < r.stop)
        return found


def _joined(ranges: Iterable[range]) -> Spans:
    joined: list[range] = []
    for r in sorted((r for r in ranges if r), key=lambda r: r.start):
        if joined and r.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, r.stop))
        else:
            joined.append(r)
    return Spans(tuple(joined))


NOTHING = Spans()
