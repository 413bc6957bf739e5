"""What kernels of scans share: which tokens a sequence has, and where its states are.

    form      op                               tokens of a sequence         its states
    equal     gated_delta_net                  as many as of every other    in state, then in y
    listed    gated_delta_net                  those of a span              in state, then in y
    stored    get_rows+gated_delta_net+set_rows    those of a span          in rows of a table

A task is a part of the states of one sequence. The table's rows are read once and written once,
where they lie, unless a sequence's new row is one that another sequence reads or writes: then a
thread takes a part of all sequences in turn, keeps the new states in y, and writes them when all
are done, so that the last one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Record, inline, report
from ggmlpy.backends.cpu.kernels.copy import copy_bytes
from ggmlpy.backends.cpu.rows import share
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


# --- states in y ----------------------------------------------------------------------------------


@inline
def _given(p: Record, n: Int) -> Int:
    return n


@inline
def _never(p: Record, n_seq: Int) -> Int:
    return np.int64(0)


@inline
def _state_of(p: Record, s: Int, n_bytes: Int) -> Int:
    return p.state.ptr + s * n_bytes


@inline
def _in_y(p: Record, s: Int, in_turn: Int, kept: Int, at: Int) -> Int:
    return kept


@inline
def _nothing(
    p: Record, s: Int, n_seq: Int, in_turn: Int, kept: Int, n_bytes: Int,
    at: Int, n_rows: Int, row_bytes: Int, width: Int,
) -> None:  # fmt: skip
    pass


# --- states in rows of a table --------------------------------------------------------------------


@inline
def _listed(p: Record, n: Int) -> Int:
    return p.ids.ne0


@inline
def _new_row(p: Record, s: Int) -> Int:
    return np.int64(load_i32(p.to.ptr + s * p.to.nb0))


@inline
def _overlap(p: Record, n_seq: Int) -> Int:
    """1 where a sequence's new row is one that another reads or writes; -1, after a report, where
    one lies outside of the table."""
    found = np.int64(0)
    for s in range(n_seq):
        row = _new_row(p, s)
        if row < 0 or row >= p.stored.ne1:
            report(p, row)
            found = np.int64(-1)
        for other in range(n_seq):
            if other != s and found == 0:
                read = load_i32(p.ids.ptr + other * p.ids.nb0)
                if read == row or _new_row(p, other) == row:
                    found = np.int64(1)
    return found


@inline
def _row_of(p: Record, s: Int, n_bytes: Int) -> Int:
    row = np.int64(load_i32(p.ids.ptr + s * p.ids.nb0))
    if row < 0 or row >= p.state.ne1:
        report(p, row)
        return np.int64(0)
    return p.state.ptr + row * p.state.nb1


@inline
def _in_table(p: Record, s: Int, in_turn: Int, kept: Int, at: Int) -> Int:
    return kept if in_turn != 0 else p.stored.ptr + _new_row(p, s) * p.stored.nb1 + at


@inline
def _written(
    p: Record, s: Int, n_seq: Int, in_turn: Int, kept: Int, n_bytes: Int,
    at: Int, n_rows: Int, row_bytes: Int, width: Int,
) -> None:  # fmt: skip
    if in_turn != 0 and s == n_seq - 1:
        for other in range(n_seq):
            source = kept - (s - other) * n_bytes
            target = p.stored.ptr + _new_row(p, other) * p.stored.nb1 + at
            for i in range(n_rows):
                copy_bytes(source + i * row_bytes, target + i * row_bytes, width)


# --- tasks ----------------------------------------------------------------------------------------


@inline
def tasks_of(n_parts: Int, n_seq: Int, in_turn: Int, ith: Int, nth: Int) -> tuple[Int, Int]:
    """The first of thread `ith`'s tasks, and the first that is another's: none where a row lies
    outside of the table (`in_turn` is -1)."""
    if in_turn < 0:
        return np.int64(0), np.int64(0)
    if in_turn > 0:
        return share(n_parts, ith, nth) * n_seq, share(n_parts, ith + 1, nth) * n_seq
    return share(n_parts * n_seq, ith, nth), share(n_parts * n_seq, ith + 1, nth)


@inline
def task_at(task: Int, n_parts: Int, n_seq: Int, in_turn: Int) -> tuple[Int, Int]:
    """A task's sequence, and which part of its states."""
    if in_turn > 0:
        part = quotient(task, n_seq)
        return task - part * n_seq, part
    s = quotient(task, n_parts)
    return s, task - s * n_parts


@dataclass(frozen=True, slots=True)
class ScanForm:
    """What differs between the forms of a scan's kernel."""

    suffix: str
    types: tuple[str, ...]
    args: np.dtype
    part_of: Inline
    is_listed: bool
    reads_rows: bool = False  # its state's own op is a part of the step
    stores: bool = False
    # sequences(p, n): how many there are, n where the form does not say.
    sequences: Inline = _given
    # in_turn(p, n_seq): whether a thread takes all sequences in turn, see tasks_of.
    in_turn: Inline = _never
    # old(p, s, n_bytes): where the state of sequence s is, of n_bytes each; 0, after a report,
    # where it is nowhere.
    old: Inline = _state_of
    # new(p, s, in_turn, kept, at): where the part at byte `at` of the new state is to be made;
    # `kept` is its place in y.
    new: Inline = _in_y
    # done(p, s, n_seq, in_turn, kept, n_bytes, at, n_rows, row_bytes, width): the part is made, of
    # n_rows of `width` bytes, row_bytes apart.
    done: Inline = _nothing

    def named(self, name: str) -> str:
        """The name of this form's kernel."""
        return name + self.suffix

    def op(self, name: str) -> str:
        """The steps that this form runs, of the scan `name`."""
        return f"{'get_rows+' * self.reads_rows}{name}{'+set_rows' * self.stores}"


def forms(
    sources: tuple[str, ...], fields: Sequence[tuple[str, str]] = (), ids: bool = False
) -> tuple[ScanForm, ScanForm, ScanForm]:
    """The forms of a scan with these sources, of which the last may be ids, and further fields."""
    types = ("f32",) * (len(sources) - ids) + ("i32",) * ids
    rows = () if ids else ("ids",)

    def args(*tensors: str) -> np.dtype:
        return np.dtype([*((name, TENSOR) for name in tensors), *fields], align=True)

    return (
        ScanForm("", types, args("y", *sources), equal_part, False),
        ScanForm("_listed", (*types, "i32"), args("y", *sources, "spans"), listed_part, True),
        ScanForm(
            "_stored",
            (*types, *("i32" for _ in rows), "i32", "i32", "f32"),
            args("y", "stored", *sources, *rows, "spans", "to", "dst"),
            listed_part,
            True,
            reads_rows=not ids,
            stores=True,
            sequences=_listed,
            in_turn=_overlap,
            old=_row_of,
            new=_in_table,
            done=_written,
        ),
    )
