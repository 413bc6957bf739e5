"""Second stage of attention: the running softmax of some rows, kept in a state.

A row is a query with one of its heads.

A state is cleared, updated group by group of cells, merged with those of other chunks, and
normalised into rows of the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, Record, inline
from ggmlpy.backends.cpu.kernels.attention_memory import State, padded_bytes
from ggmlpy.backends.cpu.kernels.attention_tasks import Task
from ggmlpy.backends.cpu.simd.arith import (
    equal,
    fma,
    maximum,
    quotient,
    select,
    splat_f32x16,
)
from ggmlpy.backends.cpu.simd.math import exp
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16,
    load_f32x16_part,
    store_f32,
    store_f32x16,
    store_f32x16_part,
)
from ggmlpy.backends.cpu.simd.reduce import lane, max_lanes, sum_lanes

_NEVER = float("-inf")


@inline
def fill(ptr: Int, n_bytes: Int, value: Any) -> None:
    """Whole vectors of one value."""
    for i in range(0, n_bytes, 64):
        store_f32x16(ptr + i, splat_f32x16(value))


@inline
def clear(state: State, first: Int, n: Int, dv_bytes: Int) -> None:
    """Rows first .. first + n - 1 have seen no cell."""
    fill(state.acc + first * dv_bytes, n * dv_bytes, 0.0)
    fill(state.sums + first * 64, n * 64, 0.0)
    for row in range(first, first + n):
        store_f32(state.maxima + 4 * row, np.float32(_NEVER))


@inline
def update(weights: Int, state: State, row: Int, dv_bytes: Int, n_cells: Int) -> None:
    """Replaces a row's scores of a group by weights exp(score - maximum so far), and adds these to
    the sums. Where the maximum grows, earlier sums are scaled down to it."""
    acc, sums = state.acc + row * dv_bytes, state.sums + 64 * row
    top = state.maxima + 4 * row
    s = load_f32x16(weights)
    for i in range(16, n_cells, 16):
        s = maximum(s, load_f32x16(weights + 4 * i))
    largest, before = max_lanes(s), load_f32(top)
    if largest > before:
        factor = exp(before - largest)
        store_f32(top, largest)
        store_f32x16(sums, load_f32x16(sums) * factor)
        for i in range(0, dv_bytes, 64):
            store_f32x16(acc + i, load_f32x16(acc + i) * factor)
    else:
        largest = before
    if largest == _NEVER:
        largest = np.float32(0)  # else -inf - -inf is NaN
    total = load_f32x16(sums)
    for i in range(0, n_cells, 16):
        e = exp(load_f32x16(weights + 4 * i) - largest)
        store_f32x16(weights + 4 * i, e)
        total = total + e
    store_f32x16(sums, total)


@inline
def add_scaled_to(x: Int, y: Int, n_bytes: Int, scale: Any, other_scale: Any) -> None:
    """x = x * scale + y * other_scale, whole vectors."""
    for i in range(0, n_bytes, 64):
        total = fma(load_f32x16(y + i), other_scale, load_f32x16(x + i) * scale)
        store_f32x16(x + i, total)


@inline
def merge(state: State, other: State, first: Int, n: Int, dv_bytes: Int) -> None:
    """Adds the sums of `other` to rows first .. first + n - 1 of `state`, both scaled to the
    larger of their maxima."""
    for block in range(first, first + n, 16):
        n_here = min(16, first + n - block)
        before = load_f32x16_part(state.maxima + 4 * block, n_here)
        added = load_f32x16_part(other.maxima + 4 * block, n_here)
        largest = maximum(before, added)
        store_f32x16_part(state.maxima + 4 * block, largest, n_here)
        largest = select(equal(largest, _NEVER), 0.0, largest)  # else -inf - -inf is NaN
        scales, other_scales = exp(before - largest), exp(added - largest)
        for i in range(n_here):
            row, scale, other_scale = block + i, lane(scales, i), lane(other_scales, i)
            add_scaled_to(state.sums + 64 * row, other.sums + 64 * row, 64, scale, other_scale)
            at = row * dv_bytes
            add_scaled_to(state.acc + at, other.acc + at, dv_bytes, scale, other_scale)


@inline
def store_scaled(acc: Int, y: Int, n: Int, factor: Any) -> None:
    """y = acc * factor."""
    whole = n & -16
    for i in range(0, 4 * whole, 64):
        store_f32x16(y + i, load_f32x16(acc + i) * factor)
    if n > whole:
        at = 4 * whole
        store_f32x16_part(y + at, load_f32x16(acc + at) * factor, n - whole)


@inline
def store_results(p: Record, state: State, head_rows: Int, task: Task) -> None:
    """The weighted sums of V over the sums of weights, sinks included, as rows of the result."""
    n_shared = quotient(p.q.ne2, p.k.ne2)
    for i in range(task.n_kv):
        for h in range(task.n_heads):
            at = i * head_rows + h
            head = (task.first_kv + i) * n_shared + task.first_head + h
            total = sum_lanes(load_f32x16(state.sums + 64 * at))
            factor = np.float32(1)
            if p.sinks.ptr != 0:
                sink, top = load_f32(p.sinks.ptr + 4 * head), load_f32(state.maxima + 4 * at)
                largest = maximum(top, sink)
                if largest == _NEVER:
                    largest = np.float32(0)  # else -inf - -inf is NaN
                factor = exp(top - largest)
                total = total * factor + exp(sink - largest)
            factor = np.float32(0) if total == np.float32(0) else factor / total
            y = p.y.ptr + head * p.y.nb1 + task.query * p.y.nb2 + task.sequence * p.y.nb3
            store_scaled(state.acc + at * padded_bytes(p.v.ne0), y, p.v.ne0, factor)
