"""Hyper-connections: mixing residual streams."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.segments import SEGMENT, n_segments
from ggmlpy.backends.cpu.rows import share
from ggmlpy.backends.cpu.simd.arith import fma, maximum, quotient, splat_f32x16, zero_f32x16
from ggmlpy.backends.cpu.simd.math import exp, sigmoid
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16,
    load_f32x16_part,
    store_f32,
    store_f32x16,
    store_f32x16_part,
)

COMB_ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "mixes", "scale", "base")),
        ("eps", "f4"),
        ("n_iter", "i8"),
        ("scratch", "i8"),
    ],
    align=True,
)
PRE_ARGS = np.dtype(
    [*((name, TENSOR) for name in ("y", "x", "weights")), ("scale", "f4"), ("gated", "i4")],
    align=True,
)
POST_ARGS = np.dtype(
    [(name, TENSOR) for name in ("y", "x", "residual", "post", "comb")], align=True
)
_TOKENS = 16  # a lane each


def _scratch_bytes(node: Any, n_threads: int) -> int:
    """f32 [C, C, 16] for each thread: an entry of the matrices of 16 tokens in a vector."""
    return int(4 * _TOKENS * node.ne[0] * node.ne[1] * n_threads)


@inline
def _softmax(m: Int, n: Int, eps: Any) -> None:
    """eps + softmax of n vectors one after another, lane by lane."""
    largest = load_f32x16(m)
    for i in range(1, n):
        largest = maximum(load_f32x16(m + 64 * i), largest)
    total = zero_f32x16()
    for i in range(n):
        e = exp(load_f32x16(m + 64 * i) - largest)
        store_f32x16(m + 64 * i, e)
        total = total + e
    factor = 1.0 / total
    for i in range(n):
        store_f32x16(m + 64 * i, load_f32x16(m + 64 * i) * factor + eps)


@inline
def _divide_by_sum(m: Int, n: Int, stride: Int, eps: Any) -> None:
    """n vectors, each `stride` bytes after the one before, divided by eps and their sum."""
    total = zero_f32x16() + eps
    for i in range(n):
        total = total + load_f32x16(m + stride * i)
    factor = 1.0 / total
    for i in range(n):
        store_f32x16(m + stride * i, load_f32x16(m + stride * i) * factor)


@kernel("dsv4_hc_comb", ("f32",) * 3, args=COMB_ARGS, scratch_bytes=_scratch_bytes)
def dsv4_hc_comb_f32(p: Record, ith: Int, nth: Int) -> None:
    """16 tokens at a time, one in each lane."""
    n, n_tokens = p.y.ne0, p.y.ne2
    m = p.scratch + ith * 64 * n * n
    tasks = n_segments(n_tokens, _TOKENS)
    scale = load_f32(p.scale.ptr + 2 * p.scale.nb0)
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        first = task * _TOKENS
        there = min(_TOKENS, n_tokens - first)
        for i in range(n * n):
            store_f32x16(m + 64 * i, zero_f32x16())
            base = load_f32(p.base.ptr + (2 * n + i) * p.base.nb0)
            x = p.mixes.ptr + (2 * n + i) * p.mixes.nb0 + first * p.mixes.nb1
            for t in range(there):
                store_f32(m + 64 * i + 4 * t, fma(load_f32(x + t * p.mixes.nb1), scale, base))
        for src in range(n):
            _softmax(m + 64 * n * src, n, p.eps)
        for turn in range(p.n_iter):
            if turn > 0:
                for src in range(n):
                    _divide_by_sum(m + 64 * n * src, n, 64, p.eps)
            for dst in range(n):
                _divide_by_sum(m + 64 * dst, n, 64 * n, p.eps)
        for t in range(there):
            y = p.y.ptr + 4 * n * n * (first + t)
            for i in range(n * n):
                store_f32(y + 4 * i, load_f32(m + 64 * i + 4 * t))


@inline
def _load(x: Int, n: Int) -> Any:
    return load_f32x16(x) if n == 16 else load_f32x16_part(x, n)


@inline
def _store(y: Int, v: Any, n: Int) -> None:
    if n == 16:
        store_f32x16(y, v)
    else:
        store_f32x16_part(y, v, n)


@kernel("dsv4_hc_pre", ("f32", "f32"), args=PRE_ARGS)
def dsv4_hc_pre_f32(p: Record, ith: Int, nth: Int) -> None:
    """Segments of tokens; the streams in order."""
    n = p.y.ne0
    per_row = n_segments(n, SEGMENT)
    tasks = per_row * p.y.ne1
    w = p.weights
    step = 16 if p.x.nb0 == 4 and (p.gated == 0 or w.nb0 == 4) else 1  # a lane where rows have gaps
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        t = quotient(task, per_row)
        start = (task - t * per_row) * SEGMENT
        for i in range(start, min(start + SEGMENT, n), step):
            m = min(step, n - i)
            total = zero_f32x16()
            for c in range(p.x.ne1):
                at = p.x.ptr + i * p.x.nb0 + c * p.x.nb1 + t * p.x.nb2
                x = _load(at, m)
                if p.gated != 0:
                    at = w.ptr + i * w.nb0 + c * w.nb1 + t * w.nb2
                    total = fma(x, sigmoid(_load(at, m)), total)
                else:
                    weight = load_f32(w.ptr + c * w.nb0 + t * w.nb1)
                    total = fma(x, splat_f32x16(weight), total)
            _store(p.y.ptr + 4 * (i + n * t), total * p.scale, m)


@kernel("dsv4_hc_post", ("f32",) * 3, args=POST_ARGS, also=[("dsv4_hc_post", ("f32",) * 4)])
def dsv4_hc_post_f32(p: Record, ith: Int, nth: Int) -> None:
    """Segments of tokens; the streams in order."""
    n, n_streams = p.y.ne0, p.y.ne1
    per_row = n_segments(n, SEGMENT)
    tasks = per_row * p.y.ne2
    r, comb = p.residual, p.comb
    step = 16 if p.x.nb0 == 4 and r.nb0 == 4 else 1  # a lane where rows have gaps
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        t = quotient(task, per_row)
        start = (task - t * per_row) * SEGMENT
        for i in range(start, min(start + SEGMENT, n), step):
            m = min(step, n - i)
            x = _load(p.x.ptr + i * p.x.nb0 + t * p.x.nb1, m)
            residual = r.ptr + i * r.nb0 + t * r.nb2
            for dst in range(n_streams):
                total = x * load_f32(p.post.ptr + dst * p.post.nb0 + t * p.post.nb1)
                if comb.ptr == 0:
                    total = total + _load(residual + dst * r.nb1, m)
                else:
                    for src in range(n_streams):
                        at = comb.ptr + dst * comb.nb0 + src * comb.nb1 + t * comb.nb2
                        stream = _load(residual + src * r.nb1, m)
                        total = fma(stream, splat_f32x16(load_f32(at)), total)
                _store(p.y.ptr + 4 * (i + n * (dst + n_streams * t)), total, m)
