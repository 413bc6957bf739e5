"""Sums of products with a few rows of x: one vector of 16 for each row of x.

    sums   tile of n vectors f32x16: vector t belongs to row t of x
    rows   tile of n addresses: where the rows of x start
    at     byte offset into every one of them

Each function does the same to all n vectors, unrolled where it is called, so that sums stay in
registers; the width of `sums` decides which code a caller gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.arith import fma
from ggmlpy.backends.cpu.simd.core import (
    Const,
    Emitter,
    Scalar,
    Tile,
    Type,
    f32x16,
    i64,
    intrinsic,
    typed,
    void,
)
from ggmlpy.backends.cpu.simd.memory import load_f32x16_part, prefetch_l2, store_f32x16_part
from ggmlpy.backends.cpu.simd.reduce import sum_lanes

Arg = Type | Const


def parts(b: Emitter, tile: Any) -> list[Any]:
    """The vectors of a tile, for use in an emitting function."""
    return [b.extract_value(tile, i) for i in range(tile.type.count)]


def tile_of(b: Emitter, vectors: Iterable[Any]) -> Any:
    """Vectors as one tile, in an emitting function."""
    items = list(vectors)
    tile = ir.Constant(ir.ArrayType(items[0].type, len(items)), ir.Undefined)
    for i, item in enumerate(items):
        tile = b.insert_value(tile, item, i)
    return tile


def after(b: Emitter, address: Any, n_bytes: int) -> Any:
    """The address `n_bytes` further on, in an emitting function."""
    return b.add(address, ir.Constant(i64.ir, n_bytes))


def expect(*wanted: Any, result: Any) -> Callable[..., Any]:
    """A typing rule for functions whose first argument is a tile of n vectors.

    An expected argument is a type, or a vector's type in a list: a tile of n such. `result` is
    written the same way.
    """

    def infer(*args: Arg) -> Any:
        if len(args) != len(wanted) or not isinstance(args[0], Tile):
            return None
        n = args[0].n
        params: list[Any] = []
        for arg, want in zip(args, wanted, strict=True):
            type_ = Tile(want[0], n) if isinstance(want, list) else want
            if not isinstance(type_, Scalar) and arg != type_:
                return None
            params.append(type_)
        return (Tile(result[0], n) if isinstance(result, list) else result, *params)

    return infer


# --- rows of x ----------------------------------------------------------------------------------


@typed(expect([f32x16], i64, result=[i64]))
def load_rows(b: Emitter, sums: Any, ptr: Any) -> Any:
    """The addresses of as many rows as `sums` is wide, from a list of i64 at `ptr`."""
    n = sums.type.count
    return tile_of(b, [b.load_from(after(b, ptr, 8 * t), i64) for t in range(n)])


@typed(expect([i64], i64, result=[i64]))
def advance_rows(b: Emitter, rows: Any, n_bytes: Any) -> Any:
    """The addresses `n_bytes` further on in each row."""
    return tile_of(b, [b.add(row, n_bytes) for row in parts(b, rows)])


@typed(expect([f32x16], f32x16, [i64], i64, result=[f32x16]))
def add_lanes(b: Emitter, sums: Any, v: Any, rows: Any, at: Any) -> Any:
    """sums[t] + v * x[t], x[t] the 16 f32 at `at` in row t, lane by lane."""
    xs = [b.load_from(b.add(row, at), f32x16) for row in parts(b, rows)]
    return tile_of(b, [fma(b, v, x, s) for s, x in zip(parts(b, sums), xs, strict=True)])


@typed(expect([f32x16], f32x16, [i64], i64, i64, result=[f32x16]))
def add_lanes_part(b: Emitter, sums: Any, v: Any, rows: Any, at: Any, n: Any) -> Any:
    """The same for the first `n` lanes; no byte past them is touched, the others add v * 0."""
    xs = [load_f32x16_part(b, b.add(row, at), n) for row in parts(b, rows)]
    return tile_of(b, [fma(b, v, x, s) for s, x in zip(parts(b, sums), xs, strict=True)])


@typed(expect([f32x16], [f32x16], result=[f32x16]))
def add_tiles(b: Emitter, x: Any, y: Any) -> Any:
    """x + y, vector by vector."""
    return tile_of(b, [b.fadd(v, w) for v, w in zip(parts(b, x), parts(b, y), strict=True)])


@typed(expect([f32x16], f32x16, result=[f32x16]))
def add_to_each(b: Emitter, sums: Any, v: Any) -> Any:
    """sums[t] + v."""
    return tile_of(b, [b.fadd(s, v) for s in parts(b, sums)])


@typed(expect([f32x16], [i64], i64, i64, result=void))
def store_sums(b: Emitter, sums: Any, rows: Any, at: Any, n: Any) -> None:
    """The first `n` lanes of sums[t] to row t at `at`. Whole vectors are stored as such: a store
    with a mask takes an EPYC (Zen 5) core some 15 cycles (2026-11-27)."""
    pairs = [
        (b.add(row, at), vector) for vector, row in zip(parts(b, sums), parts(b, rows), strict=True)
    ]
    with b.if_else(b.icmp_signed("<", n, ir.Constant(i64.ir, 16))) as (some, all_lanes):
        with some:
            for address, vector in pairs:
                store_f32x16_part(b, address, vector, n)
        with all_lanes:
            for address, vector in pairs:
                b.store_to(address, vector)


def _infer_half(*args: Arg) -> Any:
    if len(args) != 2 or not isinstance(args[0], Tile) or not isinstance(args[1], Const):
        return None
    return (Tile(args[0].elem, args[0].n // 2), args[0], args[1])


@typed(_infer_half)
def half_of(b: Emitter, tile: Any, i: Const) -> Any:
    """The first (i = 0) or the second half of a tile's vectors."""
    vectors = parts(b, tile)
    n = len(vectors) // 2
    return tile_of(b, vectors[i.value * n : (i.value + 1) * n])


@typed(expect([f32x16], [i64], i64, result=void))
def store_lane_sums(b: Emitter, sums: Any, rows: Any, at: Any) -> None:
    """The sum over the lanes of sums[t], by the tree of `sum_lanes`, to row t at `at`."""
    for vector, row in zip(parts(b, sums), parts(b, rows), strict=True):
        b.store_to(b.add(row, at), sum_lanes(b, vector))


# --- hints


def _infer_prefetch(*args: Arg) -> Any:
    if len(args) != 2 or not isinstance(args[1], Const):
        return None
    return (void, i64, args[1])


@typed(_infer_prefetch)
def prefetch_bytes(b: Emitter, ptr: Any, n_bytes: Const) -> None:
    """Prefetches the cache lines of `n_bytes`, a constant, from `ptr` on, into the second level."""
    for start in range(0, n_bytes.value, 64):
        prefetch_l2(b, after(b, ptr, start))


@intrinsic(i64, i64)
def unknown(b: Emitter, n: Any) -> Any:
    """n, with its range hidden from LLVM, which would otherwise unroll loops up to n."""
    same = ir.FunctionType(i64.ir, [i64.ir])
    return b.call(ir.InlineAsm(same, "", "=r,0"), [n])


@intrinsic(void)
def keep_order(b: Emitter) -> None:
    """Keeps LLVM from moving loads, stores and tile instructions past this point: it would load for
    many rows at once, with no registers left for their sums. Emits no instruction."""
    b.call(ir.InlineAsm(ir.FunctionType(void.ir, []), "", "~{memory}", True), [])


def in_order(b: Emitter, vectors: Iterable[Any]) -> list[Any]:
    """The same vectors of AVX512, in an emitting function. What they come from stays before this
    point, what they are used for after it, and loads and stores stay where they are, as with
    `keep_order`, past which products move. Emits no instruction."""
    items = list(vectors)
    kind = ir.FunctionType(ir.LiteralStructType([v.type for v in items]), [v.type for v in items])
    registers = [*["=v"] * len(items), *map(str, range(len(items)))]
    found = b.call(ir.InlineAsm(kind, "", ",".join([*registers, "~{memory}"]), True), items)
    return [b.extract_value(found, i) for i in range(len(items))]
