"""A tile as rows and columns of vectors: sums of products of rows that lie in memory.

    sums   tile of n_rows * n_columns vectors f32x16; vector r * n_columns + c belongs to row r
    a      row r starts at a + r * stride

`n_rows` is a constant, `n_columns` follows from the size of the tile. All is unrolled where it is
called, so that sums stay in registers.
"""

from __future__ import annotations

from typing import Any

from ggmlpy.backends.cpu.simd.arith import fma
from ggmlpy.backends.cpu.simd.core import (
    Const,
    Emitter,
    Intrinsic,
    Tile,
    Type,
    f32,
    f32x16,
    i64,
    typed,
    void,
)
from ggmlpy.backends.cpu.simd.product import after, parts, tile_of
from ggmlpy.backends.cpu.simd.reduce import fold4

Arg = Type | Const


def row_at(b: Emitter, ptr: Any, stride: Any, r: int) -> Any:
    """The address of row r, in an emitting function."""
    return b.add(ptr, b.mul(stride, b.const(i64.ir, r))) if r else ptr


def _infer_load(*args: Arg) -> Any:
    if len(args) != 4 or not isinstance(args[2], Const) or not isinstance(args[3], Const):
        return None
    return (Tile(f32x16, args[2].value * args[3].value), i64, i64, args[2], args[3])


@typed(_infer_load)
def load_block(b: Emitter, ptr: Any, stride: Any, n_rows: Const, n_columns: Const) -> Any:
    """The first n_columns vectors of each row."""
    rows = [row_at(b, ptr, stride, r) for r in range(n_rows.value)]
    columns = range(n_columns.value)
    return tile_of(b, [b.load_from(after(b, row, 64 * c), f32x16) for row in rows for c in columns])


def _infer_on_sums(*params: Type) -> Any:
    """sums, then `params`, then the number of rows."""

    def infer(*args: Arg) -> Any:
        if len(args) != 2 + len(params) or not isinstance(args[-1], Const):
            return None
        sums = args[0]
        if not isinstance(sums, Tile) or sums.elem != f32x16 or sums.n % args[-1].value:
            return None
        return (sums, sums, *params, args[-1])

    return infer


def _infer_store(*args: Arg) -> Any:
    found = _infer_on_sums(i64, i64)(*args)
    return found and (void, *found[1:])


@typed(_infer_store)
def store_block(b: Emitter, sums: Any, ptr: Any, stride: Any, n_rows: Const) -> None:
    """Vector (r, c) to row r, column c: the inverse of load_block."""
    n_columns = sums.type.count // n_rows.value
    for i, vector in enumerate(parts(b, sums)):
        row = row_at(b, ptr, stride, i // n_columns)
        b.store_to(after(b, row, 64 * (i % n_columns)), vector)


@typed(_infer_store)
def store_folds(b: Emitter, sums: Any, ptr: Any, stride: Any, n_rows: Const) -> None:
    """Every 4 vectors of row r folded (reduce.fold4), one after another from ptr + r * stride."""
    vectors = parts(b, sums)
    n_columns = len(vectors) // n_rows.value
    for i in range(0, len(vectors), 4):
        row = row_at(b, ptr, stride, i // n_columns)
        b.store_to(after(b, row, 16 * (i % n_columns)), fold4(b, *vectors[i : i + 4]))


def _infer_addresses(*args: Arg) -> Any:
    if len(args) != 3 or not isinstance(args[2], Const):
        return None
    return (Tile(i64, args[2].value), i64, i64, args[2])


@typed(_infer_addresses)
def load_addresses(b: Emitter, base: Any, offsets: Any, n: Const) -> Any:
    """base + each of `n` offsets, i64, that lie at `offsets`."""
    found = [b.load_from(after(b, offsets, 8 * i), i64) for i in range(n.value)]
    return tile_of(b, [b.add(base, offset) for offset in found])


def add_products(load: Intrinsic) -> Intrinsic:
    """The function (sums, x, stride, ys, at, n_rows): sums[r, c] + 16 f32 at row r of x, times 16
    numbers that `load` finds `at` bytes after address c of the tile `ys`, lane by lane."""

    def infer(*args: Arg) -> Any:
        if len(args) != 6 or not isinstance(args[5], Const) or not isinstance(args[0], Tile):
            return None
        n_rows, sums = args[5], args[0]
        ys = Tile(i64, sums.n // n_rows.value)
        if sums.elem != f32x16 or args[3] != ys:
            return None
        return (sums, sums, i64, i64, ys, i64, n_rows)

    @typed(infer)
    def add(b: Emitter, sums: Any, x: Any, stride: Any, ys: Any, at: Any, n_rows: Const) -> Any:
        loaded = [load(b, b.add(address, at)) for address in parts(b, ys)]
        xs = [b.load_from(row_at(b, x, stride, r), f32x16) for r in range(n_rows.value)]
        pairs = [(x_r, y_c) for x_r in xs for y_c in loaded]
        return tile_of(b, [fma(b, *p, s) for p, s in zip(pairs, parts(b, sums), strict=True)])

    return add


def add_scaled(load: Intrinsic, vector_bytes: int) -> Intrinsic:
    """The function (sums, v, weights, stride, n_rows): sums[r, c] + vector c of the row at v, as
    `load` finds it, times the f32 at weights + r * stride."""

    @typed(_infer_on_sums(i64, i64, i64))
    def add(b: Emitter, sums: Any, v: Any, weights: Any, stride: Any, n_rows: Const) -> Any:
        n_columns = sums.type.count // n_rows.value
        vs = [load(b, after(b, v, vector_bytes * c)) for c in range(n_columns)]
        numbers = [b.load_from(row_at(b, weights, stride, r), f32) for r in range(n_rows.value)]
        pairs = [(v_c, b.splat(number, 16)) for number in numbers for v_c in vs]
        return tile_of(b, [fma(b, *p, s) for p, s in zip(pairs, parts(b, sums), strict=True)])

    return add
