"""Attention over a cache: softmax(scale * q.k + mask) v, for each query and head.

What a query sees is listed first, in cell order. The list is cut into chunks of 256 cells, and a
chunk into groups of 64. For each group and each head of K and V, with all the heads of q that
share it:

    q.k for 16 cells at a time     weights, with one running maximum per head
    weighted sums of V, in the order of the list

A chunk is summed up by itself, then the chunks are merged in order. Masked cells are not read,
wherever they lie, and a cell's group depends on its rank among the seen ones only. So the result
has the same bits however masked cells lie between them, for whatever n_kv, number of queries,
streams and threads.

A task is one query with some heads. Where queries are few, it takes all the heads of K, because a
token's heads lie side by side in the cache, and if there are fewer tasks than threads want, chunks
are shared out too: who ends last merges. Where queries are many, a task takes one head of K, whose
rows then stay in the core's cache. K and V of one type (f16, bf16, f32) are read by the products
themselves; of any other pair of types, 16 rows at a time become f32 in scratch memory first.

Scratch memory of a thread:

    list     i32 [n_kv]             the cells that the query sees
    places   i64 [2, 64], [2, 16]   where the group's rows of K and V start; where rows of f32 do
    bias     f32 [64]               the mask's values for the group
    folds    f32 [4, 4, 16]         products of a block of heads with 16 cells, half summed up
    weights  f32 [heads, 64]        scores, then exp(score - maximum)
    rows     f32 [16, max(D, Dv)]   rows of K, then of V, as f32
    q        f32 [heads, D]         D, Dv and heads rounded up to whole vectors and blocks
    states   2 x [heads]            summed up so far, and in the chunk at hand
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    clear,
    finish,
    list_cells,
    list_rows,
    merge,
    weigh,
)
from ggmlpy.backends.cpu.kernels.dequantize import CACHE_TYPES, read_any, read_f32
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
from ggmlpy.backends.cpu.simd.atomic import atomic_add_i64, atomic_store_i64
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.math import exp, tanh
from ggmlpy.backends.cpu.simd.memory import (
    load_bf16x16,
    load_f16,
    load_f16x16,
    load_f32,
    load_f32x16,
    load_i32,
    load_i64,
    store_f32,
    store_f32x16,
    store_i64,
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
        ("ended", "i8"),  # i64 for each query with its heads: parts that are through
        ("thread_bytes", "i4"),
        ("k_type", "i2"),
        ("v_type", "i2"),
        ("n_kv_heads", "i2"),  # heads of K in a task
        ("heads", "i2"),  # heads of q in a task for each of them: all that share it, or one
        ("n_parts", "i2"),  # tasks that share the chunks of a query with its heads
        ("scale", "f4"),
        ("logit_softcap", "f4"),
    ],
    align=True,
)

CHUNK = 256
_SUB = 16  # cells whose rows are f32 at a time
_MANY_QUERIES = 128  # from here on rows of K and V stay in cache from one query to the next
_TASKS_A_THREAD = 4  # at least, so that threads end at about the same time
_NEVER = float("-inf")
_STATE_BYTES_A_HEAD = 64 + 4  # besides acc: sums, top


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


@dataclass(frozen=True, slots=True)
class Shape:
    """How a node's work is cut into tasks. No result depends on it."""

    n_kv_heads: int  # in a task
    heads: int
    n_parts: int
    n_outer: int  # queries with their heads
    room: int  # rows of q and state for each head of K, up to whole blocks
    d: int
    dv: int

    @staticmethod
    def of(node: Any, n_threads: int) -> Shape:
        q, k, v = node.src[:3]
        apart = node.op.has_mask and node.src[3].ne[2] > 1  # heads with masks of their own
        n_kv_heads = 1 if apart or q.ne[1] >= _MANY_QUERIES else k.ne[2]
        shared = q.ne[2] // k.ne[2]
        heads = 1 if apart else shared
        n_outer = q.ne[1] * q.ne[3] * -(-k.ne[2] // n_kv_heads) * (shared // heads)
        wanted = _TASKS_A_THREAD * n_threads if n_threads > 1 else 1
        n_parts = min(-(-wanted // n_outer), -(-k.ne[1] // CHUNK))
        room, d, dv = _up(heads, 4), _up(q.ne[0], 16), _up(v.ne[0], 16)
        return Shape(n_kv_heads, heads, n_parts, n_outer, room, d, dv)

    @property
    def n_rows(self) -> int:
        return self.n_kv_heads * self.room

    @property
    def state_bytes(self) -> int:
        return _up(self.n_rows * (4 * self.dv + _STATE_BYTES_A_HEAD), 64)

    def thread_bytes(self, n_kv: int) -> int:
        n_bytes = 4 * _up(n_kv, 16) + 8 * (2 * GROUP + 2 * _SUB) + 4 * GROUP + 4 * FOLD_BYTES
        n_bytes += 4 * self.n_rows * GROUP + 4 * _SUB * max(self.d, self.dv)
        return _up(n_bytes + 4 * self.n_rows * self.d + 2 * self.state_bytes, 128)

    def partial_bytes(self, n_kv: int) -> int:
        """Every chunk's state, of every query with its heads."""
        if self.n_parts == 1:
            return 0
        return self.n_outer * -(-n_kv // CHUNK) * self.state_bytes


def _scratch_bytes(node: Any, n_threads: int) -> int:
    shape, n_kv = Shape.of(node, n_threads), node.src[1].ne[1]
    return n_threads * shape.thread_bytes(n_kv) + shape.partial_bytes(n_kv)


def _bind(node: Any, builder: Any) -> dict[str, float]:
    q, k, v = node.src[:3]
    shape = Shape.of(node, builder.n_threads)
    fields: dict[str, float] = {
        "slopes": bind_slopes(builder, q.ne[2], node.op.max_bias),
        "thread_bytes": shape.thread_bytes(k.ne[1]),
        "ended": 0,
        "k_type": types.type_field(k),
        "v_type": types.type_field(v),
        "n_kv_heads": shape.n_kv_heads,
        "heads": shape.heads,
        "n_parts": shape.n_parts,
    }
    if shape.n_parts > 1:
        fields["ended"] = builder.counters(shape.n_outer)
    return fields


@inline
def padded_bytes(n: Int) -> Int:
    """Bytes of a row of n f32 in scratch memory."""
    return 4 * ((n + 15) & -16)


@inline
def part_bytes(rows: Record) -> Int:
    """Bytes of a row that belong to one head, as far as they are to be asked for."""
    return min(rows.nb2, 4 * rows.ne0)


@inline
def state_at(p: Record, address: Int, room: Int) -> Any:
    """acc, sums, tops of the state at an address."""
    n_rows = p.n_kv_heads * room
    sums = address + n_rows * padded_bytes(p.v.ne0)
    return address, sums, sums + 64 * n_rows


@inline
def state_bytes(p: Record, room: Int) -> Int:
    n_bytes = p.n_kv_heads * room * (padded_bytes(p.v.ne0) + _STATE_BYTES_A_HEAD)
    return (n_bytes + 63) & -64


@inline
def layout(p: Record, thread: Int, room: Int) -> Any:
    """Addresses in a thread's scratch memory, with `room` heads of q for each head of K."""
    d_bytes, dv_bytes = padded_bytes(p.k.ne0), padded_bytes(p.v.ne0)
    k_at = p.scratch + thread * p.thread_bytes + padded_bytes(p.k.ne1)
    v_at = k_at + 8 * GROUP
    d_at = v_at + 8 * GROUP
    dv_at = d_at + 8 * _SUB
    for j in range(_SUB):
        store_i64(d_at + 8 * j, j * d_bytes)
        store_i64(dv_at + 8 * j, j * dv_bytes)
    bias = dv_at + 8 * _SUB
    folds = bias + 4 * GROUP
    weights = folds + 4 * FOLD_BYTES
    rows = weights + p.n_kv_heads * room * 4 * GROUP
    q = rows + _SUB * max(d_bytes, dv_bytes)
    state = q + p.n_kv_heads * room * d_bytes
    return (k_at, v_at, d_at, dv_at), bias, folds, weights, rows, q, state


@inline
def begin(p: Record, q: Int, room: Int, task: Any) -> None:
    """The task's heads of q into scratch memory."""
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


@inline
def end(p: Record, state: Any, room: Int, task: Any) -> None:
    """The weighted sums over the sums of weights, sinks counted in, as rows of the result."""
    acc, sums, tops = state
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


def _served(pairs: Sequence[tuple[str, str]]) -> Served:
    """What sources there may be, with caches of these types."""
    return dict.fromkeys(
        ("flash_attn_ext", ("f32", *pair, *mask, *sinks))
        for pair in pairs
        for mask in (("f16",), ())
        for sinks in ((), ("f32",))
    )


@dataclass(frozen=True, slots=True)
class Reader:
    """How rows of K and V are read: by `load`, 16 elements from `vector_bytes`, or, for any pair
    of types, as f32 that `read` has written."""

    name: str
    load: Intrinsic
    vector_bytes: int
    pairs: Sequence[tuple[str, str]]
    read: Inline | None = None

    def takes(self, node: Any) -> bool:
        whole = node.src[1].ne[0] % 16 == 0 and node.src[2].ne[0] % 16 == 0
        return self.read is not None or whole


_READERS = (
    Reader("f16", load_f16x16, 32, [("f16", "f16")]),
    Reader("bf16", load_bf16x16, 32, [("bf16", "bf16")]),
    Reader("f32", load_f32x16, 64, [("f32", "f32")]),
    Reader("any", load_f32x16, 64, [(k, v) for k in CACHE_TYPES for v in CACHE_TYPES], read_any),
)


def _attention(
    n_heads: int, n_accumulators: int, needs: str, fits: Callable[[int], bool], reader: Reader
) -> None:
    """The kernel that works by blocks of `n_heads`, where `fits(number that share one of K)`."""
    block: Blocks = blocks(n_heads, n_accumulators, reader.load, reader.vector_bytes)
    served = [*_served(reader.pairs)]
    n_keys = block.n_keys
    dots, add_values = block.dots, block.add_values
    converts, read_row = reader.read is not None, reader.read or read_any

    @inline
    def read_rows(type: Int, base: Int, places: Int, n_cells: Int, rows: Int, n: Int) -> None:
        """Rows of n elements as f32, each padded with zeros to whole vectors."""
        row_bytes = padded_bytes(n)
        for j in range(n_cells):
            row = rows + j * row_bytes
            if n & 15 != 0:
                store_f32x16(row + row_bytes - 64, zero_f32x16())
            read_row(type, base + load_i64(places + 8 * j), row, n)

    @inline
    def scores(p: Record, folds: Int, bias: Int, weights: Int, slopes: Int, n_cells: Int) -> None:
        """Scores of up to 16 cells for a block of heads from their folds; -inf up to 16."""
        there = less(iota_i32x16(), splat_i32x16(n_cells))
        for h in range(n_heads):
            at = folds + FOLD_BYTES * h
            a, b = load_f32x16(at), load_f32x16(at + 64)
            s = fold16(a, b, load_f32x16(at + 128), load_f32x16(at + 192)) * p.scale
            if p.logit_softcap != 0:
                s = tanh(s / p.logit_softcap) * p.logit_softcap
            if p.mask.ptr != 0:
                slope = np.float32(1) if slopes == 0 else load_f32(slopes + 4 * h)
                s = fma(load_f32x16(bias), slope, s)
            store_f32x16(weights + 4 * GROUP * h, select(there, s, _NEVER))

    @inline
    def score(p: Record, k: Int, memory: Any, heads: Any, group: Any, next: Any) -> None:
        """Scores of up to 16 cells of a group, from its cell `first` on, for the heads that share
        the head of K at `k`."""
        places, bias, folds, weights, rows, q, _ = memory
        first_row, first_head, n = heads
        first, n_cells = group
        n_here, d_bytes = min(_SUB, n_cells - first), padded_bytes(p.k.ne0)
        base, offsets = k, places[0] + 8 * first
        if converts:
            read_rows(p.k_type, k, offsets, n_here, rows, p.k.ne0)
            base, offsets = rows, places[2]
        for h in range(0, n, n_heads):
            for key in range(0, n_here, n_keys):
                if h == 0:
                    ask_for(next, key, n_keys, 0, part_bytes(p.k))
                heads_q = q + (first_row + h) * d_bytes
                dots(heads_q, d_bytes, base, offsets + 8 * key, folds + 16 * key)
            slopes = 0 if p.slopes == 0 else p.slopes + 4 * (first_head + h)
            at = weights + 4 * (GROUP * (first_row + h) + first)
            scores(p, folds, bias + 4 * first, at, slopes, n_here)

    @inline
    def add(
        p: Record, v: Int, memory: Any, state: Any, heads: Any, group: Any, n: Int, next: Any
    ) -> None:
        """`n` rows of V of a group, from its cell `first` on, into the sums of the heads that share
        the head of V at `v`."""
        places, _, _, weights, rows, _, _ = memory
        first_row, _, n_shared = heads
        first, _ = group
        dv_bytes = padded_bytes(p.v.ne0)
        base, offsets = v, places[1] + 8 * first
        if converts:
            ask_for(next, 0, _SUB, 0, part_bytes(p.v))
            read_rows(p.v_type, v, offsets, n, rows, p.v.ne0)
            base, offsets = rows, places[3]
        for h in range(0, n_shared, n_heads):
            # Asked for with the first heads' products, and by no one else.
            n_next = 0 if converts or h > 0 else next[3]
            ahead = next[0], next[1], next[2], n_next
            at = state[0] + (first_row + h) * dv_bytes
            w = weights + 4 * (GROUP * (first_row + h) + first)
            add_values(w, base, offsets, at, dv_bytes, n, ahead)

    @inline
    def attend(
        p: Record, memory: Any, mask: Int, seen: Any, state: Any, room: Int, task: Any
    ) -> None:
        """Listed cells into a cleared state, group by group: the rows of 16 cells for all heads of
        K before the next, as they lie in memory."""
        places, bias, weights = memory[0], memory[1], memory[3]
        listed, n_seen, n_left = seen
        _, sequence, first_kv, n_kv, start, n = task
        shared = quotient(p.q.ne2, p.k.ne2)
        dv_bytes = padded_bytes(p.v.ne0)
        clear(state, 0, n_kv * room, dv_bytes)
        k, v = p.k.ptr + sequence * p.k.nb3, p.v.ptr + sequence * p.v.nb3
        v_step = GROUP if n_kv == 1 and not converts else _SUB
        for done in range(0, n_seen, GROUP):
            cells, n_cells = listed + 4 * done, min(GROUP, n_seen - done)
            list_rows(cells, n_cells, p.k.nb1, places[0])
            list_rows(cells, n_cells, p.v.nb1, places[1])
            if mask != 0:
                for j in range(n_cells):
                    store_f32(bias + 4 * j, load_f16(mask + 2 * load_i32(cells + 4 * j)))
            for first in range(0, n_cells, _SUB):
                n_next = max(0, min(_SUB, n_left - done - first - _SUB))
                for i in range(n_kv):
                    at = k + (first_kv + i) * p.k.nb2
                    next = at, p.k.nb1, cells + 4 * (first + _SUB), n_next
                    heads = i * room, (first_kv + i) * shared + start, n
                    score(p, at, memory, heads, (first, n_cells), next)
            for i in range(n_kv):
                for h in range(i * room, i * room + n):
                    weigh(weights + 4 * GROUP * h, state, h, dv_bytes, n_cells)
            for first in range(0, n_cells, v_step):
                n_next = max(0, min(v_step, n_left - done - first - v_step))
                for i in range(n_kv):
                    at = v + (first_kv + i) * p.v.nb2
                    next = at, p.v.nb1, cells + 4 * (first + v_step), n_next
                    heads = i * room, (first_kv + i) * shared + start, n
                    group = first, n_cells
                    n_here = min(v_step, n_cells - first)
                    add(p, at, memory, state, heads, group, n_here, next)

    @kernel(
        *served[0],
        args=ARGS,
        requires=lambda node: fits(node.src[0].ne[2] // node.src[1].ne[2]) and reader.takes(node),
        needs=needs,
        scratch_bytes=_scratch_bytes,
        bind=_bind,
        name=f"flash_attn_ext_{needs}_{n_heads}_{reader.name}",
        also=served[1:],
    )
    def flash_attn_ext(p: Record, ith: Int, nth: Int) -> None:
        """Tasks are dealt to the threads in turn, because causal masks make them grow in order."""
        shared = quotient(p.q.ne2, p.k.ne2)
        splits = quotient(shared + p.heads - 1, p.heads)
        n_query, n_parts = p.q.ne1, np.int64(p.n_parts)
        n_blocks = quotient(p.k.ne2 + p.n_kv_heads - 1, p.n_kv_heads) * splits
        cells = p.scratch + ith * p.thread_bytes
        room = (p.heads + n_heads - 1) & -n_heads
        memory = layout(p, ith, room)
        n_bytes = state_bytes(p, room)
        partials = p.scratch + nth * p.thread_bytes  # states of chunks that are shared out
        outer_bytes = quotient(p.k.ne1 + CHUNK - 1, CHUNK) * n_bytes
        listed, n_seen = -1, 0
        for task in range(ith, n_query * n_blocks * p.q.ne3 * n_parts, nth):
            outer = quotient(task, n_parts)
            part = task - outer * n_parts
            if p.n_kv_heads > 1 or n_query < _MANY_QUERIES:
                left = quotient(outer, n_blocks)
                block = outer - left * n_blocks
                sequence = quotient(left, n_query)
                query = left - sequence * n_query
            else:
                left = quotient(outer, n_query)
                query = outer - left * n_query
                sequence = quotient(left, n_blocks)
                block = left - sequence * n_blocks
            which = quotient(block, splits)
            first_kv = which * p.n_kv_heads
            n_kv = min(p.n_kv_heads, p.k.ne2 - first_kv)
            start = (block - which * splits) * p.heads
            mask = mask_row(p.mask, query, first_kv * shared + start, sequence)
            if mask != listed:
                listed = mask
                n_seen = list_cells(mask, p.k.ne1, cells)
            each = query, sequence, first_kv, n_kv, start, min(p.heads, shared - start)
            begin(p, memory[5], room, each)
            n_chunks = max(1, quotient(n_seen + CHUNK - 1, CHUNK))
            base = memory[6] if n_parts == 1 else partials + outer * outer_bytes
            total = state_at(p, base, room)
            n_rows, dv_bytes = n_kv * room, padded_bytes(p.v.ne0)
            end_chunk = quotient(n_chunks * (part + 1), n_parts)
            for chunk in range(quotient(n_chunks * part, n_parts), end_chunk):
                # One part: the first chunk's state becomes the total, others are added at once.
                place = chunk if n_parts > 1 else min(chunk, 1)
                state = state_at(p, base + place * n_bytes, room)
                n_left = n_seen - chunk * CHUNK
                seen = cells + 4 * CHUNK * chunk, min(CHUNK, n_left), n_left
                attend(p, memory, mask, seen, state, room, each)
                if n_parts == 1 and chunk > 0:
                    merge(total, state, 0, n_rows, dv_bytes)
            if n_parts == 1:
                end(p, total, room, each)
            elif atomic_add_i64(p.ended + 8 * outer, 1) == n_parts - 1:
                atomic_store_i64(p.ended + 8 * outer, 0)
                for chunk in range(1, n_chunks):
                    state = state_at(p, base + chunk * n_bytes, room)
                    merge(total, state, 0, n_rows, dv_bytes)
                end(p, total, room, each)


for _reader in _READERS:
    _attention(1, 16, "avx512", lambda shared: shared == 1, _reader)
    _attention(2, 16, "avx512", lambda shared: shared == 2, _reader)
    _attention(4, 16, "avx512", lambda shared: shared > 2, _reader)
    _attention(1, 4, "generic", lambda shared: True, _reader)
