"""The cells of the KV cache that a query sees: which they are, and where their rows lie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, Record, inline
from ggmlpy.backends.cpu.simd.arith import equal, iota_i32x16, lowest_bit, splat_i32x16
from ggmlpy.backends.cpu.simd.convert import bits_of_mask
from ggmlpy.backends.cpu.simd.memory import (
    load_f16x16,
    load_f16x16_part,
    load_i32,
    prefetch_l2,
    store_i32,
    store_i32x16,
    store_i64,
)

_NEVER = float("-inf")


class Cells(NamedTuple):
    """A stretch of the list of visible cells, i32."""

    first: Int  # the address of its first entry
    n: Int
    n_left: Int  # entries from there to the end of the whole list


class Group(NamedTuple):
    """Cells of a group, from its cell `first` on."""

    first: Int
    n_cells: Int  # of the whole group


class Heads(NamedTuple):
    """Heads of q that share a head of K."""

    row: Int  # of the first one, in scratch memory and in states
    first: Int  # its number in q
    n: Int


class Ahead(NamedTuple):
    """Rows that are needed next: those of `n` listed cells, one head's part of each."""

    base: Int
    stride: Int
    cells: Int
    n: Int


@inline
def list_cells(mask: Int, n_kv: Int, cells: Int) -> Int:
    """Writes the numbers of the cells whose mask entry is not -inf, in order; returns how many."""
    n = 0
    for i in range(0, n_kv, 16):
        m = min(16, n_kv - i)
        bits = (1 << m) - 1
        if mask != 0:
            if m == 16:
                hidden = equal(load_f16x16(mask + 2 * i), _NEVER)
            else:
                hidden = equal(load_f16x16_part(mask + 2 * i, m), _NEVER)
            bits &= ~bits_of_mask(hidden)
        if bits == 0xFFFF:
            store_i32x16(cells + 4 * n, iota_i32x16() + splat_i32x16(i))
            n += 16
        else:
            while bits != 0:
                store_i32(cells + 4 * n, i + lowest_bit(bits))
                bits &= bits - 1
                n += 1
    return n


@inline
def list_rows(cells: Int, n_cells: Int, stride: Int, offsets: Int) -> None:
    """Writes the offsets of the rows of listed cells, i64, up to a multiple of 16: the last cell's
    is repeated, since blocks of rows are read whole."""
    for j in range((n_cells + 15) & -16):
        cell = np.int64(load_i32(cells + 4 * min(j, n_cells - 1)))
        store_i64(offsets + 8 * j, cell * stride)


@inline
def head_bytes(rows: Record) -> Int:
    """Bytes of a row of K or V that belong to one head, as far as they are prefetched."""
    return min(rows.nb2, 4 * rows.ne0)


@inline
def prefetch_rows(ahead: Ahead, start: Int, n: Int, first_byte: Int, end_byte: Int) -> None:
    """Prefetches a range of bytes of rows start .. start + n - 1: they lie a token apart, which
    hardware prefetchers do not follow. A few at a time, and into the second level: rows of one head
    share few sets of the first, and prefetching them there made this 1.5 to 3 times slower (EPYC
    Zen 4, caches beyond L3, 2026-11-21)."""
    for j in range(start, min(start + n, ahead.n)):
        row = ahead.base + load_i32(ahead.cells + 4 * j) * ahead.stride
        for i in range(first_byte, end_byte, 64):
            prefetch_l2(row + i)
