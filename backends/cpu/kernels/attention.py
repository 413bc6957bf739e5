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
from ggmlpy.backends.cpu.kernels.attention_blocks import (
    FOLD_BYTES,
    GROUP,
    Blocks,
    ask_for,
    blocks,
    fill,
    finish,
    list_cells,
    weigh,
)
from ggmlpy.backends.cpu.kernels.dequantize import CACHE_TYPES, read_any, read_f32, read_float
from ggmlpy.backends.cpu.kernels.masks import bind_slopes, mask_row
from ggmlpy.backends.cpu.simd.arith import (
    fma,
    iota_i32x16,
    less,
    maximum,
    quotient,
    select,
    splat_i32x16,
    zero_f32x16,
)
from ggmlpy.backends.cpu.simd.math import exp, tanh
from ggmlpy.backends.cpu.simd.memory import (
    load_f16,
    load_f32,
    load_f32x16,
    load_i32,
    store_f32,
    store_f32x16,
)
from ggmlpy.backends.cpu.simd.reduce import fold16, sum_lanes

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
def padded_bytes(n: Int) -> Int:
    """Bytes of a row of n f32 in scratch memory."""
    return 4 * ((n + 15) & -16)


@inline
def layout(p: Record, thread: Int, room: Int) -> Any:
    """Addresses in a thread's scratch memory, with `room` heads of q for each head of K."""
    d_bytes, dv_bytes = padded_bytes(p.k.ne0), padded_bytes(p.v.ne0)
    q = p.scratch + thread * p.thread_bytes + padded_bytes(p.k.ne1)
    acc = q + p.n_kv_heads * room * d_bytes
    sums = acc + p.n_kv_heads * room * dv_bytes
    weights = sums + p.n_kv_heads * room * 64
    bias = weights + room * 4 * GROUP
    folds = bias + 4 * GROUP
    rows = folds + 4 * FOLD_BYTES
    tops = rows + GROUP * max(d_bytes, dv_bytes)
    return q, acc, sums, weights, bias, folds, rows, tops


@inline
def begin(p: Record, memory: Any, room: Int, task: Any) -> None:
    """The task's heads of q into scratch memory, with nothing summed up yet."""
    q, acc, sums, _, _, _, _, tops = memory
    query, sequence, first_kv, n_kv, start, n = task
    shared = quotient(p.q.ne2, p.k.ne2)
    d_bytes = padded_bytes(p.k.ne0)
    for i in range(n_kv):
        at = p.q.ptr + query * p.q.nb1 + sequence * p.q.nb3
        at += ((first_kv + i) * shared + start) * p.q.nb2
        for h in range(n):
            row = q + (i * room + h) * d_bytes
            store_f32x16(row + d_bytes - 64, zero_f32x16())
            read_f32(at + h * p.q.nb2, row, p.q.ne0)
            store_f32(tops + 4 * (i * room + h), np.float32(_NEVER))
    fill(acc, n_kv * room * padded_bytes(p.v.ne0), 0.0)
    fill(sums, n_kv * room * 64, 0.0)


@inline
def end(p: Record, memory: Any, room: Int, task: Any) -> None:
    """The weighted sums over the sums of weights, sinks counted in, as rows of the result."""
    _, acc, sums, _, _, _, _, tops = memory
    query, sequence, first_kv, n_kv, start, n = task
    shared = quotient(p.q.ne2, p.k.ne2)
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
            finish(acc + at * padded_bytes(p.v.ne0), y, p.v.ne0, factor)


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


def _attention(block: Blocks, needs: str, fits: Callable[[int], bool], read_row: Inline) -> None:
    """The kernel that works by `block`, where `fits(number of heads that share one of K)`."""
    quantized = read_row is read_any
    name = f"flash_attn_ext_{needs}_{block.n_heads}" + ("_quantized" if quantized else "")
    floats = _served(types.FLOATS)
    served = [s for s in _served(CACHE_TYPES) if s not in floats] if quantized else [*floats]
    n_heads, n_keys = block.n_heads, block.n_keys
    dots, add_values = block.dots, block.add_values

    @inline
    def read_rows(
        type: Int, base: Int, stride: Int, cells: Int, n_cells: Int, rows: Int, n: Int
    ) -> None:
        """The listed rows of n elements as f32, each padded with zeros to whole vectors."""
        row_bytes = padded_bytes(n)
        for j in range(n_cells):
            row = rows + j * row_bytes
            if n & 15 != 0:
                store_f32x16(row + row_bytes - 64, zero_f32x16())
            read_row(type, base + load_i32(cells + 4 * j) * stride, row, n)

    @inline
    def score(p: Record, q: Int, places: Any, slopes: Int, n_cells: Int, next: Any) -> None:
        """Scores of a group's cells for a block of heads; -inf up to a multiple of 16."""
        rows, bias, folds, weights = places
        row_bytes = padded_bytes(p.k.ne0)
        for first in range(0, n_cells, 16):
            for key in range(first, min(n_cells, first + 16), n_keys):
                ask_for(next, key, n_keys)
                dots(q, rows + key * row_bytes, folds + 16 * (key - first), row_bytes)
            there = less(iota_i32x16(), splat_i32x16(min(16, n_cells - first)))
            for h in range(n_heads):
                at = folds + FOLD_BYTES * h
                a, b = load_f32x16(at), load_f32x16(at + 64)
                s = fold16(a, b, load_f32x16(at + 128), load_f32x16(at + 192)) * p.scale
                if p.logit_softcap != 0:
                    s = tanh(s / p.logit_softcap) * p.logit_softcap
                if p.mask.ptr != 0:
                    slope = np.float32(1) if slopes == 0 else load_f32(slopes + 4 * h)
                    s = fma(load_f32x16(bias + 4 * first), slope, s)
                store_f32x16(weights + 4 * (h * GROUP + first), select(there, s, _NEVER))

    @inline
    def score_heads(p: Record, k: Int, memory: Any, heads: Any, group: Any, next: Any) -> None:
        """Weights of a group's cells for the heads that share the head of K at `k`."""
        q, acc, sums, weights, bias, folds, rows, tops = memory
        first_row, first_head, n = heads
        cells, n_cells = group
        d_bytes, dv_bytes = padded_bytes(p.k.ne0), padded_bytes(p.v.ne0)
        read_rows(p.k_type, k, p.k.nb1, cells, n_cells, rows, p.k.ne0)
        for h in range(0, n, n_heads):
            slopes = 0 if p.slopes == 0 else p.slopes + 4 * (first_head + h)
            places = rows, bias, folds, weights + 4 * GROUP * h
            score(p, q + (first_row + h) * d_bytes, places, slopes, n_cells, next)
            next = k, p.k.nb1, 0, cells, 0  # has been asked for
        for h in range(n):
            w, at = weights + 4 * GROUP * h, first_row + h
            weigh(w, sums + 64 * at, tops + 4 * at, acc + at * dv_bytes, dv_bytes, n_cells)

    @inline
    def add_heads(p: Record, v: Int, memory: Any, heads: Any, group: Any, next: Any) -> None:
        """The group's rows of V into the sums of the heads that share the head of V at `v`."""
        _, acc, _, weights, _, _, rows, _ = memory
        first_row, _, n = heads
        cells, n_cells = group
        dv_bytes = padded_bytes(p.v.ne0)
        read_rows(p.v_type, v, p.v.nb1, cells, n_cells, rows, p.v.ne0)
        for j in range(0, n_cells, 16):
            ask_for(next, j, 16)
            for h in range(0, n, n_heads):
                w, at = weights + 4 * (GROUP * h + j), acc + (first_row + h) * dv_bytes
                add_values(w, rows + j * dv_bytes, at, dv_bytes, min(16, n_cells - j))

    @inline
    def attend(p: Record, memory: Any, mask: Int, seen: Any, room: Int, task: Any) -> None:
        """A task's groups of cells one after another, each for one head of K after another."""
        bias = memory[4]
        listed, n_seen = seen
        _, sequence, first_kv, n_kv, start, n = task
        shared = quotient(p.q.ne2, p.k.ne2)
        k, v = p.k.ptr + sequence * p.k.nb3, p.v.ptr + sequence * p.v.nb3
        for done in range(0, n_seen, GROUP):
            cells, n_cells = listed + 4 * done, min(GROUP, n_seen - done)
            if mask != 0:
                for j in range(n_cells):
                    store_f32(bias + 4 * j, load_f16(mask + 2 * load_i32(cells + 4 * j)))
            for i in range(n_kv):
                head_kv = first_kv + i
                # The next rows: of the next head, or of the first head in the next group.
                next_head, ahead, n_ahead = head_kv + 1, cells, n_cells
                if i + 1 == n_kv:
                    next_head, ahead = first_kv, cells + 4 * GROUP
                    n_ahead = max(0, min(GROUP, n_seen - done - GROUP))
                k_bytes, v_bytes = np.int64(p.k_row_bytes), np.int64(p.v_row_bytes)
                next_k = k + next_head * p.k.nb2, p.k.nb1, k_bytes, ahead, n_ahead
                next_v = v + next_head * p.v.nb2, p.v.nb1, v_bytes, ahead, n_ahead
                heads = i * room, head_kv * shared + start, n
                group = cells, n_cells
                score_heads(p, k + head_kv * p.k.nb2, memory, heads, group, next_k)
                add_heads(p, v + head_kv * p.v.nb2, memory, heads, group, next_v)

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
        cells = p.scratch + ith * p.thread_bytes
        room = (p.heads + n_heads - 1) & -n_heads
        memory = layout(p, ith, room)
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
                n_seen = list_cells(mask, p.k.ne1, cells)
            each = query, sequence, first_kv, n_kv, start, min(p.heads, shared - start)
            begin(p, memory, room, each)
            attend(p, memory, mask, (cells, n_seen), room, each)
            end(p, memory, room, each)


for _read_row in (read_float, read_any):
    _attention(blocks(1, 16), "avx512", lambda shared: shared == 1, _read_row)
    _attention(blocks(2, 16), "avx512", lambda shared: shared == 2, _read_row)
    _attention(blocks(4, 16), "avx512", lambda shared: shared > 2, _read_row)
    _attention(blocks(1, 4), "generic", lambda shared: True, _read_row)
