"""Segments of rows: elementwise kernels share these, so that one long row is shared too.

Elements do not depend on each other there, so segments change no result.
"""

from __future__ import annotations

from ggmlpy.backends.cpu.kernel import Int, Record, inline
from ggmlpy.backends.cpu.rows import row_ptr
from ggmlpy.backends.cpu.simd.arith import quotient, remainder

SEGMENT = 1024  # elements: 4 KiB, small enough to share a row, large enough to hide the divisions


@inline
def n_segments(n: Int, length: Int) -> Int:
    """Segments of a row of n elements."""
    return quotient(n + length - 1, length)


@inline
def repeated_row_ptr(t: Record, like: Record, row: Int) -> Int:
    """The address of row `row` of `like` in t, whose dimensions 1 to 3 repeat to those of like."""
    if t.ne1 * t.ne2 * t.ne3 == 1:
        return t.ptr
    if t.ne1 == like.ne1 and t.ne2 == like.ne2 and t.ne3 == like.ne3:
        return row_ptr(t, row)
    plane = quotient(row, like.ne1)
    i1 = row - plane * like.ne1
    i3 = quotient(plane, like.ne2)
    i2 = plane - i3 * like.ne2
    at = t.ptr + remainder(i1, t.ne1) * t.nb1
    return at + remainder(i2, t.ne2) * t.nb2 + remainder(i3, t.ne3) * t.nb3
