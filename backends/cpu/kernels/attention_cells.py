"""The cells of the KV cache that a query sees: which they are, and where their rows lie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, Record, inline, report
from ggmlpy.backends.cpu.simd.arith import (
    equal,
    iota_i32x16,
    less,
    lowest_bit,
    quotient,
    splat_i32x16,
    zero_i32x16,
)
from ggmlpy.backends.cpu.simd.convert import bits_of_mask
from ggmlpy.backends.cpu.simd.memory import (
    load_f16,
    load_f16x16,
    load_f16x16_part,
    load_i32,
    load_i32x16,
    prefetch_l2,
    store_f32,
    store_f32x16,
    store_i32,
    store_i32x16,
    store_i64,
)

_NEVER = float("-inf")


class Seen(NamedTuple):
    """What a query sees, masked cells included: entries of a list, or the cells of its stream."""

    entries: Int  # the address of the first one, i32; 0: cells 0 .. n - 1
    n: Int


class Visible(NamedTuple):
    """The cells that a query sees and that its mask shows, in order."""

    mask: Int  # the address of the mask's row; 0 without
    seen: Seen
    cells: Int  # the address of their numbers, i32
    places: Int  # the address of their places in the mask's row, i32
    n: Int


class Cells(NamedTuple):
    """A stretch of the visible cells."""

    first: Int  # the address of its first number
    places: Int  # and of its first place in the mask's row
    n: Int
    n_left: Int  # cells from there to the last visible one


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
    """Rows that are needed next: those of `n` listed cells, of `n_heads` heads side by side. They
    are prefetched head by head, all of a cell before the next."""

    base: Int
    stride: Int  # from cell to cell
    head_stride: Int
    n_heads: Int
    cells: Int
    n: Int
    done: Int  # how many have been prefetched, each head counted


@inline
def seen_by(p: Record, query: Int, sequence: Int) -> Seen:
    """What a query sees: nothing, which is reported, where its list or an entry does not exist."""
    if p.cells.ptr == 0:
        return Seen(np.int64(0), np.int64(p.k.ne1))
    at = p.seen.ptr + query * p.seen.nb1 + sequence * p.seen.nb2
    i_list, first = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
    n = np.int64(load_i32(at + 8))
    if i_list < 0 or i_list >= p.cells.ne1:
        wrong = i_list
    elif first < 0 or first > p.cells.ne0:
        wrong = first
    elif n < 0 or (p.mask.ptr != 0 and n > p.mask.ne0):
        wrong = n
    elif first + n > p.cells.ne0:
        wrong = first + n - 1
    else:
        return Seen(p.cells.ptr + i_list * p.cells.nb1 + 4 * first, n)
    report(p, wrong)
    return Seen(np.int64(p.cells.ptr), np.int64(0))


@inline
def no_cells() -> Visible:
    """Before the first query: a list that is no query's."""
    zero = np.int64(0)
    return Visible(np.int64(-1), Seen(zero, zero), zero, zero, zero)


@inline
def visible_to(p: Record, seen: Seen, mask: Int, before: Visible, memory: Int) -> Visible:
    """The visible cells: those `before` if they are the same ones. Without a mask the list of the
    cells that are seen is used where it is, else one is written to `memory`."""
    if mask == 0 and seen.entries != 0:
        return Visible(mask, seen, seen.entries, seen.entries, seen.n)
    same = seen.entries == before.seen.entries and seen.n == before.seen.n
    if same and mask == before.mask:
        return before
    n = list_cells(mask, seen.n, memory)
    if seen.entries == 0:
        return Visible(mask, seen, memory, memory, n)
    cells = memory + 4 * ((p.cells.ne0 + 15) & -16)
    for j in range(n):
        store_i32(cells + 4 * j, load_i32(seen.entries + 4 * load_i32(memory + 4 * j)))
    return Visible(mask, seen, cells, memory, n)


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
def all_exist(p: Record, cells: Int, n_cells: Int) -> Int:
    """Whether listed cells exist, 1 or 0; the first one that does not is reported."""
    last = min(p.k.ne1 * p.k.ne3, 1 << 31) - 1
    j, outside = 0, np.int64(0)
    while j + 16 <= n_cells and outside == 0:
        numbers = load_i32x16(cells + 4 * j)
        outside = np.int64(bits_of_mask(less(numbers, zero_i32x16())))
        outside |= np.int64(bits_of_mask(less(splat_i32x16(last), numbers)))
        j += 16 if outside == 0 else 0
    while j < n_cells:
        cell = load_i32(cells + 4 * j)
        if cell < 0 or cell > last:
            report(p, cell)
            return 0
        j += 1
    return 1


@inline
def list_rows(cells: Int, n_cells: Int, stride: Int, offsets: Int) -> None:
    """Writes the offsets of the rows of listed cells, i64, up to a multiple of 16: the last cell's
    is repeated, since blocks of rows are read whole."""
    for j in range((n_cells + 15) & -16):
        cell = np.int64(load_i32(cells + 4 * min(j, n_cells - 1)))
        store_i64(offsets + 8 * j, cell * stride)


@inline
def load_bias(mask: Int, places: Int, n: Int, bias: Int) -> None:
    """The mask's values at some places, as f32. 16 places in a row are read at once."""
    for i in range(0, n, 16):
        first = load_i32(places + 4 * i)
        if i + 16 <= n and load_i32(places + 4 * i + 60) == first + 15:  # they grow
            store_f32x16(bias + 4 * i, load_f16x16(mask + 2 * first))
        else:
            for j in range(i, min(i + 16, n)):
                store_f32(bias + 4 * j, load_f16(mask + 2 * load_i32(places + 4 * j)))


@inline
def head_bytes(rows: Record) -> Int:
    """Bytes of a row of K or V that belong to one head, as far as they are prefetched."""
    return min(rows.nb2, 4 * rows.ne0)


@inline
def prefetch_rows(ahead: Ahead, start: Int, n: Int, first_byte: Int, end_byte: Int) -> None:
    """Prefetches a range of bytes of heads start .. start + n - 1 of those that are not done.

    A few at a time, and into the second level: rows of one head share few sets of the first, and
    prefetching them there made this 1.5 to 3 times slower (EPYC Zen 4, caches beyond L3,
    2026-11-21). In the order in which they lie in memory: a head's rows lie a cell apart, and one
    head of 16 cells after another brought 9.5 GB/s to a core instead of 24 (EPYC Zen 5,
    2026-11-27)."""
    for i_head in range(ahead.done + start, ahead.done + start + n):
        j = quotient(i_head, ahead.n_heads)
        if j < ahead.n:
            row = ahead.base + load_i32(ahead.cells + 4 * j) * ahead.stride
            row += (i_head - j * ahead.n_heads) * ahead.head_stride
            for i in range(first_byte, end_byte, 64):
                prefetch_l2(row + i)
