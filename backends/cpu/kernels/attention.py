"""Attention over a cache: softmax(scale * q.k + mask) v, for each query and head.

A task is one query with the heads that share a head of K and V, so every cached row is read once
for all of them. What a query sees is listed first, in cell order; then groups of 32 listed cells:

    rows of K as f32     q.k for 16 cells and all heads     one running maximum per head
    rows of V as f32     weighted sums, in list order

Masked cells are not read, wherever they lie, and a cell's group depends on its rank among the seen
ones only. So the result has the same bits however masked cells lie between them, for whatever
n_kv, number of queries, streams and threads.

Types of K and V are told apart where a row is read, nowhere else. Scratch of a thread:

    list     i32 [n_kv + 16]            the cells that the query sees
    q        f32 [heads, D]             D, Dv and heads rounded up to whole vectors and blocks
    rows     f32 [32, max(D, Dv)]       a group's rows of K, then of V
    bias     f32 [32]                   the mask's values for the group
    folds    f32 [4, heads of a block, 16]
    weights  f32 [heads, 32]            scores, then exp(score - maximum)
    sums     f32 [heads, 16]            sums of weights, lane by lane
    tops     f32 [heads]                running maxima
    acc      f32 [heads, Dv]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.dequantize import CACHE_TYPES, read_f32, read_row
from ggmlpy.backends.cpu.kernels.masks import bind_slopes, mask_row
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
        ("heads", "i4"),  # of a task: all that share a head of K and V, or fewer
        ("query_major", "i4"),
        ("scale", "f4"),
        ("logit_softcap", "f4"),
    ],
    align=True,
)

GROUP = 32
_COLUMNS = 4  # vectors of a row of V that are summed side by side
_MANY_QUERIES = 64

_NEVER = float("-inf")


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _thread_bytes(node: Any) -> int:
    q, k, v = node.src[:3]
    heads = _up(q.ne[2] // k.ne[2], 4)
    d, dv = _up(q.ne[0], 16), _up(v.ne[0], 16)
    floats = (
        (_up(k.ne[1], 16) + 16) + heads * (d + dv + GROUP + 17) + GROUP * (max(d, dv) + 1) + 256
    )
    return _up(4 * floats, 128)


def _scratch_bytes(node: Any, n_threads: int) -> int:
    return _thread_bytes(node) * n_threads


def _bind(node: Any, builder: Any) -> dict[str, float]:
    q, k, v = node.src[:3]
    mask = node.src[3] if node.op.has_mask else None
    shared = q.ne[2] // k.ne[2]
    tasks = q.ne[1] * k.ne[2] * q.ne[3]
    heads = shared if mask is None or mask.ne[2] == 1 else 1
    if tasks < builder.n_threads:
        heads = max(1, min(heads, shared * tasks // builder.n_threads))
    return {
        "slopes": bind_slopes(builder, q.ne[2], node.op.max_bias),
        "thread_bytes": _thread_bytes(node),
        "k_type": types.type_field(k),
        "v_type": types.type_field(v),
        "heads": heads,
        # Few queries: one list serves all heads of K. Many: the rows of one head stay in cache.
        "query_major": int(q.ne[1] < _MANY_QUERIES),
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


_SERVED: list[tuple[str, tuple[str, ...]]] = [
    ("flash_attn_ext", ("f32", k, v, *mask, *sinks))
    for k in CACHE_TYPES
    for v in CACHE_TYPES
    for mask in (("f16",), ())
    for sinks in ((), ("f32",))
]


def _attention(name: str, n_heads: int, n_accumulators: int, needs: str, fits: Any) -> None:
    """The kernel that takes `n_heads` heads at a time, for nodes that `fits(heads per task)`."""
    n_keys = n_accumulators // n_heads
    n_folds = n_keys // 4
    n_sums = n_heads * _COLUMNS

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
    def score(
        p: Record, q: Int, rows: Int, bias: Int, folds: Int, weights: Int, slopes: Int, n_cells: Int
    ) -> None:
        """Scores of a group's cells for a block of heads; -inf up to a multiple of 16."""
        row_bytes = 4 * ((p.k.ne0 + 15) & -16)
        for first in range(0, n_cells, 16):
            for key in range(first, min(n_cells, first + 16), n_keys):
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
    def attend(p: Record, memory: Int, mask: Int, n_seen: Int, where: Any) -> None:
        """One query, of all the cells in its list: heads first .. first + n - 1."""
        query, sequence, first, n = where
        shared = quotient(p.q.ne2, p.k.ne2)
        head_kv = quotient(first, shared)
        d_bytes, dv_bytes = 4 * ((p.k.ne0 + 15) & -16), 4 * ((p.v.ne0 + 15) & -16)
        room = (p.heads + 3) & -4
        cells = memory
        q = cells + 4 * (((p.k.ne1 + 15) & -16) + 16)
        acc = q + room * d_bytes
        weights = acc + room * dv_bytes
        sums = weights + room * 4 * GROUP
        bias = sums + room * 64
        folds = bias + 4 * GROUP
        rows = folds + 1024
        tops = rows + GROUP * max(d_bytes, dv_bytes)

        at = p.q.ptr + query * p.q.nb1 + sequence * p.q.nb3
        for h in range(n):
            row = q + h * d_bytes
            store_f32x16(row + d_bytes - 64, zero_f32x16())
            read_f32(at + (first + h) * p.q.nb2, row, p.q.ne0)
            store_f32(tops + 4 * h, np.float32(_NEVER))
        fill(acc, n * dv_bytes, 0.0)
        fill(sums, n * 64, 0.0)

        k = p.k.ptr + head_kv * p.k.nb2 + sequence * p.k.nb3
        v = p.v.ptr + head_kv * p.v.nb2 + sequence * p.v.nb3
        for start in range(0, n_seen, GROUP):
            group = cells + 4 * start
            n_cells = min(GROUP, n_seen - start)
            read_rows(p.k_type, k, p.k.nb1, group, n_cells, rows, p.k.ne0)
            if mask != 0:
                for j in range(n_cells):
                    store_f32(bias + 4 * j, load_f16(mask + 2 * load_i32(group + 4 * j)))
            for h in range(0, n, n_heads):
                slopes = 0 if p.slopes == 0 else p.slopes + 4 * (first + h)
                part = q + h * d_bytes
                score(p, part, rows, bias, folds, weights + 4 * GROUP * h, slopes, n_cells)
            for h in range(n):
                w = weights + 4 * GROUP * h
                weigh(w, sums + 64 * h, tops + 4 * h, acc + h * dv_bytes, dv_bytes, n_cells)
            read_rows(p.v_type, v, p.v.nb1, group, n_cells, rows, p.v.ne0)
            for h in range(0, n, n_heads):
                add_values(weights + 4 * GROUP * h, rows, acc + h * dv_bytes, dv_bytes, n_cells)

        y = p.y.ptr + query * p.y.nb2 + sequence * p.y.nb3
        for h in range(n):
            total = sum_lanes(load_f32x16(sums + 64 * h))
            factor = np.float32(1)
            if p.sinks.ptr != 0:
                sink = load_f32(p.sinks.ptr + 4 * (first + h))
                top = load_f32(tops + 4 * h)
                largest = maximum(top, sink)
                factor = exp(top - largest)
                total = total * factor + exp(sink - largest)
            factor = np.float32(0) if total == np.float32(0) else factor / total
            finish(acc + h * dv_bytes, y + (first + h) * p.y.nb1, p.v.ne0, factor)

    @kernel(
        *_SERVED[0],
        args=ARGS,
        requires=lambda node: fits(node.src[0].ne[2] // node.src[1].ne[2]),
        needs=needs,
        scratch_bytes=_scratch_bytes,
        bind=_bind,
        name=name,
        also=_SERVED[1:],
    )
    def flash_attn_ext(p: Record, ith: Int, nth: Int) -> None:
        """Tasks are dealt to the threads in turn, because causal masks make them grow in order."""
        shared = quotient(p.q.ne2, p.k.ne2)
        parts = quotient(shared + p.heads - 1, p.heads)
        n_query, n_blocks = p.q.ne1, p.k.ne2 * parts
        memory = p.scratch + ith * p.thread_bytes
        listed, n_seen = -1, 0
        for task in range(ith, n_query * n_blocks * p.q.ne3, nth):
            if p.query_major != 0:
                outer = quotient(task, n_blocks)
                block = task - outer * n_blocks
                sequence = quotient(outer, n_query)
                query = outer - sequence * n_query
            else:
                outer = quotient(task, n_query)
                query = task - outer * n_query
                sequence = quotient(outer, n_blocks)
                block = outer - sequence * n_blocks
            head_kv = quotient(block, parts)
            start = (block - head_kv * parts) * p.heads
            first, n = head_kv * shared + start, min(p.heads, shared - start)
            mask = mask_row(p.mask, query, first, sequence)
            if mask != listed:
                listed = mask
                n_seen = list_cells(mask, p.k.ne1, memory)
            attend(p, memory, mask, n_seen, (query, sequence, first, n))


_attention("flash_attn_ext_1", 1, 16, "avx512", lambda shared: shared == 1)
_attention("flash_attn_ext_2", 2, 16, "avx512", lambda shared: shared == 2)
_attention("flash_attn_ext_4", 4, 16, "avx512", lambda shared: shared > 2)
_attention("flash_attn_ext", 1, 4, "generic", lambda shared: True)
