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
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import Inline, Int, Record, inline, kernel
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
from ggmlpy.backends.cpu.kernels.attention_tasks import (
    ARGS,
    CHUNK,
    MANY_QUERIES,
    SUB,
    bind,
    layout,
    padded_bytes,
    part_bytes,
    scratch_bytes,
    state_at,
    state_bytes,
)
from ggmlpy.backends.cpu.kernels.dequantize import CACHE_TYPES, read_any, read_f32
from ggmlpy.backends.cpu.kernels.masks import mask_row
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
)
from ggmlpy.backends.cpu.simd.reduce import fold16, sum_lanes

_NEVER = float("-inf")


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
                if largest == _NEVER:
                    largest = np.float32(0)  # else -inf - -inf is NaN
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
        n_here, d_bytes = min(SUB, n_cells - first), padded_bytes(p.k.ne0)
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
            ask_for(next, 0, SUB, 0, part_bytes(p.v))
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
        v_step = GROUP if n_kv == 1 and not converts else SUB
        for done in range(0, n_seen, GROUP):
            cells, n_cells = listed + 4 * done, min(GROUP, n_seen - done)
            list_rows(cells, n_cells, p.k.nb1, places[0])
            list_rows(cells, n_cells, p.v.nb1, places[1])
            if mask != 0:
                for j in range(n_cells):
                    store_f32(bias + 4 * j, load_f16(mask + 2 * load_i32(cells + 4 * j)))
            for first in range(0, n_cells, SUB):
                n_next = max(0, min(SUB, n_left - done - first - SUB))
                for i in range(n_kv):
                    at = k + (first_kv + i) * p.k.nb2
                    next = at, p.k.nb1, cells + 4 * (first + SUB), n_next
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
        scratch_bytes=scratch_bytes,
        bind=bind,
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
            if p.n_kv_heads > 1 or n_query < MANY_QUERIES:
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
