"""How the work of an attention node is cut into tasks. No result depends on it.

A task is one query with some of its heads. Where queries are few, it takes all the heads of K,
because a token's heads lie side by side in the cache; if there are then too few tasks for the
threads, the chunks of a query are shared out too. Where queries are many, a task takes one head of
K, whose rows then stay in the core's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.attention_memory import (
    n_state_bytes,
    n_thread_bytes,
    round_up,
)
from ggmlpy.backends.cpu.kernels.masks import bind_slopes
from ggmlpy.backends.cpu.simd.arith import quotient

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
        ("finished", "i8"),  # i64 for each query with its heads: parts that are done
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

CHUNK = 256  # cells whose state is computed by itself
_MANY_QUERIES = 128  # from here on rows of K and V stay in cache from one query to the next
_TASKS_A_THREAD = 4  # at least, so that threads end at about the same time


@dataclass(frozen=True, slots=True)
class Shape:
    """The tasks of a node, and the sizes that their memory depends on."""

    n_kv_heads: int  # in a task
    heads: int
    n_parts: int
    n_outer: int  # queries with their heads
    head_rows: int  # rows of q and state for each head of K, up to whole blocks
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
        n_tasks = _TASKS_A_THREAD * n_threads if n_threads > 1 else 1  # at least
        n_parts = min(-(-n_tasks // n_outer), -(-k.ne[1] // CHUNK))
        head_rows, d, dv = round_up(heads, 4), round_up(q.ne[0], 16), round_up(v.ne[0], 16)
        return Shape(n_kv_heads, heads, n_parts, n_outer, head_rows, d, dv)

    def thread_bytes(self, n_kv: int) -> int:
        return n_thread_bytes(n_kv, self.n_kv_heads * self.head_rows, self.d, self.dv)

    def partial_bytes(self, n_kv: int) -> int:
        """Every chunk's state, of every query with its heads."""
        if self.n_parts == 1:
            return 0
        n_bytes = n_state_bytes(self.n_kv_heads * self.head_rows, self.dv)
        return self.n_outer * -(-n_kv // CHUNK) * n_bytes


def scratch_bytes(node: Any, n_threads: int) -> int:
    """Scratch memory of a node on so many threads."""
    shape, n_kv = Shape.of(node, n_threads), node.src[1].ne[1]
    return n_threads * shape.thread_bytes(n_kv) + shape.partial_bytes(n_kv)


def bind(node: Any, builder: Any) -> dict[str, float]:
    """The fields of a node's record that are neither operands nor parameters of the op."""
    q, k, v = node.src[:3]
    shape = Shape.of(node, builder.n_threads)
    fields: dict[str, float] = {
        "slopes": bind_slopes(builder, q.ne[2], node.op.max_bias),
        "thread_bytes": shape.thread_bytes(k.ne[1]),
        "finished": 0,
        "k_type": types.type_field(k),
        "v_type": types.type_field(v),
        "n_kv_heads": shape.n_kv_heads,
        "heads": shape.heads,
        "n_parts": shape.n_parts,
    }
    if shape.n_parts > 1:
        fields["finished"] = builder.counters(shape.n_outer)
    return fields


class Cut(NamedTuple):
    """How the heads of a query are cut into blocks, one for each task."""

    n_shared: Int  # heads of q that share a head of K
    n_splits: Int  # blocks that these are split into
    n_blocks: Int


class Task(NamedTuple):
    """One query with heads first_head .. first_head + n_heads - 1 of those that share a head of K,
    for each of `n_kv` heads of K."""

    query: Int
    sequence: Int
    first_kv: Int
    n_kv: Int
    first_head: Int
    n_heads: Int


@inline
def cut_of(p: Record) -> Cut:
    """How this node's heads are cut."""
    n_shared = quotient(p.q.ne2, p.k.ne2)
    n_splits = quotient(n_shared + p.heads - 1, p.heads)
    n_blocks = quotient(p.k.ne2 + p.n_kv_heads - 1, p.n_kv_heads) * n_splits
    return Cut(n_shared, n_splits, n_blocks)


@inline
def task_at(p: Record, cut: Cut, i: Int) -> Task:
    """Task i, counted without parts. Where a task takes one head of K and queries are many, its
    queries follow each other; else the blocks of a query do."""
    n_query = p.q.ne1
    if p.n_kv_heads > 1 or n_query < _MANY_QUERIES:
        rest = quotient(i, cut.n_blocks)
        block = i - rest * cut.n_blocks
        sequence = quotient(rest, n_query)
        query = rest - sequence * n_query
    else:
        rest = quotient(i, n_query)
        query = i - rest * n_query
        sequence = quotient(rest, cut.n_blocks)
        block = rest - sequence * cut.n_blocks
    i_kv = quotient(block, cut.n_splits)
    first_kv = i_kv * p.n_kv_heads
    n_kv = min(p.n_kv_heads, p.k.ne2 - first_kv)
    first_head = (block - i_kv * cut.n_splits) * p.heads
    n_heads = min(p.heads, cut.n_shared - first_head)
    return Task(query, sequence, first_kv, n_kv, first_head, n_heads)
