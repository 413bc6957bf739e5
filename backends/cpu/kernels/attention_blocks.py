"""Attention of several queries at a time, over the same stretch of a list of cells.

Queries of a prompt see the same cells, but for the last ones and, with a window, the first. Rows of
K and V of a group are converted to f32 once for all of these queries with their heads, and then
stay in the core's cache; attention_tiles.py has the three stages.

A row is a query with one of the heads that share a head of K. It has the groups and chunks that the
query has by itself, and all its sums have the same order, and so the same bits. With a window the
queries' groups are shifted against each other: cells of up to 16 more are converted with a group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ggmlpy.backends.cpu.kernel import Inline, Int, Record, inline
from ggmlpy.backends.cpu.kernels.attention_cells import (
    Ahead,
    Seen,
    Visible,
    all_exist,
    head_bytes,
    list_rows,
    prefetch_rows,
    seen_by,
)
from ggmlpy.backends.cpu.kernels.attention_memory import (
    GROUP,
    KEY_BYTES,
    ROW_BYTES,
    SHIFTS,
    SPAN,
    SUBGROUP,
    Scratch,
    State,
    padded_bytes,
    rows_of,
    state_at,
    state_bytes,
)
from ggmlpy.backends.cpu.kernels.attention_readers import TileShape, convert_rows
from ggmlpy.backends.cpu.kernels.attention_scores import load_queries
from ggmlpy.backends.cpu.kernels.attention_softmax import clear, merge, store_results
from ggmlpy.backends.cpu.kernels.attention_tasks import (
    CHUNK,
    LEAST_ROWS,
    Cut,
    Task,
    chunks_of,
    query_of,
)
from ggmlpy.backends.cpu.kernels.attention_tiles import (
    STRIP,
    Tile,
    n_seen,
    tile_scores,
    tile_values,
    update_rows,
)
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.columns import transpose16
from ggmlpy.backends.cpu.simd.memory import load_i64, store_i64


class Run(NamedTuple):
    """Neighbouring queries whose cells are a stretch of one list, without gaps."""

    query: Int  # the first one
    n: Int
    seen: Seen  # the stretch


@inline
def run_at(p: Record, cut: Cut, query: Int, end: Int, sequence: Int) -> Run:
    """The queries from `query` on, before `end`, that are attended to together: one, where they
    would be too few."""
    first = seen_by(p, query, sequence)
    last = first.entries + 4 * first.n
    n = 1
    while query + n < end:
        seen = seen_by(p, query + n, sequence)
        shift = seen.entries - first.entries
        if shift < 0 or shift > 4 * SHIFTS or seen.entries > last:
            break
        last = max(last, seen.entries + 4 * seen.n)
        n += 1
    if n * cut.n_heads < LEAST_ROWS:
        return Run(query, np.int64(1), first)
    return Run(query, n, Seen(first.entries, quotient(last - first.entries, 4)))


@inline
def load_run(p: Record, scratch: Scratch, run: Run, task: Task) -> None:
    """The run's rows of q into scratch memory, and what each of them sees."""
    d_bytes = padded_bytes(p.k.ne0)
    row = 0
    for i in range(run.n):
        seen = seen_by(p, run.query + i, task.sequence)
        shift = quotient(seen.entries - run.seen.entries, 4)
        load_queries(p, scratch.q + row * d_bytes, 0, query_of(task, run.query + i))
        for _ in range(task.n_heads):
            store_i64(scratch.rows + ROW_BYTES * row, shift)
            store_i64(scratch.rows + ROW_BYTES * row + 8, seen.n)
            row += 1


@inline
def load_cells(p: Record, scratch: Scratch, k: Int, v: Int, cells: Int, n: Int) -> None:
    """K, transposed, and V of listed cells as f32; `k`, `v` are the addresses of the heads."""
    d_bytes = padded_bytes(p.k.ne0)
    list_rows(cells, n, p.k.nb1, scratch.k_rows)
    list_rows(cells, n, p.v.nb1, scratch.v_rows)
    for first in range(0, n, SUBGROUP):
        rows = scratch.k_rows + 8 * first
        convert_rows(p.k_type, k, rows, SUBGROUP, scratch.f32_rows, p.k.ne0)
        keys = scratch.keys + 4 * first
        for at in range(0, d_bytes, 64):
            transpose16(scratch.f32_rows + at, d_bytes, keys + SPAN * at, KEY_BYTES)
    convert_rows(p.v_type, v, scratch.v_rows, n, scratch.values, p.v.ne0)


@inline
def tile_at(scratch: Scratch, row: Int, n_rows: Int, n_tile: Int, first: Int) -> Tile:
    """The next `n_tile` of the run's `n_rows` rows if they have one shift, else the next one."""
    rows = scratch.rows + ROW_BYTES * row
    shift = load_i64(rows)
    n = n_tile if row + n_tile <= n_rows else 1
    for r in range(1, n):
        if load_i64(rows + ROW_BYTES * r) != shift:
            n = 1
    least, most = GROUP, 0
    for r in range(n):
        here = n_seen(scratch, row + r, first)
        least, most = min(least, here), max(most, here)
    weights = scratch.weights + 4 * GROUP * (row & (STRIP - 1))
    return Tile(row, n, weights, shift, first, least, most)


def blocks_stage(shape: TileShape) -> Inline:
    """The function `attend_run`, which computes the results of a run of queries."""
    n_tile = shape.n_rows
    score, add = tile_scores(shape), tile_values(shape)
    row_shape = replace(shape, n_rows=1)
    score_row, add_row = tile_scores(row_shape), tile_values(row_shape)

    @inline
    def attend_group(
        p: Record, scratch: Scratch, state: State, n_rows: Int, first: Int, k: Ahead, v: Ahead
    ) -> None:
        """The run's rows with a group of cells. Rows `k` and `v` are prefetched meanwhile."""
        n_ahead = quotient(GROUP * STRIP + n_rows - 1, n_rows)  # with each strip
        for i in range(0, n_rows, STRIP):
            end = min(i + STRIP, n_rows)
            prefetch_rows(k, quotient(i, STRIP) * n_ahead, n_ahead, 0, head_bytes(p.k))
            row = i
            while row < end:
                tile = tile_at(scratch, row, end, n_tile, first)
                if tile.n == n_tile:
                    score(p, scratch, tile)
                else:
                    score_row(p, scratch, tile)
                row += tile.n
            update_rows(scratch, state, i, end - i, padded_bytes(p.v.ne0))
            prefetch_rows(v, quotient(i, STRIP) * n_ahead, n_ahead, 0, head_bytes(p.v))
            row = i
            while row < end:
                tile = tile_at(scratch, row, end, n_tile, first)
                if tile.n == n_tile:
                    add(p, scratch, state, tile)
                else:
                    add_row(p, scratch, state, tile)
                row += tile.n

    @inline
    def attend_run(
        p: Record, scratch: Scratch, visible: Visible, run: Run, cut: Cut, task: Task
    ) -> None:
        """`visible` are the run's cells, `task` is that of its queries."""
        load_run(p, scratch, run, task)
        n_rows, dv_bytes = run.n * task.n_heads, padded_bytes(p.v.ne0)
        total = state_at(p, scratch.states, cut.n_rows)
        added = state_at(p, scratch.states + state_bytes(p, cut.n_rows), cut.n_rows)
        stream = task.sequence if p.cells.ptr == 0 else 0  # listed cells are those of all streams
        k = p.k.ptr + stream * p.k.nb3 + task.first_kv * p.k.nb2
        v = p.v.ptr + stream * p.v.nb3 + task.first_kv * p.v.nb2
        most, most_shift = 0, 0
        for row in range(n_rows):
            most_shift = max(most_shift, load_i64(scratch.rows + ROW_BYTES * row))
            most = max(most, load_i64(scratch.rows + ROW_BYTES * row + 8))
        for chunk in range(chunks_of(most)):
            # The first chunk's state becomes the total, others are added at once.
            state = total if chunk == 0 else added
            clear(state, 0, n_rows, dv_bytes)
            for first in range(CHUNK * chunk, min(most, CHUNK * (chunk + 1)), GROUP):
                cells = visible.cells + 4 * first
                n = min(GROUP + most_shift, visible.n - first)
                if p.cells.ptr != 0 and all_exist(p, cells, n) == 0:
                    continue
                load_cells(p, scratch, k, v, cells, n)
                n_next = min(GROUP, visible.n - first - n)
                k_ahead = Ahead(k, p.k.nb1, p.k.nb2, 1, cells + 4 * n, n_next, 0)
                v_ahead = Ahead(v, p.v.nb1, p.v.nb2, 1, cells + 4 * n, n_next, 0)
                attend_group(p, scratch, state, n_rows, first, k_ahead, v_ahead)
            if chunk > 0:
                for row in range(0, n_rows, task.n_heads):
                    if n_seen(scratch, row, CHUNK * chunk) > 0:
                        merge(total, added, row, task.n_heads, dv_bytes)
        for i in range(run.n):
            rows = rows_of(p, total, i * task.n_heads)
            store_results(p, rows, 0, query_of(task, run.query + i))

    return attend_run
