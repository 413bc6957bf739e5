"""The selective scan of Mamba.

A task is _ROWS rows of the states of one sequence, all tokens one after another, so that its part
of the state (16 KiB for d_state 128) stays in the first level of cache: from memory every state is
read once, into memory it is written once, whatever the number of tokens.

Scratch memory of a thread: f32 [3, _ROWS], for the heads of a task (a head has one row or more)
A where it is one number, softplus(dt), and exp(softplus(dt) * A).
"""

from __future__ import annotations

from typing import Any

from ggmlpy.backends.cpu.kernel import Inline, Int, Record, inline, kernel, report
from ggmlpy.backends.cpu.kernels.copy import copy_bytes
from ggmlpy.backends.cpu.kernels.segments import n_segments
from ggmlpy.backends.cpu.kernels.spans import ScanForm, forms, task_at, tasks_of
from ggmlpy.backends.cpu.kernels.types import rows_ok
from ggmlpy.backends.cpu.kernels.unary import softplus
from ggmlpy.backends.cpu.simd.arith import fma, quotient, splat_f32x16, zero_f32x16
from ggmlpy.backends.cpu.simd.math import exp
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16,
    load_f32x16_part,
    load_i32,
    store_f32,
    store_f32x16,
    store_f32x16_part,
)
from ggmlpy.backends.cpu.simd.reduce import sum_lanes

SOURCES = ("s", "x", "dt", "A", "B", "C", "ids")
_ROWS = 32  # of a task: enough tasks for many threads, and 24 heads of 64 rows make 48
_RATES, _DECAYS = 4 * _ROWS, 8 * _ROWS  # where these begin in scratch memory


def _scratch_bytes(node: Any, n_threads: int) -> int:
    return 12 * _ROWS * n_threads


@inline
def clear_bytes(y: Int, n: Int) -> None:
    """n bytes of zeros, of f32."""
    for i in range(0, n, 64):
        if n - i >= 64:
            store_f32x16(y + i, zero_f32x16())
        else:
            store_f32x16_part(y + i, zero_f32x16(), quotient(n - i, 4))


@inline
def _rates(p: Record, dt: Int, n: Int, scratch: Int) -> None:
    """softplus(dt) and exp(softplus(dt) * A) of n heads."""
    for i in range(0, n, 16):
        m = min(16, n - i)
        rate = softplus(load_f32x16_part(dt + 4 * i, m))
        store_f32x16(scratch + _RATES + 4 * i, rate)
        if p.A.ne0 == 1:
            decay = exp(rate * load_f32x16_part(scratch + 4 * i, m))
            store_f32x16(scratch + _DECAYS + 4 * i, decay)


@inline
def _decay_of_head(a: Int, n: Int, rate: Any, decay: Any) -> Any:
    return splat_f32x16(decay)


@inline
def _decay_of_state(a: Int, n: Int, rate: Any, decay: Any) -> Any:
    if n == 16:
        return exp(load_f32x16(a) * rate)
    return exp(load_f32x16_part(a, n) * rate)


def _row_step(decay_of: Inline) -> Inline:
    @inline
    def row_step(
        src: Int, dst: Int, n: Int, b: Int, c: Int, a: Int, rate: Any, decay: Any, taken: Any
    ) -> Any:
        """dst = src * decay + taken * b; the sum of dst * c, by lanes and then a tree."""
        total = zero_f32x16()
        times = splat_f32x16(taken)
        for i in range(0, n, 16):
            at = 4 * i
            if n - i >= 16:
                factor = decay_of(a + at, 16, rate, decay)
                state = fma(load_f32x16(src + at), factor, load_f32x16(b + at) * times)
                store_f32x16(dst + at, state)
                total = fma(state, load_f32x16(c + at), total)
            else:
                m = n - i
                factor = decay_of(a + at, m, rate, decay)
                inflow = load_f32x16_part(b + at, m) * times
                state = fma(load_f32x16_part(src + at, m), factor, inflow)
                store_f32x16_part(dst + at, state, m)
                total = fma(state, load_f32x16_part(c + at, m), total)
        return sum_lanes(total)

    return row_step


def _scan(name: str, decay_of: Inline, requires: Any, form: ScanForm) -> None:
    row_step = _row_step(decay_of)
    part_of, is_listed = form.part_of, form.is_listed
    takes_turns, new, done = form.in_turn, form.new, form.done

    @inline
    def token_step(
        p: Record, seq: Int, t: Int, row: Int, end: Int, src: Int, dst: Int, scratch: Int
    ) -> None:
        """One token for rows of the states, from `src` (0: from where they are, `dst`) to `dst`."""
        n, size = p.s.ne0, p.s.ne1
        per_group = quotient(p.x.ne1, p.B.ne1)
        first = quotient(row, size)
        last = quotient(end - 1, size)
        _rates(p, p.dt.ptr + 4 * first + t * p.dt.nb1 + seq * p.dt.nb2, last + 1 - first, scratch)
        y = p.y.ptr + 4 * size * p.x.ne1 * (t + p.x.ne2 * seq)
        for head in range(first, last + 1):
            group = head if per_group == 1 else 0
            if per_group > 1 and p.B.ne1 > 1:
                group = quotient(head, per_group)
            b = p.B.ptr + group * p.B.nb1 + t * p.B.nb2 + seq * p.B.nb3
            c = p.C.ptr + group * p.C.nb1 + t * p.C.nb2 + seq * p.C.nb3
            x = p.x.ptr + head * p.x.nb1 + t * p.x.nb2 + seq * p.x.nb3
            rate = load_f32(scratch + _RATES + 4 * (head - first))
            decay = load_f32(scratch + _DECAYS + 4 * (head - first))
            a = p.A.ptr + head * p.A.nb1
            before = src + head * p.s.nb2
            for i in range(max(row, head * size), min(end, (head + 1) * size)):
                r = i - head * size
                at = dst + 4 * n * (i - row)
                old = before + r * p.s.nb1 if src != 0 else at
                taken = load_f32(x + 4 * r) * rate
                store_f32(y + 4 * i, row_step(old, at, n, b, c, a, rate, decay, taken))

    @kernel(
        form.op("ssm_scan"),
        form.types,
        args=form.args,
        requires=requires,
        name=form.named(name),
        scratch_bytes=_scratch_bytes,
    )
    def ssm_scan(p: Record, ith: Int, nth: Int) -> None:
        """Blocks of rows of states, each by one thread, token by token, worked on where they go."""
        n, size, n_head = p.s.ne0, p.s.ne1, p.s.ne2
        n_seq = p.ids.ne0
        rows = size * n_head
        n_parts = n_segments(rows, _ROWS)
        scratch = p.scratch + ith * 12 * _ROWS
        states = p.y.ptr + 4 * (p.y.ne0 - n * rows * n_seq * p.K)
        in_turn = takes_turns(p, n_seq)
        begin, after = tasks_of(n_parts, n_seq, in_turn, ith, nth)
        for task in range(begin, after):
            seq, part = task_at(task, n_parts, n_seq, in_turn)
            row = part * _ROWS
            end = min(row + _ROWS, rows)
            id = load_i32(p.ids.ptr + 4 * seq)
            if id < 0 or id >= p.s.ne3:
                report(p, id)
            else:
                first = quotient(row, size)
                for head in range(first, quotient(end - 1, size) + 1):
                    store_f32(scratch + 4 * (head - first), load_f32(p.A.ptr + head * p.A.nb1))
                kept = states + 4 * n * (row + rows * seq)
                dst = new(p, seq, in_turn, kept, 4 * n * row)
                n_bytes = 4 * n * (end - row)
                before = p.s.ptr + id * p.s.nb3
                first_t, n_tokens = part_of(p, seq, p.x.ne2, 1) if is_listed else (0, p.x.ne2)
                for t in range(n_tokens):
                    src = before if t == 0 else 0
                    at = 0 if is_listed else seq
                    token_step(p, at, first_t + t, row, end, src, dst, scratch)
                    slot = n_tokens - 1 - t
                    if 0 < slot < p.K:
                        copy_bytes(dst, dst + 4 * n * rows * n_seq * slot, n_bytes)
                for slot in range(n_tokens, p.K):
                    clear_bytes(dst + 4 * n * rows * n_seq * slot, n_bytes)
                done(p, seq, n_seq, in_turn, kept, 4 * n * rows, 4 * n * row, 1, n_bytes, n_bytes)


def _rows(node: Any) -> bool:
    return all(rows_ok(source) for source in node.src)


for _form in forms(SOURCES, [("K", "i8"), ("scratch", "i8")], ids=True):
    _scan(
        "ssm_scan_of_heads",
        _decay_of_head,
        lambda node: _rows(node) and node.src[3].ne[0] == 1,
        _form,
    )
    _scan(
        "ssm_scan_of_states",
        _decay_of_state,
        lambda node: _rows(node) and node.src[3].ne[0] != 1,
        _form,
    )
