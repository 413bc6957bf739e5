"""Linear attention with a matrix for each head: RWKV-6 and -7, and the gated delta rule.

A task is a part of one head's state in one sequence, all tokens one after another, so that it stays
in the first level of cache: from memory every state is read once, into memory it is written once.
The parts are columns where sums run along the rows (RWKV-6), and rows where they run along a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import Inline, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.copy import copy_bytes
from ggmlpy.backends.cpu.kernels.scan import clear_bytes
from ggmlpy.backends.cpu.kernels.segments import n_segments
from ggmlpy.backends.cpu.kernels.spans import ScanForm, forms, task_at, tasks_of
from ggmlpy.backends.cpu.simd.arith import (
    fma,
    quotient,
    remainder,
    splat_f32x16,
    sqrt,
    zero_f32x16,
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
from ggmlpy.backends.cpu.simd.reduce import sum_lanes

WKV6 = ("k", "v", "r", "tf", "td", "state")
WKV7 = ("r", "w", "k", "v", "a", "b", "state")
DELTA = ("q", "k", "v", "g", "beta", "state")
_DELTA_FIELDS = [("K", "i8"), ("scratch", "i8")]
_ROWS = 32  # of a task
_COLUMNS = 64  # of a task, or 16 where that makes too few for the threads


@inline
def wkv6_vector(
    src: Int, dst: Int, n: Int, m: Int, k: Int, v: Int, r: Int, tf: Int, td: Int, y: Int
) -> None:
    """One token for m <= 16 columns of a state of n rows of n; i in order."""
    values = load_f32x16_part(v, m)
    total = zero_f32x16()
    for i in range(n):
        at = 4 * n * i
        kv = values * load_f32(k + 4 * i)
        state = load_f32x16_part(src + at, m)
        seen = fma(kv, splat_f32x16(load_f32(tf + 4 * i)), state)
        total = fma(seen, splat_f32x16(load_f32(r + 4 * i)), total)
        store_f32x16_part(dst + at, fma(state, splat_f32x16(load_f32(td + 4 * i)), kv), m)
    store_f32x16_part(y, total, m)


@inline
def wkv6_vectors(
    src: Int, dst: Int, n: Int, k: Int, v: Int, r: Int, tf: Int, td: Int, y: Int
) -> None:
    """As wkv6_vector for 64 columns: whole cache lines, and the same bits."""
    v0, v1 = load_f32x16(v), load_f32x16(v + 64)
    v2, v3 = load_f32x16(v + 128), load_f32x16(v + 192)
    t0, t1, t2, t3 = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
    for i in range(n):
        x, z = src + 4 * n * i, dst + 4 * n * i
        key, read = splat_f32x16(load_f32(k + 4 * i)), splat_f32x16(load_f32(r + 4 * i))
        bonus, decay = splat_f32x16(load_f32(tf + 4 * i)), splat_f32x16(load_f32(td + 4 * i))
        s0, s1 = load_f32x16(x), load_f32x16(x + 64)
        s2, s3 = load_f32x16(x + 128), load_f32x16(x + 192)
        kv0, kv1, kv2, kv3 = v0 * key, v1 * key, v2 * key, v3 * key
        t0, t1 = fma(fma(kv0, bonus, s0), read, t0), fma(fma(kv1, bonus, s1), read, t1)
        t2, t3 = fma(fma(kv2, bonus, s2), read, t2), fma(fma(kv3, bonus, s3), read, t3)
        store_f32x16(z, fma(s0, decay, kv0))
        store_f32x16(z + 64, fma(s1, decay, kv1))
        store_f32x16(z + 128, fma(s2, decay, kv2))
        store_f32x16(z + 192, fma(s3, decay, kv3))
    store_f32x16(y, t0)
    store_f32x16(y + 64, t1)
    store_f32x16(y + 128, t2)
    store_f32x16(y + 192, t3)


def _wkv6(form: ScanForm) -> None:
    part_of, sequences, takes_turns = form.part_of, form.sequences, form.in_turn
    former, new, done = form.old, form.new, form.done

    @kernel(form.op("rwkv_wkv6"), form.types, args=form.args, name=form.named("rwkv_wkv6"))
    def rwkv_wkv6(p: Record, ith: Int, nth: Int) -> None:
        """Columns of heads of sequences, token by token; the state is worked on where it goes."""
        n, n_head, n_tokens, n_seq = p.k.ne0, p.k.ne1, p.k.ne2, sequences(p, p.state.ne1)
        width = _COLUMNS if n_head * n_seq >= 2 * nth else 16
        n_blocks = n_segments(n, width)
        n_parts, n_bytes = n_head * n_blocks, 4 * n * n * n_head
        states = p.y.ptr + 4 * n * n_head * (p.y.ne1 - n * n_seq)
        in_turn = takes_turns(p, n_seq)
        begin, after = tasks_of(n_parts, n_seq, in_turn, ith, nth)
        for task in range(begin, after):
            s, part = task_at(task, n_parts, n_seq, in_turn)
            head = quotient(part, n_blocks)
            column = (part - head * n_blocks) * width
            end = min(column + width, n)
            state = 4 * head * n * n
            kept = states + s * n_bytes + state
            before = former(p, s, n_bytes)
            old = before + state
            dst = new(p, s, in_turn, kept, state)
            first, n_own = part_of(p, s, n_tokens, n_seq)
            tf = p.tf.ptr + 4 * n * head
            for t in range(first, first + (n_own if before != 0 else 0)):
                at = 4 * n * (t * n_head + head)
                k, v, r, td = p.k.ptr + at, p.v.ptr + at, p.r.ptr + at, p.td.ptr + at
                y = p.y.ptr + at
                src = old if t == first else dst
                j = 4 * column
                if end - column == _COLUMNS:
                    wkv6_vectors(src + j, dst + j, n, k, v + j, r, tf, td, y + j)
                else:
                    for c in range(column, end, 16):
                        j = 4 * c
                        m = min(16, end - c)
                        wkv6_vector(src + j, dst + j, n, m, k, v + j, r, tf, td, y + j)
            j = 4 * column
            row_bytes, of_row = 4 * n, 4 * (end - column)
            done(p, s, n_seq, in_turn, kept + j, n_bytes, state + j, n, row_bytes, of_row)


for _form in forms(WKV6):
    _wkv6(_form)


@inline
def dot(x: Int, y: Int, n: Int) -> Any:
    """The sum of x * y, by lanes and then a tree."""
    total = zero_f32x16()
    for i in range(0, n, 16):
        if n - i >= 16:
            total = fma(load_f32x16(x + 4 * i), load_f32x16(y + 4 * i), total)
        else:
            m = n - i
            total = fma(load_f32x16_part(x + 4 * i, m), load_f32x16_part(y + 4 * i, m), total)
    return sum_lanes(total)


@inline
def wkv7_part(
    src: Int, dst: Int, m: Int, w: Int, k: Int, b: Int, r: Int, v: Any, sa: Any, total: Any
) -> Any:
    """dst = src * w + v * k + sa * b for m <= 16 elements; total + dst * r."""
    if m == 16:
        taken = fma(load_f32x16(b), sa, load_f32x16(k) * v)
        state = fma(load_f32x16(src), load_f32x16(w), taken)
        store_f32x16(dst, state)
        return fma(state, load_f32x16(r), total)
    taken = fma(load_f32x16_part(b, m), sa, load_f32x16_part(k, m) * v)
    state = fma(load_f32x16_part(src, m), load_f32x16_part(w, m), taken)
    store_f32x16_part(dst, state, m)
    return fma(state, load_f32x16_part(r, m), total)


@inline
def wkv7_rows(
    src: Int, dst: Int, n: Int, w: Int, k: Int, v: Int, a: Int, b: Int, r: Int, y: Int
) -> None:
    """A token for four rows of whole vectors, so that the vectors of the token are read once."""
    x1, x2, x3 = src + 4 * n, src + 8 * n, src + 12 * n
    z1, z2, z3 = dst + 4 * n, dst + 8 * n, dst + 12 * n
    t0, t1, t2, t3 = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
    for at in range(0, 4 * n, 64):
        read = load_f32x16(a + at)
        t0 = fma(load_f32x16(src + at), read, t0)
        t1 = fma(load_f32x16(x1 + at), read, t1)
        t2 = fma(load_f32x16(x2 + at), read, t2)
        t3 = fma(load_f32x16(x3 + at), read, t3)
    a0, a1 = splat_f32x16(sum_lanes(t0)), splat_f32x16(sum_lanes(t1))
    a2, a3 = splat_f32x16(sum_lanes(t2)), splat_f32x16(sum_lanes(t3))
    v0, v1 = splat_f32x16(load_f32(v)), splat_f32x16(load_f32(v + 4))
    v2, v3 = splat_f32x16(load_f32(v + 8)), splat_f32x16(load_f32(v + 12))
    t0, t1, t2, t3 = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
    for at in range(0, 4 * n, 64):
        decay, key = load_f32x16(w + at), load_f32x16(k + at)
        back, query = load_f32x16(b + at), load_f32x16(r + at)
        s0 = fma(load_f32x16(src + at), decay, fma(back, a0, key * v0))
        s1 = fma(load_f32x16(x1 + at), decay, fma(back, a1, key * v1))
        s2 = fma(load_f32x16(x2 + at), decay, fma(back, a2, key * v2))
        s3 = fma(load_f32x16(x3 + at), decay, fma(back, a3, key * v3))
        store_f32x16(dst + at, s0)
        store_f32x16(z1 + at, s1)
        store_f32x16(z2 + at, s2)
        store_f32x16(z3 + at, s3)
        t0, t1 = fma(s0, query, t0), fma(s1, query, t1)
        t2, t3 = fma(s2, query, t2), fma(s3, query, t3)
    store_f32(y, sum_lanes(t0))
    store_f32(y + 4, sum_lanes(t1))
    store_f32(y + 8, sum_lanes(t2))
    store_f32(y + 12, sum_lanes(t3))


def _wkv7(form: ScanForm) -> None:
    part_of, sequences, takes_turns = form.part_of, form.sequences, form.in_turn
    former, new, done = form.old, form.new, form.done

    @kernel(form.op("rwkv_wkv7"), form.types, args=form.args, name=form.named("rwkv_wkv7"))
    def rwkv_wkv7(p: Record, ith: Int, nth: Int) -> None:
        """Rows of heads of sequences, token by token; the state is worked on where it goes."""
        n, n_head, n_tokens, n_seq = p.k.ne0, p.k.ne1, p.k.ne2, sequences(p, p.state.ne1)
        n_blocks = n_segments(n, _ROWS)
        n_parts, n_bytes = n_head * n_blocks, 4 * n * n * n_head
        states = p.y.ptr + 4 * n * n_head * (p.y.ne1 - n * n_seq)
        in_turn = takes_turns(p, n_seq)
        begin, after = tasks_of(n_parts, n_seq, in_turn, ith, nth)
        for task in range(begin, after):
            s, part = task_at(task, n_parts, n_seq, in_turn)
            head = quotient(part, n_blocks)
            row = (part - head * n_blocks) * _ROWS
            end = min(row + _ROWS, n)
            of_part, part_bytes = 4 * n * (head * n + row), 4 * n * (end - row)
            kept = states + s * n_bytes + of_part
            before = former(p, s, n_bytes)
            made = new(p, s, in_turn, kept, of_part)
            first, n_own = part_of(p, s, n_tokens, n_seq)
            for t in range(first, first + (n_own if before != 0 else 0)):
                at = 4 * n * (t * n_head + head)
                w, k, b, r = p.w.ptr + at, p.k.ptr + at, p.b.ptr + at, p.r.ptr + at
                start = before + of_part if t == first else made
                fours = row + ((end - row) & -4) if n & 15 == 0 else row
                for i in range(row, fours, 4):
                    j, o = 4 * n * (i - row), at + 4 * i
                    src, dst = start + j, made + j
                    wkv7_rows(src, dst, n, w, k, p.v.ptr + o, p.a.ptr + at, b, r, p.y.ptr + o)
                for i in range(fours, end):
                    j = 4 * n * (i - row)
                    src, dst = start + j, made + j
                    sa = splat_f32x16(dot(src, p.a.ptr + at, n))
                    v = splat_f32x16(load_f32(p.v.ptr + at + 4 * i))
                    total = zero_f32x16()
                    for j in range(0, n, 16):
                        o, m = 4 * j, min(16, n - j)
                        total = wkv7_part(
                            src + o, dst + o, m, w + o, k + o, b + o, r + o, v, sa, total
                        )
                    store_f32(p.y.ptr + at + 4 * i, sum_lanes(total))
            done(p, s, n_seq, in_turn, kept, n_bytes, of_part, 1, part_bytes, part_bytes)


for _form in forms(WKV7):
    _wkv7(_form)


def _delta_scratch_bytes(node: Any, n_threads: int) -> int:
    """The gates of a token, for each thread."""
    return int(4 * (node.src[2].ne[0] + 15) * n_threads)


@inline
def _gate_of_head(gates: Int, m: Int, gate: Any) -> Any:
    return gate


@inline
def _gate_of_element(gates: Int, m: Int, gate: Any) -> Any:
    return load_f32x16_part(gates, m) if m < 16 else load_f32x16(gates)


def _delta_net(name: str, gate_of: Inline, requires: Any, form: ScanForm) -> None:
    part_of, is_listed = form.part_of, form.is_listed
    sequences, takes_turns = form.sequences, form.in_turn
    former, new, done = form.old, form.new, form.done

    @inline
    def row_step(
        src: Int, dst: Int, n: Int, gates: Int, gate: Any, k: Int, q: Int, v: Any, beta: Any
    ) -> Any:
        """A token for row j: dst = src * gate + k * delta[j]; the sum of dst * q."""
        total = zero_f32x16()
        for i in range(0, n, 16):
            at = 4 * i
            if n - i >= 16:
                state = load_f32x16(src + at) * gate_of(gates + at, 16, gate)
                total = fma(state, load_f32x16(k + at), total)
            else:
                m = n - i
                state = load_f32x16_part(src + at, m) * gate_of(gates + at, m, gate)
                total = fma(state, load_f32x16_part(k + at, m), total)
        delta = splat_f32x16((v - sum_lanes(total)) * beta)
        total = zero_f32x16()
        for i in range(0, n, 16):
            at = 4 * i
            if n - i >= 16:
                state = load_f32x16(src + at) * gate_of(gates + at, 16, gate)
                state = fma(load_f32x16(k + at), delta, state)
                store_f32x16(dst + at, state)
                total = fma(state, load_f32x16(q + at), total)
            else:
                m = n - i
                state = load_f32x16_part(src + at, m) * gate_of(gates + at, m, gate)
                state = fma(load_f32x16_part(k + at, m), delta, state)
                store_f32x16_part(dst + at, state, m)
                total = fma(state, load_f32x16_part(q + at, m), total)
        return sum_lanes(total)

    @inline
    def four_rows(
        src: Int, dst: Int, n: Int, gates: Int, gate: Any, k: Int, q: Int, v: Int, beta: Any
    ) -> Any:
        """As row_step for four rows of whole vectors, so that k, q and gates are read once."""
        x1, x2, x3 = src + 4 * n, src + 8 * n, src + 12 * n
        z1, z2, z3 = dst + 4 * n, dst + 8 * n, dst + 12 * n
        t0, t1, t2, t3 = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
        for at in range(0, 4 * n, 64):
            factor, key = gate_of(gates + at, 16, gate), load_f32x16(k + at)
            t0 = fma(load_f32x16(src + at) * factor, key, t0)
            t1 = fma(load_f32x16(x1 + at) * factor, key, t1)
            t2 = fma(load_f32x16(x2 + at) * factor, key, t2)
            t3 = fma(load_f32x16(x3 + at) * factor, key, t3)
        d0 = splat_f32x16((load_f32(v) - sum_lanes(t0)) * beta)
        d1 = splat_f32x16((load_f32(v + 4) - sum_lanes(t1)) * beta)
        d2 = splat_f32x16((load_f32(v + 8) - sum_lanes(t2)) * beta)
        d3 = splat_f32x16((load_f32(v + 12) - sum_lanes(t3)) * beta)
        t0, t1, t2, t3 = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
        for at in range(0, 4 * n, 64):
            factor, key = gate_of(gates + at, 16, gate), load_f32x16(k + at)
            query = load_f32x16(q + at)
            s0 = fma(key, d0, load_f32x16(src + at) * factor)
            s1 = fma(key, d1, load_f32x16(x1 + at) * factor)
            s2 = fma(key, d2, load_f32x16(x2 + at) * factor)
            s3 = fma(key, d3, load_f32x16(x3 + at) * factor)
            store_f32x16(dst + at, s0)
            store_f32x16(z1 + at, s1)
            store_f32x16(z2 + at, s2)
            store_f32x16(z3 + at, s3)
            t0, t1 = fma(s0, query, t0), fma(s1, query, t1)
            t2, t3 = fma(s2, query, t2), fma(s3, query, t3)
        return sum_lanes(t0), sum_lanes(t1), sum_lanes(t2), sum_lanes(t3)

    @inline
    def token_step(
        p: Record, head: Int, s: Int, t: Int, row: Int, end: Int, src: Int, dst: Int, gates: Int
    ) -> None:
        """A token for some rows of a head's state, from `src` to `dst`."""
        n, n_head = p.v.ne0, p.v.ne1
        which = head + n_head * (t + p.v.ne2 * s)
        q = p.q.ptr + remainder(head, p.q.ne1) * p.q.nb1 + t * p.q.nb2
        q += quotient(s * p.q.ne3, p.v.ne3) * p.q.nb3
        k = p.k.ptr + remainder(head, p.k.ne1) * p.k.nb1 + t * p.k.nb2
        k += quotient(s * p.k.ne3, p.v.ne3) * p.k.nb3
        v = p.v.ptr + head * p.v.nb1 + t * p.v.nb2 + s * p.v.nb3
        beta = load_f32(p.beta.ptr + 4 * which)
        g = p.g.ptr + 4 * p.g.ne0 * which
        gate = splat_f32x16(load_f32(g))
        if p.g.ne0 == 1:
            gate = exp(gate)
        else:
            for i in range(0, n, 16):
                store_f32x16(gates + 4 * i, exp(load_f32x16_part(g + 4 * i, min(16, n - i))))
        scale = np.float32(1) / sqrt(np.float32(n))
        fours = row + ((end - row) & -4) if n & 15 == 0 else row
        for j in range(row, fours, 4):
            at = 4 * n * (j - row)
            sums = four_rows(src + at, dst + at, n, gates, gate, k, q, v + 4 * j, beta)
            y = p.y.ptr + 4 * (n * which + j)
            store_f32(y, sums[0] * scale)
            store_f32(y + 4, sums[1] * scale)
            store_f32(y + 8, sums[2] * scale)
            store_f32(y + 12, sums[3] * scale)
        for j in range(fours, end):
            at = 4 * n * (j - row)
            value = load_f32(v + 4 * j)
            y = row_step(src + at, dst + at, n, gates, gate, k, q, value, beta)
            store_f32(p.y.ptr + 4 * (n * which + j), y * scale)

    @kernel(
        form.op("gated_delta_net"),
        form.types,
        args=form.args,
        requires=requires,
        name=form.named(name),
        scratch_bytes=_delta_scratch_bytes,
    )
    def gated_delta_net(p: Record, ith: Int, nth: Int) -> None:
        """Rows of heads of sequences, token by token; the state is worked on where it goes."""
        n, n_head, n_seq = p.v.ne0, p.v.ne1, sequences(p, p.state.ne3)
        n_blocks = n_segments(n, _ROWS)
        n_parts, n_bytes = n_head * n_blocks, 4 * n * n * n_head
        states = p.y.ptr + 4 * n * n_head * (p.y.ne1 - p.K * n * n_seq)
        stride = n_bytes * n_seq  # from one copy of the states to the next
        gates = p.scratch + ith * 4 * (n + 15)
        in_turn = takes_turns(p, n_seq)
        begin, after = tasks_of(n_parts, n_seq, in_turn, ith, nth)
        for task in range(begin, after):
            s, part = task_at(task, n_parts, n_seq, in_turn)
            head = quotient(part, n_blocks)
            row = (part - head * n_blocks) * _ROWS
            end = min(row + _ROWS, n)
            at, part_bytes = 4 * n * (n * head + row), 4 * n * (end - row)
            kept = states + s * n_bytes + at
            before = former(p, s, n_bytes)
            dst = new(p, s, in_turn, kept, at)
            first, n_tokens = part_of(p, s, p.v.ne2, 1) if is_listed else (0, p.v.ne2)
            for t in range(n_tokens if before != 0 else 0):
                src = before + at if t == 0 else dst
                token_step(p, head, 0 if is_listed else s, first + t, row, end, src, dst, gates)
                slot = n_tokens - 1 - t
                if 0 < slot < p.K:
                    copy_bytes(dst, dst + stride * slot, part_bytes)
            for slot in range(n_tokens, p.K):
                clear_bytes(dst + stride * slot, part_bytes)
            done(p, s, n_seq, in_turn, kept, n_bytes, at, 1, part_bytes, part_bytes)


for _form in forms(DELTA, _DELTA_FIELDS):
    _delta_net(
        "gated_delta_net_of_heads", _gate_of_head, lambda node: node.src[3].ne[0] == 1, _form
    )
    _delta_net(
        "gated_delta_net_of_elements", _gate_of_element, lambda node: node.src[3].ne[0] != 1, _form
    )
