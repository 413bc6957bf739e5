"""Merging the pieces of a word pair by pair, as BPE and SPM vocabularies do."""

from __future__ import annotations

import heapq
from collections.abc import Callable

MAX_CACHED = 65_536  # words whose tokens are kept
MAX_CACHED_CHARS = 32  # longer words rarely repeat

Cost = Callable[[str, str], float | None]  # of merging two pieces; None if they do not merge


def merge(text: str, cost: Cost) -> list[str]:
    """Merge neighbouring characters of `text` into pieces, in the order of cost, then position.

    Takes n log n steps, with a heap.
    """
    n = len(text)
    end = list(range(1, n + 1))  # of the piece that begins here; 0 if none does
    before = list(range(-1, n))  # the beginning of the piece before the one here
    costs = map(cost, text, text[1:])
    heap = [(c, i, i + 1, i + 2) for i, c in enumerate(costs) if c is not None]
    heapq.heapify(heap)

    def propose(left: int, middle: int, right: int) -> None:
        c = cost(text[left:middle], text[middle:right])
        if c is not None:
            heapq.heappush(heap, (c, left, middle, right))

    while heap:
        _, left, middle, right = heapq.heappop(heap)
        if end[left] != middle or end[middle] != right:
            continue  # one of the two has already merged
        end[left], end[middle] = right, 0
        before[right] = left
        if left > 0:
            propose(before[left], left, right)
        if right < n:
            propose(left, right, end[right])
    return [text[begin : end[begin]] for begin in range(n) if end[begin]]
