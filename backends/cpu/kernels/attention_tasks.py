"""How the work of an attention node is cut into tasks. No result depends on it.

A task is one query with some of its heads. Where queries are few, it takes all the heads of K,
because a token's heads lie side by side in the cache. Where queries are many, a task takes one head
of K, whose rows then stay in the core's cache. The chunks of a query that has more of them than the
share of a task are split among several tasks, its parts.

Where neighbouring queries see the same lists, as those of a prompt do, a task is a block of them
with one head of K (attention_blocks.py).

All this is decided when the kernel runs: there may be fewer queries than the node has room for, and
what each of them sees is an input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.attention_cells import seen_by
from ggmlpy.backends.cpu.kernels.attention_memory import (
    n_block_bytes,
    n_state_bytes,
    n_thread_bytes,
    round_up,
)
from ggmlpy.backends.cpu.kernels.masks import bind_slopes
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.memory import load_i32

ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("q", TENSOR),
        ("k", TENSOR),
        ("v", TENSOR),
        ("mask", TENSOR),
        ("sinks", TENSOR),
        ("cells", TENSOR),
        ("seen", TENSOR),
        ("slopes", "i8"),
        ("scratch", "i8"),
        ("finished", "i8"),  # i64 for each query that is split, with its heads: parts that are done
        ("thread_bytes", "i4"),
        ("k_type", "i2"),
        ("v_type", "i2"),
        ("scale", "f4"),
        ("logit_softcap", "f4"),
    ],
    align=True,
)

CHUNK = 256  # cells whose state is computed by itself
_MANY_QUERIES = 128  # from here on rows of K and V stay in cache from one query to the next
_BLOCK_ROWS = 128  # of a block: its queries times the heads that share a head of K
LEAST_ROWS = 8  # of a block that is worth converting K and V for
_TASKS_A_THREAD = 4  # at least, so that threads end at about the same time


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the memory of a node depends on, for any number of queries up to the node's."""

    n_visible: int  # cells that a query can see
    list_bytes: int  # of a thread's lists of them
    n_split: int  # queries, with their heads, whose chunks are split
    n_rows: int  # of a task of one query: its heads, for each head of K up to whole blocks
    n_block_rows: int  # of a task of several queries with their heads; 0 if there is none
    d: int
    dv: int

    @staticmethod
    def of(node: Any, n_threads: int) -> Sizes:
        sources = dict(zip(node.op.source_names(len(node.src)), node.src, strict=True))
        q, k, v = node.src[:3]
        shared, n_kv_heads = q.ne[2] // k.ne[2], k.ne[2]
        apart = node.op.has_mask and sources["mask"].ne[2] > 1
        n_blocks = q.ne[2] if apart else n_kv_heads if q.ne[1] >= _MANY_QUERIES else 1
        n_visible = int(sources["cells"].ne[0] if node.op.has_lists else k.ne[1])
        n_lists = (2 if node.op.has_mask else 0) if node.op.has_lists else 1
        n_outer = int(q.ne[1] * q.ne[3] * n_blocks)
        return Sizes(
            n_visible,
            4 * n_lists * round_up(n_visible, 16),
            min(n_outer, _n_tasks(n_threads) - 1) if n_visible > CHUNK else 0,
            round_up(1, 4) if apart else n_kv_heads * round_up(shared, 4),
            0 if node.op.has_mask else _most_queries(q.ne[1], shared) * shared,
            round_up(q.ne[0], 16),
            round_up(v.ne[0], 16),
        )

    @property
    def thread_bytes(self) -> int:
        n_rows = max(self.n_rows, self.n_block_rows)
        n_bytes = n_thread_bytes(self.list_bytes, n_rows, self.d, self.dv)
        return n_bytes + (n_block_bytes(n_rows, self.d, self.dv) if self.n_block_rows > 0 else 0)

    @property
    def partial_bytes(self) -> int:
        """Every chunk's state, of every query that is split, with its heads."""
        n_chunks = -(-self.n_visible // CHUNK)
        return self.n_split * n_chunks * n_state_bytes(self.n_rows, self.dv)


def _most_queries(n_queries: int, n_shared: int) -> int:
    """The queries of a block, where so many heads share a head of K; 0 where there is no block."""
    n = min(n_queries, _BLOCK_ROWS // n_shared)
    return n if n > 1 else 0


def _n_tasks(n_threads: int) -> int:
    return _TASKS_A_THREAD * n_threads if n_threads > 1 else 1


def scratch_bytes(node: Any, n_threads: int) -> int:
    """Scratch memory of a node on so many threads."""
    sizes = Sizes.of(node, n_threads)
    return n_threads * sizes.thread_bytes + sizes.partial_bytes


def bind(node: Any, builder: Any) -> dict[str, float]:
    """The fields of a node's record that are neither operands nor parameters of the op."""
    q, k, v = node.src[:3]
    sizes = Sizes.of(node, builder.n_threads)
    return {
        "slopes": bind_slopes(builder, q.ne[2], node.op.max_bias),
        "thread_bytes": sizes.thread_bytes,
        "finished": builder.counters(sizes.n_split) if sizes.n_split > 0 else 0,
        "k_type": types.type_field(k),
        "v_type": types.type_field(v),
    }


class Cut(NamedTuple):
    """How the heads of a query are cut into blocks, one for each task."""

    n_shared: Int  # heads of q that share a head of K
    n_kv_heads: Int  # heads of K in a task
    n_heads: Int  # heads of q in a task for each of them: all that share it, or one
    head_rows: Int  # rows for these in scratch memory
    n_splits: Int  # blocks that heads of q sharing a head of K are split into
    n_blocks: Int
    n_queries: Int  # in a task
    n_steps: Int  # tasks of a sequence with the same heads
    n_outer: Int  # tasks, counted without parts
    n_rows: Int  # rows in scratch memory and in states


class Task(NamedTuple):
    """Queries with heads first_head .. first_head + n_heads - 1 of those that share a head of K,
    for each of `n_kv` heads of K."""

    query: Int  # the first one
    n_queries: Int
    sequence: Int
    first_kv: Int
    n_kv: Int
    first_head: Int
    n_heads: Int


class Work(NamedTuple):
    """How much there is to do."""

    n_tasks: Int  # at least these are wanted
    n_chunks: Int  # of all queries with their heads
    splits: Int  # 1 if the chunks of any query are split


@inline
def queries_of(p: Record, n_tasks: Int) -> Int:
    """Queries in a task: several if most see the same list as those before them, and if at least
    `n_tasks` tasks are left."""
    n_shared = quotient(p.q.ne2, p.k.ne2)
    n = min(p.q.ne1, quotient(_BLOCK_ROWS, n_shared))
    if p.mask.ptr != 0 or n * n_shared < LEAST_ROWS:
        return 1
    while p.k.ne2 * p.q.ne3 * quotient(p.q.ne1 + n - 1, n) < n_tasks:
        n = quotient(n, 2)
        if n * n_shared < LEAST_ROWS:
            return 1
    if p.cells.ptr != 0:
        n_alike = 0
        for sequence in range(p.q.ne3):
            seen = p.seen.ptr + sequence * p.seen.nb2
            for query in range(1, p.q.ne1):
                at = seen + query * p.seen.nb1
                n_alike += 1 if load_i32(at) == load_i32(at - p.seen.nb1) else 0
        if 2 * n_alike < p.q.ne1 * p.q.ne3:
            return 1
    return max(1, n)


@inline
def cut_of(p: Record, block: int, nth: Int) -> Cut:
    """How this node's heads are cut, heads in scratch memory in blocks of `block`."""
    n_shared = quotient(p.q.ne2, p.k.ne2)
    n_queries = queries_of(p, tasks_wanted(nth))
    apart = p.mask.ptr != 0 and p.mask.ne2 > 1  # heads with masks of their own
    one_kv = apart or n_queries > 1 or p.q.ne1 >= _MANY_QUERIES
    n_kv_heads = 1 if one_kv else p.k.ne2
    n_heads = 1 if apart else n_shared
    head_rows = (n_heads + block - 1) & -block
    n_splits = quotient(n_shared + n_heads - 1, n_heads)
    n_blocks = quotient(p.k.ne2, n_kv_heads) * n_splits
    n_steps = quotient(p.q.ne1 + n_queries - 1, n_queries)
    n_outer = n_steps * p.q.ne3 * n_blocks
    n_rows = max(n_kv_heads * head_rows, n_queries * n_heads)
    return Cut(
        n_shared, n_kv_heads, n_heads, head_rows, n_splits, n_blocks,
        n_queries, n_steps, n_outer, n_rows,
    )  # fmt: skip


@inline
def tasks_wanted(nth: Int) -> Int:
    """At least so many tasks are wanted."""
    return _TASKS_A_THREAD * nth if nth > 1 else 1


@inline
def chunks_of(n_cells: Int) -> Int:
    """Chunks of so many cells; at least one."""
    return max(1, quotient(n_cells + CHUNK - 1, CHUNK))


@inline
def work_of(p: Record, cut: Cut, nth: Int) -> Work:
    """How much there is to do, counted before masks."""
    n_tasks = tasks_wanted(nth)
    most = chunks_of(p.k.ne1)
    n_chunks = most * p.q.ne1 * p.q.ne3
    if p.cells.ptr != 0:
        most, n_chunks = 1, 0
        for sequence in range(p.q.ne3):
            for query in range(p.q.ne1):
                n = chunks_of(seen_by(p, query, sequence).n)
                most = max(most, n)
                n_chunks += n
    n_chunks *= cut.n_blocks
    splits = cut.n_queries == 1 and most > 1 and most * n_tasks > n_chunks
    return Work(n_tasks, n_chunks, 1 if splits else 0)


@inline
def parts_of(p: Record, cut: Cut, work: Work, i: Int) -> Int:
    """Tasks that share the chunks of query with heads `i`. Fewer than n_tasks queries have more
    than one: each of these has more than n_chunks / n_tasks chunks."""
    if work.splits == 0:
        return 1
    task = task_at(p, cut, i)
    n = chunks_of(seen_by(p, task.query, task.sequence).n)
    return min(n, quotient(n * work.n_tasks + work.n_chunks - 1, work.n_chunks))


@inline
def task_at(p: Record, cut: Cut, i: Int) -> Task:
    """Task i, counted without parts. Where a task takes one head of K and queries are many, its
    queries follow each other, every other time from the last one on, because later ones often take
    longer; else the blocks of a query do."""
    n_steps = cut.n_steps
    if cut.n_queries == 1 and n_steps < _MANY_QUERIES:
        rest = quotient(i, cut.n_blocks)
        block = i - rest * cut.n_blocks
        sequence = quotient(rest, n_steps)
        step = rest - sequence * n_steps
    else:
        rest = quotient(i, n_steps)
        step = i - rest * n_steps
        sequence = quotient(rest, cut.n_blocks)
        block = rest - sequence * cut.n_blocks
        step = n_steps - 1 - step if block & 1 else step
    i_kv = quotient(block, cut.n_splits)
    first_head = (block - i_kv * cut.n_splits) * cut.n_heads
    n_heads = min(cut.n_heads, cut.n_shared - first_head)
    query = step * cut.n_queries
    n_queries = min(cut.n_queries, p.q.ne1 - query)
    first_kv = i_kv * cut.n_kv_heads
    return Task(query, n_queries, sequence, first_kv, cut.n_kv_heads, first_head, n_heads)


@inline
def query_of(task: Task, query: Int) -> Task:
    """One query of a task."""
    return Task(
        query, np.int64(1), task.sequence, task.first_kv, task.n_kv, task.first_head, task.n_heads
    )
