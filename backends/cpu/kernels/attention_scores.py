"""First stage of attention: q in scratch memory, and the scores of visible cells.

score = softcap(scale * q.k) + slope * mask
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import Inline, Int, Record, inline
from ggmlpy.backends.cpu.kernels.attention_cells import (
    Ahead,
    Group,
    Heads,
    head_bytes,
    prefetch_rows,
)
from ggmlpy.backends.cpu.kernels.attention_memory import (
    FOLD_BYTES,
    GROUP,
    SUBGROUP,
    Scratch,
    padded_bytes,
)
from ggmlpy.backends.cpu.kernels.attention_readers import Variant, convert_rows
from ggmlpy.backends.cpu.kernels.attention_tasks import Task
from ggmlpy.backends.cpu.kernels.dequantize import read_f32
from ggmlpy.backends.cpu.simd.arith import (
    fma,
    iota_i32x16,
    less,
    quotient,
    select,
    splat_i32x16,
    zero_f32x16,
)
from ggmlpy.backends.cpu.simd.block import add_products, load_addresses, store_folds
from ggmlpy.backends.cpu.simd.math import tanh
from ggmlpy.backends.cpu.simd.memory import load_f32, load_f32x16, store_f32x16
from ggmlpy.backends.cpu.simd.reduce import fold16
from ggmlpy.backends.cpu.simd.tile import tile_f32x16

_NEVER = float("-inf")


@inline
def load_queries(p: Record, q: Int, head_rows: Int, task: Task) -> None:
    """The task's heads of q into scratch memory, padded with zeros to whole vectors."""
    n_shared = quotient(p.q.ne2, p.k.ne2)
    d_bytes = padded_bytes(p.k.ne0)
    for i in range(task.n_kv):
        at = p.q.ptr + task.query * p.q.nb1 + task.sequence * p.q.nb3
        at += ((task.first_kv + i) * n_shared + task.first_head) * p.q.nb2
        for h in range(task.n_heads):
            row = q + (i * head_rows + h) * d_bytes
            store_f32x16(row + d_bytes - 64, zero_f32x16())
            read_f32(at + h * p.q.nb2, row, p.q.ne0)


@inline
def scaled(p: Record, products: Any) -> Any:
    """Scores before masks, of products q.k."""
    s = products * p.scale
    if p.logit_softcap != 0:
        s = tanh(s / p.logit_softcap) * p.logit_softcap
    return s


def scores_stage(variant: Variant) -> Inline:
    """The function `score`, which writes the scores of up to 16 cells for the heads that share a
    head of K."""
    n_heads = variant.n_heads
    n_keys = variant.n_accumulators // n_heads
    converts = variant.reader.converts
    dots = _dots(variant, n_keys)
    finish = _finish(n_heads)

    @inline
    def score(
        p: Record, k: Int, scratch: Scratch, heads: Heads, group: Group, ahead: Ahead
    ) -> None:
        """`k` is the address of the head of K."""
        n_here, d_bytes = min(SUBGROUP, group.n_cells - group.first), padded_bytes(p.k.ne0)
        base, offsets = k, scratch.k_rows + 8 * group.first
        if converts:
            convert_rows(p.k_type, k, offsets, n_here, scratch.f32_rows, p.k.ne0)
            base, offsets = scratch.f32_rows, scratch.k_f32
        for h in range(0, heads.n, n_heads):
            for key in range(0, n_here, n_keys):
                if h == 0:
                    prefetch_rows(ahead, key, n_keys, 0, head_bytes(p.k))
                q = scratch.q + (heads.row + h) * d_bytes
                dots(q, d_bytes, base, offsets + 8 * key, scratch.folds + 16 * key)
            slopes = 0 if p.slopes == 0 else p.slopes + 4 * (heads.first + h)
            at = scratch.weights + 4 * (GROUP * (heads.row + h) + group.first)
            finish(p, scratch.folds, scratch.bias + 4 * group.first, at, slopes, n_here)

    return score


def _dots(variant: Variant, n_keys: int) -> Inline:
    n_heads, n_accumulators = variant.n_heads, variant.n_accumulators
    vector_bytes = variant.reader.vector_bytes
    multiply = add_products(variant.reader.load)

    @inline
    def dots(q: Int, q_bytes: Int, k: Int, offsets: Int, folds: Int) -> None:
        """q.k of n_keys rows, n_heads heads, partly reduced: head h to folds + h * FOLD_BYTES."""
        sums = tile_f32x16(n_accumulators)
        rows = load_addresses(k, offsets, n_keys)
        at = 0
        for d in range(0, q_bytes, 64):
            sums = multiply(sums, q + d, q_bytes, rows, at, n_heads)
            at += vector_bytes
        store_folds(sums, folds, FOLD_BYTES, n_heads)

    return dots


def _finish(n_heads: int) -> Inline:
    @inline
    def finish(p: Record, folds: Int, bias: Int, scores: Int, slopes: Int, n_cells: Int) -> None:
        """Scores of up to 16 cells for a block of heads from their folds; -inf up to 16."""
        exists = less(iota_i32x16(), splat_i32x16(n_cells))
        for h in range(n_heads):
            at = folds + FOLD_BYTES * h
            a, b = load_f32x16(at), load_f32x16(at + 64)
            s = scaled(p, fold16(a, b, load_f32x16(at + 128), load_f32x16(at + 192)))
            if p.mask.ptr != 0:
                slope = np.float32(1) if slopes == 0 else load_f32(slopes + 4 * h)
                s = fma(load_f32x16(bias), slope, s)
            store_f32x16(scores + 4 * GROUP * h, select(exists, s, _NEVER))

    return finish
