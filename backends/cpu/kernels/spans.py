"""Which tokens a sequence has in a scan: as many as the others, or those of a span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Record, inline, report
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.memory import load_i32


@inline
def equal_part(p: Record, s: Int, n_tokens: Int, n_seq: Int) -> tuple[Int, Int]:
    """The first of sequence s's tokens among those of all, and how many there are."""
    per_seq = quotient(n_tokens, n_seq)
    return s * per_seq, per_seq


@inline
def listed_part(p: Record, s: Int, n_tokens: Int, n_seq: Int) -> tuple[Int, Int]:
    """As equal_part, of a span. None, which is reported, where it lies outside."""
    span = p.spans.ptr + s * p.spans.nb1
    first, n = np.int64(load_i32(span)), np.int64(load_i32(span + 4))
    if n < 1:
        report(p, n)
        return np.int64(0), np.int64(0)
    if first < 0 or first > n_tokens - n:
        report(p, first)
        return np.int64(0), np.int64(0)
    return first, n


@dataclass(frozen=True, slots=True)
class ScanForm:
    """What differs between a scan's kernel without and with spans."""

    types: tuple[str, ...]
    args: np.dtype
    part_of: Inline
    is_listed: bool

    def named(self, name: str) -> str:
        """The name of this form's kernel."""
        return f"{name}_listed" if self.is_listed else name


def forms(
    sources: tuple[str, ...], fields: Sequence[tuple[str, str]] = (), ids: bool = False
) -> tuple[ScanForm, ScanForm]:
    """Both forms of a scan with these sources, of which the last may be ids, and further fields."""
    types = ("f32",) * (len(sources) - ids) + ("i32",) * ids
    equal = [*((name, TENSOR) for name in ("y", *sources)), *fields]
    listed = [*((name, TENSOR) for name in ("y", *sources, "spans")), *fields]
    return (
        ScanForm(types, np.dtype(equal, align=True), equal_part, False),
        ScanForm((*types, "i32"), np.dtype(listed, align=True), listed_part, True),
    )
