"""Third stage of attention: weighted sums of rows of V, in the order of the visible cells."""

from __future__ import annotations

from ggmlpy.backends.cpu.kernel import Inline, Int, Record, inline
from ggmlpy.backends.cpu.kernels.attention_cells import (
    Ahead,
    Group,
    Heads,
    head_bytes,
    prefetch_rows,
)
from ggmlpy.backends.cpu.kernels.attention_memory import (
    GROUP,
    SUBGROUP,
    Scratch,
    State,
    padded_bytes,
)
from ggmlpy.backends.cpu.kernels.attention_readers import Variant, convert_rows
from ggmlpy.backends.cpu.simd.block import add_scaled, load_block, store_block
from ggmlpy.backends.cpu.simd.memory import load_i64

_COLUMNS = 4  # vectors of a row of V that are summed side by side


def values_stage(variant: Variant) -> Inline:
    """The function `add`, which adds rows of V to the sums of the heads that share a head of V."""
    n_heads, converts = variant.n_heads, variant.reader.converts
    add_values = _add_values(variant)

    @inline
    def add(
        p: Record,
        v: Int,
        scratch: Scratch,
        state: State,
        heads: Heads,
        group: Group,
        n: Int,
        ahead: Ahead,
    ) -> None:
        """`n` rows; `v` is the address of the head of V."""
        dv_bytes = padded_bytes(p.v.ne0)
        base, offsets = v, scratch.v_rows + 8 * group.first
        if converts:
            prefetch_rows(ahead, 0, SUBGROUP, 0, head_bytes(p.v))
            convert_rows(p.v_type, v, offsets, n, scratch.f32_rows, p.v.ne0)
            base, offsets = scratch.f32_rows, scratch.v_f32
        for h in range(0, heads.n, n_heads):
            # Prefetched with the products of the first heads only.
            n_ahead = 0 if converts or h > 0 else ahead.n
            rows_ahead = Ahead(
                ahead.base, ahead.stride, ahead.head_stride, ahead.n_heads,
                ahead.cells, n_ahead, ahead.done,
            )  # fmt: skip
            acc = state.acc + (heads.row + h) * dv_bytes
            weights = scratch.weights + 4 * (GROUP * (heads.row + h) + group.first)
            add_values(weights, base, offsets, acc, dv_bytes, n, rows_ahead)

    return add


def _add_values(variant: Variant) -> Inline:
    vector_bytes = variant.reader.vector_bytes
    add_wide, add_narrow = _add_columns(variant, _COLUMNS), _add_columns(variant, 1)

    @inline
    def add_values(
        weights: Int, v: Int, offsets: Int, acc: Int, acc_bytes: Int, n_cells: Int, ahead: Ahead
    ) -> None:
        """acc += weights * V of n_heads heads: by blocks of columns, cells in order."""
        wide = acc_bytes & -(64 * _COLUMNS)
        at = 0
        for d in range(0, wide, 64 * _COLUMNS):
            add_wide(weights, v + at, offsets, acc + d, acc_bytes, n_cells, ahead, at)
            at += vector_bytes * _COLUMNS
        for d in range(wide, acc_bytes, 64):
            add_narrow(weights, v + at, offsets, acc + d, acc_bytes, n_cells, ahead, at)
            at += vector_bytes

    return add_values


def _add_columns(variant: Variant, n_columns: int) -> Inline:
    n_heads, vector_bytes = variant.n_heads, variant.reader.vector_bytes
    scale = add_scaled(variant.reader.load, vector_bytes)
    column_bytes = n_columns * vector_bytes

    @inline
    def add(
        weights: Int,
        v: Int,
        offsets: Int,
        acc: Int,
        acc_bytes: Int,
        n_cells: Int,
        ahead: Ahead,
        at: Int,
    ) -> None:
        """acc += weights * n_columns vectors of rows of V; they are `at` bytes into each row."""
        sums = load_block(acc, acc_bytes, n_heads, n_columns)
        for j in range(n_cells):
            row = v + load_i64(offsets + 8 * j)
            prefetch_rows(ahead, j, 1, at, at + column_bytes)
            sums = scale(sums, row, weights + 4 * j, 4 * GROUP, n_heads)
        store_block(sums, acc, acc_bytes, n_heads)

    return add
