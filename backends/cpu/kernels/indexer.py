"""The lightning indexer's scores.

A task is 16 cells of a stream, one in each lane, for all tokens: their keys, as f32 and transposed,
stay in the first level of cache (8 KiB for size 128), and the heads are taken four at a time.

Scratch memory of a thread: f32 [16, D] rows of k, then f32 [D, 16] the same transposed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.dequantize import CACHE_TYPES, read_any
from ggmlpy.backends.cpu.kernels.segments import n_segments
from ggmlpy.backends.cpu.kernels.types import type_field
from ggmlpy.backends.cpu.rows import share
from ggmlpy.backends.cpu.simd.arith import (
    equal,
    fma,
    maximum,
    quotient,
    remainder,
    select,
    splat_f32x16,
    zero_f32x16,
)
from ggmlpy.backends.cpu.simd.gather import gather_f32x16
from ggmlpy.backends.cpu.simd.memory import (
    load_f16x16_part,
    load_f32,
    load_f32x16,
    store_f32x16,
    store_f32x16_part,
)

ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "q", "k", "weights", "mask")),
        ("k_type", "i4"),
        ("scratch", "i8"),
    ],
    align=True,
)
_CELLS = 16


def _bind(node: Any, builder: Any) -> dict[str, float]:
    return {"k_type": type_field(node.src[1])}


def _scratch_bytes(node: Any, n_threads: int) -> int:
    return int(8 * _CELLS * node.src[1].ne[0] * n_threads)


@inline
def add_head(total: Any, dot: Any, weight: Any) -> Any:
    """total + relu(dot) * weight."""
    return fma(maximum(0.0, dot), splat_f32x16(weight), total)


@inline
def scores(p: Record, keys: Int, q: Int, w: Int) -> Any:
    """The scores of 16 cells for a token: elements in order, then heads in order."""
    n, n_head = p.q.ne0, p.q.ne1
    total = zero_f32x16()
    whole = n_head & -4
    for h in range(0, whole, 4):
        q0 = q + h * p.q.nb1
        q1, q2, q3 = q0 + p.q.nb1, q0 + 2 * p.q.nb1, q0 + 3 * p.q.nb1
        t0, t1, t2, t3 = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
        for i in range(n):
            k = load_f32x16(keys + 64 * i)
            t0 = fma(k, splat_f32x16(load_f32(q0 + 4 * i)), t0)
            t1 = fma(k, splat_f32x16(load_f32(q1 + 4 * i)), t1)
            t2 = fma(k, splat_f32x16(load_f32(q2 + 4 * i)), t2)
            t3 = fma(k, splat_f32x16(load_f32(q3 + 4 * i)), t3)
        total = add_head(total, t0, load_f32(w + 4 * h))
        total = add_head(total, t1, load_f32(w + 4 * h + 4))
        total = add_head(total, t2, load_f32(w + 4 * h + 8))
        total = add_head(total, t3, load_f32(w + 4 * h + 12))
    for h in range(whole, n_head):
        t0 = zero_f32x16()
        for i in range(n):
            t0 = fma(
                load_f32x16(keys + 64 * i), splat_f32x16(load_f32(q + h * p.q.nb1 + 4 * i)), t0
            )
        total = add_head(total, t0, load_f32(w + 4 * h))
    return total


@kernel(
    "lightning_indexer",
    ("f32", "f32", "f32", "f16"),
    args=ARGS,
    bind=_bind,
    scratch_bytes=_scratch_bytes,
    also=[("lightning_indexer", ("f32", t, "f32", "f16")) for t in CACHE_TYPES if t != "f32"],
)
def lightning_indexer(p: Record, ith: Int, nth: Int) -> None:
    """16 cells of a stream for all tokens."""
    n, n_tokens, n_kv = p.q.ne0, p.q.ne2, p.k.ne2
    rows = p.scratch + ith * 128 * n
    keys = rows + 64 * n
    blocks = n_segments(n_kv, _CELLS)
    tasks = blocks * p.q.ne3
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        s = quotient(task, blocks)
        first = (task - s * blocks) * _CELLS
        there = min(_CELLS, n_kv - first)
        for j in range(_CELLS):  # the last cell again where fewer are left
            at = p.k.ptr + (first + min(j, there - 1)) * p.k.nb2 + s * p.k.nb3
            read_any(p.k_type, at, rows + 4 * n * j, n)
        for i in range(n):
            store_f32x16(keys + 64 * i, gather_f32x16(rows + 4 * i, 4 * n))
        for t in range(n_tokens):
            q = p.q.ptr + t * p.q.nb2 + s * p.q.nb3
            w = p.weights.ptr + t * p.weights.nb1 + s * p.weights.nb3
            mask = p.mask.ptr + t * p.mask.nb1 + remainder(s, p.mask.ne3) * p.mask.nb3
            bias = load_f16x16_part(mask + 2 * first, there)
            total = scores(p, keys, q, w) + bias
            total = select(equal(bias, -np.inf), bias, total)
            store_f32x16_part(p.y.ptr + 4 * (first + n_kv * (t + n_tokens * s)), total, there)
