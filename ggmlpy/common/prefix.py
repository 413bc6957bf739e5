"""Common prefixes of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, count


def n_common(a: Sequence[int], b: Sequence[int], at: int = 0) -> int:
    """The length of the common prefix of `a` and of `b` from `at` on."""
    rest = b[at : at + len(a)]
    if a == rest:
        return len(a)
    differ = (x != y for x, y in zip(a, rest, strict=False))
    return next(compress(count(), differ), min(len(a), len(rest)))
