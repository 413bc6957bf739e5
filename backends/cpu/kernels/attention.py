"""Attention over a cache: softmax(scale * q.k + mask) v, for each query and head.

What a query sees is listed first, in cell order. Then come groups of 32 listed cells, and for each
group and each head of K and V, with all the heads of q that share it:

    rows of K as f32     q.k for 16 cells at a time     weights, with one running maximum per head
    rows of V as f32     weighted sums, in the order of the list

Masked cells are not read, wherever they lie, and a cell's group depends on its rank among the seen
ones only. So the result has the same bits however masked cells lie between them, for whatever
n_kv, number of queries, streams and threads.

A task is one query with some heads. Where queries are few, it takes all the heads of K that its
thread is to have, because a token's heads lie side by side in the cache; where they are many, it
takes one, whose rows then stay in the core's cache. Types of K and V are told apart where a row is
read, nowhere else. Scratch memory of a thread:

    list     i32 [n_kv]             the cells that the query sees
    q        f32 [heads, D]         D, Dv and heads rounded up to whole vectors and blocks
    acc      f32 [heads, Dv]        weighted sums of V so far
    sums     f32 [heads, 16]        sums of weights so far, lane by lane
    weights  f32 [shared, 32]       scores, then exp(score - maximum), of the heads at hand
    bias     f32 [32]               the mask's values for the group
    folds    f32 [4, 4, 16]         products of a block of heads with 16 cells, half summed up
    rows     f32 [32, max(D, Dv)]   the group's rows of K, then of V
    tops     f32 [heads]            maxima so far
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.dequantize import CACHE_TYPES, read_any, read_f32, read_float
from ggmlpy.backends.cpu.kernels.masks import bind_slopes, mask_row
from ggmlpy.backends.cpu.kernels.types import FLOATS
from ggmlpy.backends.cpu.simd.arith import (
    equal,
    fma,
    iota_i32x16,
    less,
    lowest_bit,
    maximum,
    quotient,
    select,
    splat_f32x16,
    splat_i32x16,
    zero_f32x16,
)
from ggmlpy.backends.cpu.simd.convert import bits_of_mask
from ggmlpy.backends.cpu.simd.math import exp, tanh
from ggmlpy.backends.cpu.simd.memory import (
    load_f16,
    load_f16x16,
    load_f16x16_part,
    load_f32,
    load_f32x16,
    load_i32,
    prefetch,
    store_f32,
    store_f32x16,
    store_f32x16_part,
    store_i32,
    store_i32x16,
)
from ggmlpy.backends.cpu.simd.reduce import fold4, fold16, max_lanes, sum_lanes
from ggmlpy.backends.cpu.simd.tile import tile_f32x16, tile_get, tile_set

ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("q", TENSOR),
        ("k", TENSOR),
        ("v", TENSOR),
        ("mask", TENSOR),
        ("sinks", TENSOR),
        ("slopes", "i8"),
        ("scratch", "i8"),
        ("thread_bytes", "i8"),
        ("k_type", "i4"),
        ("v_type", "i4"),
        ("k_row_bytes", "i4"),
        ("v_row_bytes", "i4"),
        ("n_kv_heads", "i4"),  # heads of K in a task
        ("heads", "i4"),  # heads of q in a task for each of them: all that share it, or fewer
        ("scale", "f4"),
        ("logit_softcap", "f4"),
    ],
    align=True,
)

GROUP = 32
_COLUMNS = 4  # vectors of a row of V that are summed side by side
_MANY_QUERIES = 128  # from here on rows of K and V stay in cache from one query to the next

_NEVER = float("-inf")


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _heads(node: Any, n_threads: int) -> tuple[int, int]:
    """How many heads of K a task takes, and how many of q for each of them. No result depends on
    it: a few queries are shared by heads, so that all threads get as much to do."""
    q, k = node.src[:2]
    shared, n_kv_heads = q.ne[2] // k.ne[2], k.ne[2]
    if node.op.has_mask and node.src[3].ne[2] > 1:
        return 1, 1  # heads with masks of their own
    if q.ne[1] >= _MANY_QUERIES:
        return 1, shared
    if n_kv_heads % n_threads == 0:
        return n_kv_heads // n_threads, shared
    n_tasks = q.ne[1] * n_kv_heads * q.ne[3]
    return 1, max(1, min(shared, shared * n_tasks // n_threads))


def _thread_bytes(node: Any, n_threads: int) -> int:
    q, k, v = node.src[:3]
    n_kv_heads, heads = _heads(node, n_threads)
    room, d, dv = _up(heads, 4), _up(q.ne[0], 16), _up(v.ne[0], 16)
    floats = _up(k.ne[1], 16)  # list
    floats += n_kv_heads * room * (d + dv + 16 + 1)  # q, acc, sums, tops
    floats += room * GROUP + GROUP + 256 + GROUP * max(d, dv)  # weights, bias, folds, rows
    return _up(4 * floats, 128)


def _scratch_bytes(node: Any, n_threads: int) -> int:
    return _thread_bytes(node, n_threads) * n_threads


def _bind(node: Any, builder: Any) -> dict[str, float]:
    q, k, v = node.src[:3]
    n_kv_heads, heads = _heads(node, builder.n_threads)
    return {
        "slopes": bind_slopes(builder, q.ne[2], node.op.max_bias),
        "thread_bytes": _thread_bytes(node, builder.n_threads),
        "k_type": types.type_field(k),
        "v_type": types.type_field(v),
        "k_row_bytes": k.spec.row_bytes,
        "v_row_bytes": v.spec.row_bytes,
        "n_kv_heads": n_kv_heads,
        "heads": heads,
    }


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
def ask_for(next: Any, start: Int, n: Int) -> None:
    """Prefetches rows start .. start + n - 1 of the next group or head: they lie a token apart,
    where no hardware looks ahead. A few at a time, since a core waits for no more than a few."""
    base, stride, row_bytes, cells, n_cells = next
    for j in range(start, min(start + n, n_cells)):
        row = base + load_i32(cells + 4 * j) * stride
        for i in range(0, row_bytes, 64):
            prefetch(row + i)


@inline
def fill(ptr: Int, n_bytes: Int, value: Any) -> None:
    """Whole vectors of one value."""
    for i in range(0, n_bytes, 64):
        store_f32x16(ptr + i, splat_f32x16(value))


@inline
def weigh(weights: Int, sums: Int, top: Int, acc: Int, acc_bytes: Int, n_cells: Int) -> None:
    """Scores of a group and a head to weights: exp(score - maximum so far), added to the sums.

    Where the maximum grows, what was summed up before shrinks accordingly.
    """
    s = load_f32x16(weights)
    if n_cells > 16:
        s = maximum(s, load_f32x16(weights + 64))
    largest, before = max_lanes(s), load_f32(top)
    if largest > before:
        factor = exp(before - largest)
        store_f32(top, largest)
        store_f32x16(sums, load_f32x16(sums) * factor)
        for i in range(0, acc_bytes, 64):
            store_f32x16(acc + i, load_f32x16(acc + i) * factor)
    else:
        largest = before
    if largest == _NEVER:
        largest = np.float32(0)  # else -inf - -inf is NaN
    total = load_f32x16(sums)
    for i in range(0, n_cells, 16):
        e = exp(load_f32x16(weights + 4 * i) - largest)
        store_f32x16(weights + 4 * i, e)
        total = total + e
    store_f32x16(sums, total)


@inline
def finish(acc: Int, y: Int, n: Int, factor: Any) -> None:
    """y = acc * factor."""
    whole = n & -16
    for i in range(0, 4 * whole, 64):
        store_f32x16(y + i, load_f32x16(acc + i) * factor)
    if n > whole:
        at = 4 * whole
        store_f32x16_part(y + at, load_f32x16(acc + at) * factor, n - whole)


Served = dict[tuple[str, tuple[str, ...]], None]  # a set with an order


def _served(cache_types: Sequence[str]) -> Served:
    """What sources there may be, with caches of these types."""
    return dict.fromkeys(
        ("flash_attn_ext", ("f32", k, v, *mask, *sinks))
        for k in cache_types
        for v in cache_types
        for mask in (("f16",), ())
        for sinks in ((), ("f32",))
    )


def _attention(
    n_heads: int, n_accumulators: int, needs: str, fits: Callable[[int], bool], read_row: Inline
) -> None:
    """The kernel that takes `n_heads` heads at a time, where `fits(heads that share one of K)`."""
    quantized = read_row is read_any
    name = f"flash_attn_ext_{needs}_{n_heads}" + ("_quantized" if quantized else "")
    floats = _served(FLOATS)
    served = [s for s in _served(CACHE_TYPES) if s not in floats] if quantized else [*floats]
    n_keys = n_accumulators // n_heads
    n_folds = n_keys // 4
    n_sums = n_heads * _COLUMNS

    @inline
    def read_rows(
        type: Int, base: Int, stride: Int, cells: Int, n_cells: Int, rows: Int, n: Int
    ) -> None:
        """The listed rows of n elements as f32, each padded with zeros to whole vectors."""
        row_bytes = 4 * ((n + 15) & -16)
        for j in range(n_cells):
            row = rows + j * row_bytes
            if n & 15 != 0:
                store_f32x16(row + row_bytes - 64, zero_f32x16())
            read_row(type, base + load_i32(cells + 4 * j) * stride, row, n)

    @inline
    def dots(q: Int, rows: Int, folds: Int, row_bytes: Int) -> None:
        """q.k of n_keys rows and n_heads heads, folded; head h at folds + 256 h."""
        acc = tile_f32x16(n_accumulators)
        for d in range(0, row_bytes, 64):
            for h in range(n_heads):
                part = load_f32x16(q + h * row_bytes + d)
                for j in range(n_keys):
                    at = h * n_keys + j
                    k = load_f32x16(rows + j * row_bytes + d)
                    acc = tile_set(acc, at, fma(part, k, tile_get(acc, at)))
        for h in range(n_heads):
            for f in range(n_folds):
                at = h * n_keys + 4 * f
                a, b = tile_get(acc, at), tile_get(acc, at + 1)
                c, d = tile_get(acc, at + 2), tile_get(acc, at + 3)
                store_f32x16(folds + 256 * h + 64 * f, fold4(a, b, c, d))

    @inline
    def add_values(weights: Int, rows: Int, acc: Int, row_bytes: Int, n_cells: Int) -> None:
        """acc += weights * V of n_heads heads: by blocks of columns, cells in order."""
        wide = row_bytes & -(64 * _COLUMNS)
        for d in range(0, wide, 64 * _COLUMNS):
            add_columns(weights, rows + d, acc + d, row_bytes, n_cells)
        for d in range(wide, row_bytes, 64):
            sums = tile_f32x16(n_heads)
            for h in range(n_heads):
                sums = tile_set(sums, h, load_f32x16(acc + h * row_bytes + d))
            for j in range(n_cells):
                v = load_f32x16(rows + j * row_bytes + d)
                for h in range(n_heads):
                    w = load_f32(weights + 4 * (h * GROUP + j))
                    sums = tile_set(sums, h, fma(v, w, tile_get(sums, h)))
            for h in range(n_heads):
                store_f32x16(acc + h * row_bytes + d, tile_get(sums, h))

    @inline
    def add_columns(weights: Int, rows: Int, acc: Int, row_bytes: Int, n_cells: Int) -> None:
        sums = tile_f32x16(n_sums)
        for h in range(n_heads):
            for c in range(_COLUMNS):
                at = h * _COLUMNS + c
                sums = tile_set(sums, at, load_f32x16(acc + h * row_bytes + 64 * c))
        for j in range(n_cells):
            for h in range(n_heads):
                w = load_f32(weights + 4 * (h * GROUP + j))
                for c in range(_COLUMNS):
                    at = h * _COLUMNS + c
                    v = load_f32x16(rows + j * row_bytes + 64 * c)
                    sums = tile_set(sums, at, fma(v, w, tile_get(sums, at)))
        for h in range(n_heads):
            for c in range(_COLUMNS):
                store_f32x16(acc + h * row_bytes + 64 * c, tile_get(sums, h * _COLUMNS + c))

    @inline
    def score(p: Record, q: Int, memory: Any, slopes: Int, n_cells: Int, next: Any) -> None:
        """Scores of a group's cells for a block of heads; -inf up to a multiple of 16."""
        rows, bias, folds, weights = memory
        row_bytes = 4 * ((p.k.ne0 + 15) & -16)
        for first in range(0, n_cells, 16):
            for key in range(first, min(n_cells, first + 16), n_keys):
                ask_for(next, key, n_keys)
                dots(q, rows + key * row_bytes, folds + 16 * (key - first), row_bytes)
            there = less(iota_i32x16(), splat_i32x16(min(16, n_cells - first)))
            for h in range(n_heads):
                at = folds + 256 * h
                a, b = load_f32x16(at), load_f32x16(at + 64)
                s = fold16(a, b, load_f32x16(at + 128), load_f32x16(at + 192)) * p.scale
                if p.logit_softcap != 0:
                    s = tanh(s / p.logit_softcap) * p.logit_softcap
                if p.mask.ptr != 0:
                    slope = np.float32(1) if slopes == 0 else load_f32(slopes + 4 * h)
                    s = fma(load_f32x16(bias + 4 * first), slope, s)
                store_f32x16(weights + 4 * (h * GROUP + first), select(there, s, _NEVER))

    @inline
    def attend(p: Record, memory: Int, mask: Int, n_seen: Int, task: Any) -> None:
        """One query, over the cells in its list: `n` heads from `start` on of those that share a
        head of K, for `n_kv` heads of K from `first_kv` on."""
        query, sequence, first_kv, n_kv, start, n = task
        shared = quotient(p.q.ne2, p.k.ne2)
        d_bytes, dv_bytes = 4 * ((p.k.ne0 + 15) & -16), 4 * ((p.v.ne0 + 15) & -16)
        room = (n + n_heads - 1) & -n_heads
        q = memory + 4 * ((p.k.ne1 + 15) & -16)
        acc = q + p.n_kv_heads * room * d_bytes
        sums = acc + p.n_kv_heads * room * dv_bytes
        weights = sums + p.n_kv_heads * room * 64
        bias = weights + room * 4 * GROUP
        folds = bias + 4 * GROUP
        rows = folds + 1024
        tops = rows + GROUP * max(d_bytes, dv_bytes)

        for i in range(n_kv):
            at = p.q.ptr + query * p.q.nb1 + sequence * p.q.nb3
            at += ((first_kv + i) * shared + start) * p.q.nb2
            for h in range(n):
                row = q + (i * room + h) * d_bytes
                store_f32x16(row + d_bytes - 64, zero_f32x16())
                read_f32(at + h * p.q.nb2, row, p.q.ne0)
                store_f32(tops + 4 * (i * room + h), np.float32(_NEVER))
        fill(acc, n_kv * room * dv_bytes, 0.0)
        fill(sums, n_kv * room * 64, 0.0)

        for done in range(0, n_seen, GROUP):
            cells = memory + 4 * done
            n_cells = min(GROUP, n_seen - done)
            if mask != 0:
                for j in range(n_cells):
                    store_f32(bias + 4 * j, load_f16(mask + 2 * load_i32(cells + 4 * j)))
            for i in range(n_kv):
                # What comes next: the rows of the next head, or the first head's of the next group.
                ahead, n_ahead, to_next = cells, n_cells, first_kv + i + 1
                if i + 1 == n_kv:
                    ahead, n_ahead = cells + 4 * GROUP, max(0, min(GROUP, n_seen - done - GROUP))
                    to_next = first_kv
                k = p.k.ptr + sequence * p.k.nb3
                v = p.v.ptr + sequence * p.v.nb3
                k_next = k + to_next * p.k.nb2, p.k.nb1, np.int64(p.k_row_bytes), ahead, n_ahead
                v_next = v + to_next * p.v.nb2, p.v.nb1, np.int64(p.v_row_bytes), ahead, n_ahead
                k += (first_kv + i) * p.k.nb2
                read_rows(p.k_type, k, p.k.nb1, cells, n_cells, rows, p.k.ne0)
                for h in range(0, n, n_heads):
                    slopes = p.slopes
                    if slopes != 0:
                        slopes += 4 * ((first_kv + i) * shared + start + h)
                    part = rows, bias, folds, weights + 4 * GROUP * h
                    score(p, q + (i * room + h) * d_bytes, part, slopes, n_cells, k_next)
                    k_next = k, np.int64(0), np.int64(0), cells, np.int64(0)
                for h in range(n):
                    at = i * room + h
                    w = weights + 4 * GROUP * h
                    weigh(w, sums + 64 * at, tops + 4 * at, acc + at * dv_bytes, dv_bytes, n_cells)
                v += (first_kv + i) * p.v.nb2
                read_rows(p.v_type, v, p.v.nb1, cells, n_cells, rows, p.v.ne0)
                for j in range(0, n_cells, 16):
                    ask_for(v_next, j, 16)
                    for h in range(0, n, n_heads):
                        at = acc + (i * room + h) * dv_bytes
                        w = weights + 4 * (GROUP * h + j)
                        add_values(w, rows + j * dv_bytes, at, dv_bytes, min(16, n_cells - j))

        for i in range(n_kv):
            for h in range(n):
                at = i * room + h
                head = (first_kv + i) * shared + start + h
                total = sum_lanes(load_f32x16(sums + 64 * at))
                factor = np.float32(1)
                if p.sinks.ptr != 0:
                    sink, top = load_f32(p.sinks.ptr + 4 * head), load_f32(tops + 4 * at)
                    largest = maximum(top, sink)
                    factor = exp(top - largest)
                    total = total * factor + exp(sink - largest)
                factor = np.float32(0) if total == np.float32(0) else factor / total
                y = p.y.ptr + head * p.y.nb1 + query * p.y.nb2 + sequence * p.y.nb3
                finish(acc + at * dv_bytes, y, p.v.ne0, factor)

    @kernel(
        *served[0],
        args=ARGS,
        requires=lambda node: fits(node.src[0].ne[2] // node.src[1].ne[2]),
        needs=needs,
        scratch_bytes=_scratch_bytes,
        bind=_bind,
        name=name,
        also=served[1:],
    )
    def flash_attn_ext(p: Record, ith: Int, nth: Int) -> None:
        """Tasks are dealt to the threads in turn, because causal masks make them grow in order."""
        shared = quotient(p.q.ne2, p.k.ne2)
        parts = quotient(shared + p.heads - 1, p.heads)
        n_query = p.q.ne1
        n_blocks = quotient(p.k.ne2 + p.n_kv_heads - 1, p.n_kv_heads) * parts
        memory = p.scratch + ith * p.thread_bytes
        listed, n_seen = -1, 0
        for task in range(ith, n_query * n_blocks * p.q.ne3, nth):
            if p.n_kv_heads > 1 or n_query < _MANY_QUERIES:
                outer = quotient(task, n_blocks)
                block = task - outer * n_blocks
                sequence = quotient(outer, n_query)
                query = outer - sequence * n_query
            else:
                outer = quotient(task, n_query)
                query = task - outer * n_query
                sequence = quotient(outer, n_blocks)
                block = outer - sequence * n_blocks
            which = quotient(block, parts)
            first_kv = which * p.n_kv_heads
            n_kv = min(p.n_kv_heads, p.k.ne2 - first_kv)
            start = (block - which * parts) * p.heads
            mask = mask_row(p.mask, query, first_kv * shared + start, sequence)
            if mask != listed:
                listed = mask
                n_seen = list_cells(mask, p.k.ne1, memory)
            n = min(p.heads, shared - start)
            attend(p, memory, mask, n_seen, (query, sequence, first_kv, n_kv, start, n))


for _read_row in (read_float, read_any):
    _attention(1, 16, "avx512", lambda shared: shared == 1, _read_row)
    _attention(2, 16, "avx512", lambda shared: shared == 2, _read_row)
    _attention(4, 16, "avx512", lambda shared: shared > 2, _read_row)
    _attention(1, 4, "generic", lambda shared: True, _read_row)
