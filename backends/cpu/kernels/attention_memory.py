"""The memory that attention works in: a thread's scratch memory, and states.

A row, where it is none of K or V, is a query with one of its heads: of one query, or of several
that are attended to together (attention_blocks.py). Scratch memory of a thread:

    cells    i32 [n_kv]             the visible cells of a query; with lists and a mask i32
                                    [2, n_max]: their places in the mask's row, their numbers;
                                    with lists alone none
    k_rows   i64 [80]               offsets of the group's rows of K
    v_rows   i64 [80]               offsets of the group's rows of V
    k_f32    i64 [16]               offsets of rows of K within `f32_rows`
    v_f32    i64 [16]               offsets of rows of V within `f32_rows`
    bias     f32 [64]               the mask's values for the group
    folds    f32 [4, 4, 16]         products of a block of heads with 16 cells, partly reduced
    weights  f32 [rows, 64]         scores, then exp(score - maximum)
    f32_rows f32 [16, max(D, Dv)]   rows of K, then of V, converted to f32
    q        f32 [rows, D]          D, Dv and rows rounded up to whole vectors and blocks
    states   2 x State              the total so far, and the current chunk

For several queries at a time:

    rows     i64 [rows, 2]          the number of each one's first cell among those that any of them
                                    sees, and how many it sees
    sums     f32 [8, 8, 16]         products of a few of them with some cells, partly reduced
    keys     f32 [D, 80]            the group's rows of K, transposed
    values   f32 [80, Dv]           the group's rows of V

A state holds the running softmax of some rows, before it is normalised:

    acc      f32 [rows, Dv]         sums of exp(score - maximum) * V
    sums     f32 [rows, 16]         sums of exp(score - maximum), lane by lane
    maxima   f32 [rows]             the largest score so far
"""

from __future__ import annotations

from typing import NamedTuple

from ggmlpy.backends.cpu.kernel import Int, Record, inline
from ggmlpy.backends.cpu.simd.memory import store_i64

GROUP = 64  # visible cells that one update of the softmax takes
SHIFTS = 16  # by so many cells queries that are attended to together may begin apart
SPAN = GROUP + SHIFTS  # cells of a group of theirs
KEY_BYTES = 4 * SPAN  # of an element of their K
ROW_BYTES = 16  # of an entry of the table of rows
_SUM_BYTES = 4096  # of their partly reduced products
SUBGROUP = 16  # cells whose rows are converted to f32, or multiplied with q, at a time
FOLD_BYTES = 256  # of a head: the partly reduced products with SUBGROUP cells
_STATE_BYTES_A_ROW = 64 + 4  # besides acc: sums, maximum


class State(NamedTuple):
    """Addresses of the parts of a state."""

    acc: Int
    sums: Int
    maxima: Int


class Scratch(NamedTuple):
    """Addresses in a thread's scratch memory."""

    cells: Int
    k_rows: Int
    v_rows: Int
    k_f32: Int
    v_f32: Int
    bias: Int
    folds: Int
    weights: Int
    f32_rows: Int
    q: Int
    states: Int
    rows: Int
    sums: Int
    keys: Int
    values: Int


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def n_state_bytes(n_rows: int, dv: int) -> int:
    """Bytes of a state of `n_rows` rows, `dv` rounded up to whole vectors."""
    return round_up(n_rows * (4 * dv + _STATE_BYTES_A_ROW), 64)


def n_thread_bytes(list_bytes: int, n_rows: int, d: int, dv: int) -> int:
    """Bytes of a thread's scratch memory, `d` and `dv` rounded up to whole vectors."""
    n_bytes = list_bytes + 8 * (2 * SPAN + 2 * SUBGROUP) + 4 * GROUP + 4 * FOLD_BYTES
    n_bytes += 4 * n_rows * GROUP + 4 * SUBGROUP * max(d, dv)
    return round_up(n_bytes + 4 * n_rows * d + 2 * n_state_bytes(n_rows, dv), 128)


def n_block_bytes(n_rows: int, d: int, dv: int) -> int:
    """Bytes besides, where `n_rows` rows of several queries are attended to together."""
    return round_up(
        round_up(ROW_BYTES * n_rows, 64) + _SUM_BYTES + KEY_BYTES * d + 4 * SPAN * dv, 128
    )


@inline
def padded_bytes(n: Int) -> Int:
    """Bytes of a row of n f32 in scratch memory."""
    return 4 * ((n + 15) & -16)


@inline
def list_bytes(p: Record) -> Int:
    """Bytes of the cells in a thread's scratch memory."""
    if p.cells.ptr == 0:
        return padded_bytes(p.k.ne1)
    return 0 if p.mask.ptr == 0 else 2 * padded_bytes(p.cells.ne0)


@inline
def state_at(p: Record, address: Int, n_rows: Int) -> State:
    """The state at an address, of `n_rows` rows."""
    sums = address + n_rows * padded_bytes(p.v.ne0)
    return State(address, sums, sums + 64 * n_rows)


@inline
def state_bytes(p: Record, n_rows: Int) -> Int:
    """Bytes from one state to the next."""
    n_bytes = n_rows * (padded_bytes(p.v.ne0) + _STATE_BYTES_A_ROW)
    return (n_bytes + 63) & -64


@inline
def rows_of(p: Record, state: State, first: Int) -> State:
    """The state of the rows from `first` on."""
    acc = state.acc + first * padded_bytes(p.v.ne0)
    return State(acc, state.sums + 64 * first, state.maxima + 4 * first)


@inline
def scratch_at(p: Record, thread: Int, n_rows: Int) -> Scratch:
    """A thread's scratch memory, for `n_rows` rows. Offsets of rows of f32 are written to it."""
    d_bytes, dv_bytes = padded_bytes(p.k.ne0), padded_bytes(p.v.ne0)
    cells = p.scratch + thread * p.thread_bytes
    k_rows = cells + list_bytes(p)
    v_rows = k_rows + 8 * SPAN
    k_f32 = v_rows + 8 * SPAN
    v_f32 = k_f32 + 8 * SUBGROUP
    for j in range(SUBGROUP):
        store_i64(k_f32 + 8 * j, j * d_bytes)
        store_i64(v_f32 + 8 * j, j * dv_bytes)
    bias = v_f32 + 8 * SUBGROUP
    folds = bias + 4 * GROUP
    weights = folds + 4 * FOLD_BYTES
    f32_rows = weights + n_rows * 4 * GROUP
    q = f32_rows + SUBGROUP * max(d_bytes, dv_bytes)
    states = q + n_rows * d_bytes
    rows = states + 2 * state_bytes(p, n_rows)
    sums = rows + ((ROW_BYTES * n_rows + 63) & -64)
    keys = sums + _SUM_BYTES
    values = keys + SPAN * d_bytes
    return Scratch(
        cells, k_rows, v_rows, k_f32, v_f32, bias, folds, weights, f32_rows, q, states,
        rows, sums, keys, values,
    )  # fmt: skip
