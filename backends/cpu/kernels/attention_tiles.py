"""The three stages of attention for a tile: a few rows, and a group of cells that they share.

A row is a query with one of the heads that share a head of K. The group's rows of K lie transposed
in scratch memory, so that 16 cells are the lanes of a vector, and a number of q is multiplied with
all of them; those of V lie as they are.
"""

from __future__ import annotations

from typing import NamedTuple

from ggmlpy.backends.cpu.kernel import Inline, Int, Record, inline
from ggmlpy.backends.cpu.kernels.attention_memory import (
    GROUP,
    KEY_BYTES,
    ROW_BYTES,
    Scratch,
    State,
    padded_bytes,
)
from ggmlpy.backends.cpu.kernels.attention_readers import TileShape
from ggmlpy.backends.cpu.kernels.attention_scores import scaled
from ggmlpy.backends.cpu.simd.arith import (
    equal,
    iota_i32x16,
    less,
    maximum,
    select,
    splat_i32x16,
)
from ggmlpy.backends.cpu.simd.block import add_scaled, load_block, store_block
from ggmlpy.backends.cpu.simd.columns import sum_halved
from ggmlpy.backends.cpu.simd.math import exp
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16,
    load_f32x16_part,
    load_i64,
    store_f32,
    store_f32x16,
    store_f32x16_part,
)
from ggmlpy.backends.cpu.simd.product import add_tiles
from ggmlpy.backends.cpu.simd.reduce import max_lanes
from ggmlpy.backends.cpu.simd.tile import tile_f32x16

STRIP = 16  # rows whose scores are computed before their weights: a vector of maxima
_NEVER = float("-inf")
_add_scaled = add_scaled(load_f32x16, 64)


class Tile(NamedTuple):
    """Rows, and what they see of a group."""

    row: Int  # the first one
    n: Int
    weights: Int  # the address of their scores, then weights
    shift: Int  # the first cell that they see, counted from the group's first
    first: Int  # the rank of that cell
    least: Int  # cells that all of them see
    most: Int  # cells that any of them sees


@inline
def n_seen(scratch: Scratch, row: Int, first: Int) -> Int:
    """Cells that a row sees of a group, from its cell of rank `first` on."""
    return max(0, min(GROUP, load_i64(scratch.rows + ROW_BYTES * row + 8) - first))


def tile_scores(shape: TileShape) -> Inline:
    """The function `score`, which writes the scores of a tile's rows, -inf for cells that they do
    not see."""
    n_rows, n_keys = shape.n_rows, shape.n_keys
    multiply = _multiply(shape)
    width = 16 * n_keys  # cells that are multiplied at a time
    block_bytes = 64 * n_keys * n_rows

    @inline
    def score(p: Record, scratch: Scratch, tile: Tile) -> None:
        d_bytes = padded_bytes(p.k.ne0)
        q, keys = scratch.q + tile.row * d_bytes, scratch.keys + 4 * tile.shift
        scores = tile.weights
        for i in range(0, tile.most, width):
            multiply(q, d_bytes, keys + 4 * i, scratch.sums)
            for r in range(n_rows):
                for c in range(n_keys):
                    products = sum_halved(scratch.sums + 64 * (n_keys * r + c), block_bytes)
                    at = scores + 4 * (GROUP * r + i) + 64 * c
                    store_f32x16(at, scaled(p, products))
        if tile.least < GROUP:
            for r in range(n_rows):
                hide(scores + 4 * GROUP * r, n_seen(scratch, tile.row + r, tile.first))

    return score


@inline
def hide(scores: Int, n: Int) -> None:
    """-inf from the n-th of a group's scores on."""
    for i in range(0, GROUP, 16):
        exists = less(iota_i32x16(), splat_i32x16(n - i))
        store_f32x16(scores + 4 * i, select(exists, load_f32x16(scores + 4 * i), _NEVER))


def _multiply(shape: TileShape) -> Inline:
    n_rows, n_keys = shape.n_rows, shape.n_keys
    n_sums = n_rows * n_keys

    @inline
    def multiply(q: Int, q_bytes: Int, keys: Int, sums: Int) -> None:
        """Products of n_rows rows of q with n_keys vectors of cells. Block j, of 8, has the sums
        over elements j, j + 16, ..., plus those over elements j + 8, j + 24, ..."""
        wide = q_bytes & -256
        for j in range(8):
            low, high = tile_f32x16(n_sums), tile_f32x16(n_sums)
            x, k = q + 4 * j, keys + KEY_BYTES * j
            for _ in range(0, wide, 256):
                for _ in range(4):
                    low = _add_scaled(low, k, x, q_bytes, n_rows)
                    high = _add_scaled(high, k + 8 * KEY_BYTES, x + 32, q_bytes, n_rows)
                    x, k = x + 64, k + 16 * KEY_BYTES
            for _ in range(wide, q_bytes, 64):
                low = _add_scaled(low, k, x, q_bytes, n_rows)
                high = _add_scaled(high, k + 8 * KEY_BYTES, x + 32, q_bytes, n_rows)
                x, k = x + 64, k + 16 * KEY_BYTES
            store_block(add_tiles(low, high), sums + 64 * n_sums * j, 64 * n_keys, n_rows)

    return multiply


@inline
def update_rows(scratch: Scratch, state: State, first: Int, n: Int, dv_bytes: Int) -> None:
    """Replaces the scores of a group by weights exp(score - maximum so far), and adds these to the
    sums, as `attention_softmax.update` does for one row: here up to STRIP rows from `first` on."""
    weights, found, factors = scratch.weights, scratch.folds, scratch.folds + 64
    for r in range(n):
        s = load_f32x16(weights + 4 * GROUP * r)
        for i in range(64, 4 * GROUP, 64):
            s = maximum(s, load_f32x16(weights + 4 * GROUP * r + i))
        store_f32(found + 4 * r, max_lanes(s))
    before = load_f32x16_part(state.maxima + 4 * first, n)
    largest = maximum(load_f32x16_part(found, n), before)
    store_f32x16_part(state.maxima + 4 * first, largest, n)
    largest = select(equal(largest, _NEVER), 0.0, largest)  # else -inf - -inf is NaN
    store_f32x16(found, largest)
    store_f32x16(factors, exp(before - largest))  # 1 where the maximum stays
    for r in range(n):
        top, factor = load_f32(found + 4 * r), load_f32(factors + 4 * r)
        acc, sums = state.acc + (first + r) * dv_bytes, state.sums + 64 * (first + r)
        for i in range(0, dv_bytes, 64):
            store_f32x16(acc + i, load_f32x16(acc + i) * factor)
        total = load_f32x16(sums) * factor
        for i in range(4 * GROUP * r, 4 * GROUP * (r + 1), 64):
            e = exp(load_f32x16(weights + i) - top)
            store_f32x16(weights + i, e)
            total = total + e
        store_f32x16(sums, total)


def tile_values(shape: TileShape) -> Inline:
    """The function `add`, which adds rows of V to the sums of a tile's rows."""
    n_rows = shape.n_rows
    add_rows, add_row = _add_rows(n_rows, shape.n_columns), _add_rows(1, shape.n_columns)

    @inline
    def add(p: Record, scratch: Scratch, state: State, tile: Tile) -> None:
        dv_bytes = padded_bytes(p.v.ne0)
        weights = tile.weights
        acc, v = state.acc + tile.row * dv_bytes, scratch.values + tile.shift * dv_bytes
        add_rows(weights, v, acc, dv_bytes, 0, tile.least)
        if tile.most > tile.least:
            for r in range(n_rows):
                end = n_seen(scratch, tile.row + r, tile.first)
                at = weights + 4 * GROUP * r
                add_row(at, v, acc + r * dv_bytes, dv_bytes, tile.least, end)

    return add


def _add_rows(n_rows: int, n_columns: int) -> Inline:
    add_wide, add_narrow = _add_columns(n_rows, n_columns), _add_columns(n_rows, 1)

    @inline
    def add_rows(weights: Int, v: Int, acc: Int, v_bytes: Int, first: Int, end: Int) -> None:
        """acc += weights * V of n_rows rows: by blocks of columns, cells in order."""
        wide = v_bytes & -(64 * n_columns)
        for d in range(0, wide, 64 * n_columns):
            add_wide(weights, v + d, acc + d, v_bytes, first, end)
        for d in range(wide, v_bytes, 64):
            add_narrow(weights, v + d, acc + d, v_bytes, first, end)

    return add_rows


def _add_columns(n_rows: int, n_columns: int) -> Inline:
    @inline
    def add(weights: Int, v: Int, acc: Int, v_bytes: Int, first: Int, end: Int) -> None:
        sums = load_block(acc, v_bytes, n_rows, n_columns)
        for j in range(first, end):
            sums = _add_scaled(sums, v + j * v_bytes, weights + 4 * j, 4 * GROUP, n_rows)
        store_block(sums, acc, v_bytes, n_rows)

    return add
