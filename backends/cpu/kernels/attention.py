"""Attention over a cache: softmax(scale * q.k + mask) v, for each query and head.

The visible cells of a query come as a list, or are listed first, in cell order. The list is cut
into chunks of 256 cells, and a chunk into groups of 64. For each group and each head of K and V,
with all the heads of q that share it:

    scores    q.k for 16 cells at a time                                attention_scores.py
    softmax   weights, with one running maximum per head                attention_softmax.py
    values    weighted sums of V, in the order of the list              attention_values.py

A chunk is summed by itself, then the chunks are merged in order. Masked cells are not read,
wherever they lie, and a cell's group depends on its rank among the visible ones only. So the result
has the same bits however masked cells lie between them, listed or not, for whatever n_kv, number of
queries, streams and threads.

Neighbouring queries that see the same cells, as those of a prompt do, are attended to together,
with the same bits (attention_blocks.py).

Tasks are described in attention_tasks.py, the memory that they work in in attention_memory.py, and
the types of K and V in attention_readers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ggmlpy.backends.cpu.kernel import Inline, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.attention_blocks import blocks_stage, run_at
from ggmlpy.backends.cpu.kernels.attention_cells import (
    Ahead,
    Cells,
    Group,
    Heads,
    Visible,
    all_exist,
    list_rows,
    load_bias,
    no_cells,
    visible_to,
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
from ggmlpy.backends.cpu.kernels.attention_readers import READERS, TileShape, Variant
from ggmlpy.backends.cpu.kernels.attention_scores import load_queries, scores_stage
from ggmlpy.backends.cpu.kernels.attention_softmax import clear, merge, store_results, update
from ggmlpy.backends.cpu.kernels.attention_tasks import (
    ARGS,
    CHUNK,
    Cut,
    Task,
    bind,
    chunks_of,
    cut_of,
    parts_of,
    query_of,
    scratch_bytes,
    task_at,
    work_of,
)
from ggmlpy.backends.cpu.kernels.attention_values import values_stage
from ggmlpy.backends.cpu.kernels.masks import mask_row
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.atomic import atomic_add_i64, atomic_store_i64

Served = dict[tuple[str, tuple[str, ...]], None]  # a set with an order


def _served(pairs: Sequence[tuple[str, str]]) -> Served:
    """Which operands there may be, with caches of these types."""
    return dict.fromkeys(
        ("flash_attn_ext", ("f32", *pair, *mask, *lists, *sinks))
        for pair in pairs
        for mask in (("f16",), ())
        for lists in ((), ("i32", "i32"))
        for sinks in ((), ("f32",))
    )


class Share(NamedTuple):
    """A task's share of the chunks of a query."""

    part: Int
    n_parts: Int
    states: Int  # the address of the states of all chunks
    finished: Int  # and of the number of parts that are done


@inline
def chunk_at(visible: Visible, chunk: Int) -> Cells:
    """The cells of a chunk."""
    at, n_left = 4 * CHUNK * chunk, visible.n - chunk * CHUNK
    return Cells(visible.cells + at, visible.places + at, min(CHUNK, n_left), n_left)


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
        cut: Cut,
        task: Task,
    ) -> None:
        """Listed cells into a cleared state, group by group: the rows of 16 cells for all heads of
        K before the next, as they lie in memory."""
        head_rows, dv_bytes = cut.head_rows, padded_bytes(p.v.ne0)
        clear(state, 0, task.n_kv * head_rows, dv_bytes)
        stream = task.sequence if p.cells.ptr == 0 else 0  # listed cells are those of all streams
        k, v = p.k.ptr + stream * p.k.nb3, p.v.ptr + stream * p.v.nb3
        v_step = GROUP if task.n_kv == 1 and not converts else SUBGROUP
        for done in range(0, visible.n, GROUP):
            cells, n_cells = visible.first + 4 * done, min(GROUP, visible.n - done)
            if p.cells.ptr != 0 and all_exist(p, cells, n_cells) == 0:
                continue
            list_rows(cells, n_cells, p.k.nb1, scratch.k_rows)
            list_rows(cells, n_cells, p.v.nb1, scratch.v_rows)
            if mask != 0:
                load_bias(mask, visible.places + 4 * done, n_cells, scratch.bias)
            for first in range(0, n_cells, SUBGROUP):
                n_next = max(0, min(SUBGROUP, visible.n_left - done - first - SUBGROUP))
                for i in range(task.n_kv):
                    at = k + (task.first_kv + i) * p.k.nb2
                    ahead = Ahead(
                        k + task.first_kv * p.k.nb2, p.k.nb1, p.k.nb2, task.n_kv,
                        cells + 4 * (first + SUBGROUP), n_next, i * SUBGROUP,
                    )  # fmt: skip
                    first_head = (task.first_kv + i) * cut.n_shared + task.first_head
                    heads = Heads(i * head_rows, first_head, task.n_heads)
                    score(p, at, scratch, heads, Group(first, n_cells), ahead)
            for i in range(task.n_kv):
                for h in range(i * head_rows, i * head_rows + task.n_heads):
                    update(scratch.weights + 4 * GROUP * h, state, h, dv_bytes, n_cells)
            for first in range(0, n_cells, v_step):
                n_next = max(0, min(v_step, visible.n_left - done - first - v_step))
                for i in range(task.n_kv):
                    at = v + (task.first_kv + i) * p.v.nb2
                    ahead = Ahead(
                        v + task.first_kv * p.v.nb2, p.v.nb1, p.v.nb2, task.n_kv,
                        cells + 4 * (first + v_step), n_next, i * v_step,
                    )  # fmt: skip
                    first_head = (task.first_kv + i) * cut.n_shared + task.first_head
                    heads = Heads(i * head_rows, first_head, task.n_heads)
                    n_here = min(v_step, n_cells - first)
                    add(p, at, scratch, state, heads, Group(first, n_cells), n_here, ahead)

    return attend


def _attend_query(variant: Variant) -> Inline:
    """The function `attend_query`, which does a task of one query, or a share of its chunks."""
    attend = _attend(variant)

    @inline
    def attend_query(
        p: Record,
        scratch: Scratch,
        mask: Int,
        visible: Visible,
        share: Share,
        cut: Cut,
        task: Task,
    ) -> None:
        n_bytes, dv_bytes = state_bytes(p, cut.n_rows), padded_bytes(p.v.ne0)
        load_queries(p, scratch.q, cut.head_rows, task)
        part, n_parts, n_chunks = share.part, share.n_parts, chunks_of(visible.n)
        base = scratch.states if n_parts == 1 else share.states
        total = state_at(p, base, cut.n_rows)
        end_chunk = quotient(n_chunks * (part + 1), n_parts)
        for chunk in range(quotient(n_chunks * part, n_parts), end_chunk):
            # One part: the first chunk's state becomes the total, others are added at once.
            i_state = chunk if n_parts > 1 else min(chunk, 1)
            state = state_at(p, base + i_state * n_bytes, cut.n_rows)
            attend(p, scratch, mask, chunk_at(visible, chunk), state, cut, task)
            if n_parts == 1 and chunk > 0:
                merge(total, state, 0, cut.n_rows, dv_bytes)
        if n_parts == 1:
            store_results(p, total, cut.head_rows, task)
        elif atomic_add_i64(share.finished, 1) == n_parts - 1:
            atomic_store_i64(share.finished, 0)
            for chunk in range(1, n_chunks):
                state = state_at(p, base + chunk * n_bytes, cut.n_rows)
                merge(total, state, 0, cut.n_rows, dv_bytes)
            store_results(p, total, cut.head_rows, task)

    return attend_query


def _flash_attn_ext(variant: Variant) -> None:
    """Declares the kernel of a variant."""
    served = [*_served(variant.reader.pairs)]
    n_heads = variant.n_heads
    attend_query, attend_run = _attend_query(variant), blocks_stage(variant.tile)

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
        cut = cut_of(p, n_heads, nth)
        work = work_of(p, cut, nth)
        scratch = scratch_at(p, ith, cut.n_rows)
        partials = p.scratch + nth * p.thread_bytes  # states of chunks that are shared out
        most_chunks = chunks_of(p.k.ne1 if p.cells.ptr == 0 else p.cells.ne0)
        split_bytes = most_chunks * state_bytes(p, cut.n_rows)
        visible = no_cells()
        turn, i_split = ith, 0  # tasks up to this thread's next one; queries that were split
        for outer in range(cut.n_outer):
            n_parts = parts_of(p, cut, work, outer)
            part = turn
            while part < n_parts:
                task = task_at(p, cut, outer)
                query, end = task.query, task.query + task.n_queries
                while query < end:
                    run = run_at(p, cut, query, end, task.sequence)
                    one = query_of(task, query)
                    first_head = task.first_kv * cut.n_shared + task.first_head
                    mask = mask_row(p.mask, query, first_head, task.sequence)
                    visible = visible_to(p, run.seen, mask, visible, scratch.cells)
                    if run.n > 1:
                        attend_run(p, scratch, visible, run, cut, task)
                    else:
                        states = partials + i_split * split_bytes
                        share = Share(part, n_parts, states, p.finished + 8 * i_split)
                        attend_query(p, scratch, mask, visible, share, cut, one)
                    query += run.n
                part += nth
            turn = part - n_parts
            i_split += 1 if n_parts > 1 else 0


# As many as leave sums in the registers: 32 of 16 f32, or 16 of 8 and fewer.
_WIDE, _NARROW = TileShape(4, 2, 4), TileShape(2, 1, 2)

for _reader in READERS:
    _flash_attn_ext(Variant("avx512", 1, 16, lambda n_shared: n_shared == 1, _WIDE, _reader))
    _flash_attn_ext(Variant("avx512", 2, 16, lambda n_shared: n_shared == 2, _WIDE, _reader))
    _flash_attn_ext(Variant("avx512", 4, 16, lambda n_shared: n_shared > 2, _WIDE, _reader))
    _flash_attn_ext(Variant("generic", 1, 4, lambda n_shared: True, _NARROW, _reader))
