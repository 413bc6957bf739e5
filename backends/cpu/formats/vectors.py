"""Vectors whose code is written where they are first used.

LLVM keeps loads behind a barrier (keep_order in simd/product.py), so a vector that is made there
has a register only from its first use on. Code that multiplies many rows has none to spare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload


class Vectors(Sequence[Any]):
    """`n` vectors; `make(i)` writes the code of vector i, once."""

    def __init__(self, n: int, make: Callable[[int], Any]) -> None:
        self._n, self._make = n, make
        self._made: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, i: int) -> Any: ...

    @overload
    def __getitem__(self, i: slice) -> list[Any]: ...

    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(self._n))]
        if not 0 <= i < self._n:
            raise IndexError(i)
        if i not in self._made:
            self._made[i] = self._make(i)
        return self._made[i]
