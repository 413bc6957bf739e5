"""Rows of operands, and how threads share them: for use inside kernels.

`t` is a TENSOR field of a record. A row runs along ne0; rows are numbered 0 .. ne1 * ne2 * ne3 - 1
with dimension 1 fastest.
"""

from __future__ import annotations

from ggmlpy.backends.cpu.kernel import Int, Record, inline
from ggmlpy.backends.cpu.simd.arith import quotient


@inline
def n_rows(t: Record) -> Int:
    """How many rows an operand has."""
    return t.ne1 * t.ne2 * t.ne3


@inline
def row_ptr(t: Record, row: Int) -> Int:
    """The address of a row's first element."""
    if t.ne2 * t.ne3 == 1:  # most often; it spares the divisions
        return t.ptr + row * t.nb1
    plane = quotient(row, t.ne1)
    i1 = row - plane * t.ne1
    i3 = quotient(plane, t.ne2)
    i2 = plane - i3 * t.ne2
    return t.ptr + i1 * t.nb1 + i2 * t.nb2 + i3 * t.nb3


@inline
def share(n: Int, ith: Int, nth: Int) -> Int:
    """Where thread `ith` of `nth` starts in 0 .. n; thread ith + 1 starts where it ends.

    for row in range(share(n, ith, nth), share(n, ith + 1, nth)): ...
    """
    return quotient(n * ith, nth)
