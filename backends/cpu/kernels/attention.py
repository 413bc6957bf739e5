"""Attention over a cache: softmax(scale * q.k + mask) v, for each query and head.

The visible cells of a query are listed first, in cell order. The list is cut into chunks of 256
cells, and a chunk into groups of 64. For each group and each head of K and V, with all the heads of
q that share it:

    scores    q.k for 16 cells at a time                                attention_scores.py
    softmax   weights, with one running maximum per head                attention_softmax.py
    values    weighted sums of V, in the order of the list              attention_values.py

A chunk is summed by itself, then the chunks are merged in order. Masked cells are not read,
wherever they lie, and a cell's group depends on its rank among the visible ones only. So the result
has the same bits however masked cells lie between them, for whatever n_kv, number of queries,
streams and threads.

Tasks are described in attention_tasks.py, the memory that they work in in attention_memory.py, and
the types of K and V in attention_readers.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ggmlpy.backends.cpu.kernel import Inline, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.attention_cells import (
    Ahead,
    Cells,
    Group,
    Heads,
    list_cells,
    list_rows,
)
from ggmlpy.backends.cpu.kernels.attention_memory import (
    GROUP,
    SUBGROUP,
    Scratch,
    State,
    padded_bytes,
    scratch_at,
    state_at,
    state_bytes,
)
from ggmlpy.backends.cpu.kernels.attention_readers import READERS, Variant
from ggmlpy.backends.cpu.kernels.attention_scores import load_queries, scores_stage
from ggmlpy.backends.cpu.kernels.attention_softmax import clear, merge, store_results, update
from ggmlpy.backends.cpu.kernels.attention_tasks import (
    ARGS,
    CHUNK,
    Task,
    bind,
    cut_of,
    scratch_bytes,
    task_at,
)
from ggmlpy.backends.cpu.kernels.attention_values import values_stage
from ggmlpy.backends.cpu.kernels.masks import mask_row
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.atomic import atomic_add_i64, atomic_store_i64
from ggmlpy.backends.cpu.simd.memory import load_f16, load_i32, store_f32

Served = dict[tuple[str, tuple[str, ...]], None]  # a set with an order


def _served(pairs: Sequence[tuple[str, str]]) -> Served:
    """Which operands there may be, with caches of these types."""
    return dict.fromkeys(
        ("flash_attn_ext", ("f32", *pair, *mask, *sinks))
        for pair in pairs
        for mask in (("f16",), ())
        for sinks in ((), ("f32",))
    )


def _attend(variant: Variant) -> Inline:
    """The function `attend`: the three stages, for one chunk of a task."""
    score, add = scores_stage(variant), values_stage(variant)
    converts = variant.reader.converts

    @inline
    def attend(
        p: Record,
        scratch: Scratch,
        mask: Int,
        visible: Cells,
        state: State,
        head_rows: Int,
        task: Task,
    ) -> None:
        """Listed cells into a cleared state, group by group: the rows of 16 cells for all heads of
        K before the next, as they lie in memory."""
        n_shared = quotient(p.q.ne2, p.k.ne2)
        dv_bytes = padded_bytes(p.v.ne0)
        clear(state, 0, task.n_kv * head_rows, dv_bytes)
        k, v = p.k.ptr + task.sequence * p.k.nb3, p.v.ptr + task.sequence * p.v.nb3
        v_step = GROUP if task.n_kv == 1 and not converts else SUBGROUP
        for done in range(0, visible.n, GROUP):
            cells, n_cells = visible.first + 4 * done, min(GROUP, visible.n - done)
            list_rows(cells, n_cells, p.k.nb1, scratch.k_rows)
            list_rows(cells, n_cells, p.v.nb1, scratch.v_rows)
            if mask != 0:
                for j in range(n_cells):
                    store_f32(scratch.bias + 4 * j, load_f16(mask + 2 * load_i32(cells + 4 * j)))
            for first in range(0, n_cells, SUBGROUP):
                n_next = max(0, min(SUBGROUP, visible.n_left - done - first - SUBGROUP))
                for i in range(task.n_kv):
                    at = k + (task.first_kv + i) * p.k.nb2
                    ahead = Ahead(at, p.k.nb1, cells + 4 * (first + SUBGROUP), n_next)
                    first_head = (task.first_kv + i) * n_shared + task.first_head
                    heads = Heads(i * head_rows, first_head, task.n_heads)
                    score(p, at, scratch, heads, Group(first, n_cells), ahead)
            for i in range(task.n_kv):
                for h in range(i * head_rows, i * head_rows + task.n_heads):
                    update(scratch.weights + 4 * GROUP * h, state, h, dv_bytes, n_cells)
            for first in range(0, n_cells, v_step):
                n_next = max(0, min(v_step, visible.n_left - done - first - v_step))
                for i in range(task.n_kv):
                    at = v + (task.first_kv + i) * p.v.nb2
                    ahead = Ahead(at, p.v.nb1, cells + 4 * (first + v_step), n_next)
                    first_head = (task.first_kv + i) * n_shared + task.first_head
                    heads = Heads(i * head_rows, first_head, task.n_heads)
                    n_here = min(v_step, n_cells - first)
                    add(p, at, scratch, state, heads, Group(first, n_cells), n_here, ahead)

    return attend


def _flash_attn_ext(variant: Variant) -> None:
    """Declares the kernel of a variant."""
    served = [*_served(variant.reader.pairs)]
    n_heads = variant.n_heads
    attend = _attend(variant)

    @kernel(
        *served[0],
        args=ARGS,
        requires=variant.takes,
        needs=variant.needs,
        scratch_bytes=scratch_bytes,
        bind=bind,
        name=f"flash_attn_ext_{variant.name}",
        also=served[1:],
    )
    def flash_attn_ext(p: Record, ith: Int, nth: Int) -> None:
        """Tasks are dealt to the threads one by one, because with causal masks later ones take
        longer. Where several share the chunks of a query, the one that finishes last merges."""
        cut = cut_of(p)
        n_parts = np.int64(p.n_parts)
        cells = p.scratch + ith * p.thread_bytes
        head_rows = (p.heads + n_heads - 1) & -n_heads
        scratch = scratch_at(p, ith, head_rows)
        n_bytes = state_bytes(p, head_rows)
        partials = p.scratch + nth * p.thread_bytes  # states of chunks that are shared out
        outer_bytes = quotient(p.k.ne1 + CHUNK - 1, CHUNK) * n_bytes
        listed, n_visible = -1, 0
        for i in range(ith, p.q.ne1 * cut.n_blocks * p.q.ne3 * n_parts, nth):
            outer = quotient(i, n_parts)
            part = i - outer * n_parts
            task = task_at(p, cut, outer)
            first_head = task.first_kv * cut.n_shared + task.first_head
            mask = mask_row(p.mask, task.query, first_head, task.sequence)
            if mask != listed:
                listed = mask
                n_visible = list_cells(mask, p.k.ne1, cells)
            load_queries(p, scratch.q, head_rows, task)
            n_chunks = max(1, quotient(n_visible + CHUNK - 1, CHUNK))
            base = scratch.states if n_parts == 1 else partials + outer * outer_bytes
            total = state_at(p, base, head_rows)
            n_rows, dv_bytes = task.n_kv * head_rows, padded_bytes(p.v.ne0)
            end_chunk = quotient(n_chunks * (part + 1), n_parts)
            for chunk in range(quotient(n_chunks * part, n_parts), end_chunk):
                # One part: the first chunk's state becomes the total, others are added at once.
                i_state = chunk if n_parts > 1 else min(chunk, 1)
                state = state_at(p, base + i_state * n_bytes, head_rows)
                n_left = n_visible - chunk * CHUNK
                visible = Cells(cells + 4 * CHUNK * chunk, min(CHUNK, n_left), n_left)
                attend(p, scratch, mask, visible, state, head_rows, task)
                if n_parts == 1 and chunk > 0:
                    merge(total, state, 0, n_rows, dv_bytes)
            if n_parts == 1:
                store_results(p, total, head_rows, task)
            elif atomic_add_i64(p.finished + 8 * outer, 1) == n_parts - 1:
                atomic_store_i64(p.finished + 8 * outer, 0)
                for chunk in range(1, n_chunks):
                    state = state_at(p, base + chunk * n_bytes, head_rows)
                    merge(total, state, 0, n_rows, dv_bytes)
                store_results(p, total, head_rows, task)


for _reader in READERS:
    _flash_attn_ext(Variant("avx512", 1, 16, lambda n_shared: n_shared == 1, _reader))
    _flash_attn_ext(Variant("avx512", 2, 16, lambda n_shared: n_shared == 2, _reader))
    _flash_attn_ext(Variant("avx512", 4, 16, lambda n_shared: n_shared > 2, _reader))
    _flash_attn_ext(Variant("generic", 1, 4, lambda n_shared: True, _reader))
