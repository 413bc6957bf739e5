"""How the work of an attention node is cut into tasks, and where these find what they need.

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

from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.attention_blocks import FOLD_BYTES, GROUP
from ggmlpy.backends.cpu.kernels.masks import bind_slopes
from ggmlpy.backends.cpu.simd.memory import store_i64

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
SUB = 16  # cells whose rows are f32 at a time
MANY_QUERIES = 128  # from here on rows of K and V stay in cache from one query to the next
_TASKS_A_THREAD = 4  # at least, so that threads end at about the same time
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
        n_kv_heads = 1 if apart or q.ne[1] >= MANY_QUERIES else k.ne[2]
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
        n_bytes = 4 * _up(n_kv, 16) + 8 * (2 * GROUP + 2 * SUB) + 4 * GROUP + 4 * FOLD_BYTES
        n_bytes += 4 * self.n_rows * GROUP + 4 * SUB * max(self.d, self.dv)
        return _up(n_bytes + 4 * self.n_rows * self.d + 2 * self.state_bytes, 128)

    def partial_bytes(self, n_kv: int) -> int:
        """Every chunk's state, of every query with its heads."""
        if self.n_parts == 1:
            return 0
        return self.n_outer * -(-n_kv // CHUNK) * self.state_bytes


def scratch_bytes(node: Any, n_threads: int) -> int:
    """Of a node, on so many threads."""
    shape, n_kv = Shape.of(node, n_threads), node.src[1].ne[1]
    return n_threads * shape.thread_bytes(n_kv) + shape.partial_bytes(n_kv)


def bind(node: Any, builder: Any) -> dict[str, float]:
    """The fields of a node's record that are neither operands nor parameters of the op."""
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
    dv_at = d_at + 8 * SUB
    for j in range(SUB):
        store_i64(d_at + 8 * j, j * d_bytes)
        store_i64(dv_at + 8 * j, j * dv_bytes)
    bias = dv_at + 8 * SUB
    folds = bias + 4 * GROUP
    weights = folds + 4 * FOLD_BYTES
    rows = weights + p.n_kv_heads * room * 4 * GROUP
    q = rows + SUB * max(d_bytes, dv_bytes)
    state = q + p.n_kv_heads * room * d_bytes
    return (k_at, v_at, d_at, dv_at), bias, folds, weights, rows, q, state
