"""Kernels of recurrent layers: the short convolution, and gated linear attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel, report
from ggmlpy.backends.cpu.kernels.copy import copy_bytes
from ggmlpy.backends.cpu.kernels.segments import n_segments
from ggmlpy.backends.cpu.kernels.spans import ScanForm, forms, task_at, tasks_of
from ggmlpy.backends.cpu.kernels.types import rows_ok
from ggmlpy.backends.cpu.rows import share
from ggmlpy.backends.cpu.simd.arith import fma, quotient, splat_f32x16, zero_f32x16
from ggmlpy.backends.cpu.simd.gather import gather_f32x16
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16,
    load_f32x16_part,
    load_i32,
    store_f32,
    store_f32x16,
    store_f32x16_part,
)

CONV_ARGS = np.dtype([(name, TENSOR) for name in ("y", "x", "kernel")], align=True)
LISTED_ARGS = np.dtype([(name, TENSOR) for name in ("y", "x", "kernel", "taps")], align=True)
GLA = ("k", "v", "q", "g", "state")

_CHANNELS = 64  # of a task: few enough that threads can share a single token


def _rows(node: Any) -> bool:
    return all(rows_ok(source) for source in node.src)


@kernel("ssm_conv", ("f32", "f32"), args=CONV_ARGS, requires=_rows)
def ssm_conv_f32(p: Record, ith: Int, nth: Int) -> None:
    """y[c, t, s] = sum_k x[t + k, c, s] * kernel[k, c], k in order; 16 channels at a time."""
    n_taps = p.kernel.ne0
    n_blocks = n_segments(p.y.ne0, _CHANNELS)
    tasks = n_blocks * p.y.ne2
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        s = quotient(task, n_blocks)
        start = (task - s * n_blocks) * _CHANNELS
        end = min(start + _CHANNELS, p.y.ne0)
        for t in range(p.y.ne1):
            y = p.y.ptr + t * p.y.nb1 + s * p.y.nb2
            x = p.x.ptr + 4 * t + s * p.x.nb2
            whole = end - ((end - start) & 15)
            for c in range(start, whole, 16):
                total = zero_f32x16()
                for i in range(n_taps):
                    steps = gather_f32x16(x + 4 * i + c * p.x.nb1, p.x.nb1)
                    taps = gather_f32x16(p.kernel.ptr + 4 * i + c * p.kernel.nb1, p.kernel.nb1)
                    total = fma(steps, taps, total)
                store_f32x16(y + 4 * c, total)
            for c in range(whole, end):
                total_1 = np.float32(0)
                for i in range(n_taps):
                    step = load_f32(x + 4 * i + c * p.x.nb1)
                    total_1 = fma(step, load_f32(p.kernel.ptr + 4 * i + c * p.kernel.nb1), total_1)
                store_f32(y + 4 * c, total_1)


@inline
def first_bad_tap(p: Record, taps: Int) -> Int:
    """The number of the first tap of a token that is no column; n_taps where all are."""
    for i in range(p.kernel.ne0):
        column = load_i32(taps + 4 * i)
        if column < 0 or column >= p.x.ne1:
            return i
    return p.kernel.ne0


@kernel("ssm_conv", ("f32", "f32", "i32"), args=LISTED_ARGS, requires=_rows)
def ssm_conv_listed(p: Record, ith: Int, nth: Int) -> None:
    """y[c, t] = sum_k x[c, taps[k, t]] * kernel[k, c], k in order; 16 channels at a time."""
    n_taps = p.kernel.ne0
    n_blocks = n_segments(p.y.ne0, _CHANNELS)
    tasks = n_blocks * p.y.ne1
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        t = quotient(task, n_blocks)
        start = (task - t * n_blocks) * _CHANNELS
        taps, y = p.taps.ptr + t * p.taps.nb1, p.y.ptr + t * p.y.nb1
        bad = first_bad_tap(p, taps)
        if bad < n_taps:
            report(p, load_i32(taps + 4 * bad))
        else:
            end = min(start + _CHANNELS, p.y.ne0)
            whole = end - ((end - start) & 15)
            for c in range(start, whole, 16):
                total = zero_f32x16()
                weights = p.kernel.ptr + c * p.kernel.nb1
                for i in range(n_taps):
                    x = p.x.ptr + load_i32(taps + 4 * i) * p.x.nb1
                    weight = gather_f32x16(weights + 4 * i, p.kernel.nb1)
                    total = fma(load_f32x16(x + 4 * c), weight, total)
                store_f32x16(y + 4 * c, total)
            for c in range(whole, end):
                total_1 = np.float32(0)
                for i in range(n_taps):
                    x = p.x.ptr + load_i32(taps + 4 * i) * p.x.nb1
                    weight_1 = load_f32(p.kernel.ptr + 4 * i + c * p.kernel.nb1)
                    total_1 = fma(load_f32(x + 4 * c), weight_1, total_1)
                store_f32(y + 4 * c, total_1)


@inline
def step_state(state: Int, n: Int, k: Int, v: Int, q: Int, g: Int, y: Int, scale: Any) -> None:
    """One token: state[i, :] = state[i, :] * g[i] + k[i] * v, y = scale * sum_i state[i, :] * q[i].

    All are rows of n f32; i in order.
    """
    for j in range(0, n, 16):
        m = min(16, n - j)
        total = zero_f32x16()
        values = load_f32x16_part(v + 4 * j, m)
        for i in range(n):
            row = state + 4 * (i * n + j)
            s = load_f32x16_part(row, m) * load_f32(g + 4 * i)
            s = fma(values, splat_f32x16(load_f32(k + 4 * i)), s)
            store_f32x16_part(row, s, m)
            total = fma(s, splat_f32x16(load_f32(q + 4 * i)), total)
        store_f32x16_part(y + 4 * j, total * scale, m)


def _gated_linear_attn(form: ScanForm) -> None:
    part_of, sequences, takes_turns = form.part_of, form.sequences, form.in_turn
    former, new, done = form.old, form.new, form.done

    @kernel(
        form.op("gated_linear_attn"),
        form.types,
        args=form.args,
        name=form.named("gated_linear_attn"),
    )
    def gated_linear_attn(p: Record, ith: Int, nth: Int) -> None:
        """Heads of sequences, each by one thread, token by token; the state is worked on where it
        goes."""
        n, n_head, n_tokens, n_seq = p.k.ne0, p.k.ne1, p.k.ne2, sequences(p, p.state.ne1)
        head_bytes = 4 * n * n
        states = p.y.ptr + 4 * n * n_head * (p.y.ne1 - n * n_seq)
        in_turn = takes_turns(p, n_seq)
        begin, after = tasks_of(n_head, n_seq, in_turn, ith, nth)
        for task in range(begin, after):
            s, head = task_at(task, n_head, n_seq, in_turn)
            of_head, n_bytes = head * head_bytes, n_head * head_bytes
            kept = states + s * n_bytes + of_head
            before = former(p, s, n_bytes)
            state = new(p, s, in_turn, kept, of_head)
            first, n_own = part_of(p, s, n_tokens, n_seq)
            if before != 0 and state != before + of_head:
                copy_bytes(before + of_head, state, head_bytes)
            for t in range(first, first + (n_own if before != 0 else 0)):
                at = 4 * n * (t * n_head + head)
                k, v, q, g = p.k.ptr + at, p.v.ptr + at, p.q.ptr + at, p.g.ptr + at
                step_state(state, n, k, v, q, g, p.y.ptr + at, p.scale)
            done(p, s, n_seq, in_turn, kept, n_bytes, of_head, 1, head_bytes, head_bytes)


for _form in forms(GLA, [("scale", "f4")]):
    _gated_linear_attn(_form)
