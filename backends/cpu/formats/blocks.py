"""The product of unpacked weight blocks with int8 blocks of x: shared by all quantised formats.

A format defines how 32 elements of 16 rows are unpacked from its packed bytes (`Unpack`); the rest
is here, written once. These functions write LLVM IR, as intrinsics do: they run when a
kernel is compiled, so the lists below are unrolled code and every vector a register.

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.formats.activations import (
    BLOCK_BYTES,
    HALF,
    MINUS_D_SUM,
    MINUS_D_SUMS,
    MINUS_SUM,
    MINUS_SUMS,
    QS,
    D,
)
from ggmlpy.backends.cpu.formats.planes import N_VECTORS
from ggmlpy.backends.cpu.formats.short_dots import in_shorts, short_dots
from ggmlpy.backends.cpu.simd.arith import fma
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Intrinsic,
    Tile,
    f32,
    f32x16,
    i32x16,
    i64,
    typed,
)
from ggmlpy.backends.cpu.simd.dot import dot4_u7s8, dot4_u8s8
from ggmlpy.backends.cpu.simd.memory import bcast4_i8x64, prefetch
from ggmlpy.backends.cpu.simd.product import after, in_order, keep_order, parts, tile_of

# Added to an int32 of less than 2^22, M_BITS make the float M + it, exactly: a product of codes
# needs no conversion to become f32 times its scale, rounded once (tile_loop.py).
M = 1.5 * 2.0**23
M_BITS = 0x4B400000
# Rows of x at a time with AVX2, divided by a block's scales. Of q4_0 4 rows make 131 G
# multiply-adds/s and 2 rows 119, of q6_K, whose blocks have two scales, 2 rows make 100 and 4 rows
# 89 (EPYC, Zen 5, 2026-11-27).
_SHORT_ROWS = 4


@dataclass(frozen=True, slots=True)
class Block:
    """32 elements of 16 weight rows, as Vectors: weight = scale * (u - zero) - minimum.

    u         8 vectors i8x64, unsigned: byte 4 * row + t of vector j is element 4j + t of the row
    largest   no byte of u is above it
    scales    f32x16, a lane a row: one for the block, or one for each half of 16 elements
    minima    the same, or none
    zero      0 or a power of two; below 128 `largest` must be below 128 too
    any_scale whether a scale may be too large for M times it to be finite
    """

    u: Sequence[Any]
    largest: int
    scales: Sequence[Any]
    minima: Sequence[Any] = ()
    zero: int = 0
    any_scale: bool = False


# emitter, address of a packed block, address of one of its parts -> the part's blocks in order
Unpack = Callable[[Emitter, Any, Any], Iterable[Block]]


def form_of(unpack: Unpack, b: Emitter) -> Block:
    """A block of which only the form counts: what all blocks of a format have. Its code goes into a
    function that is discarded."""
    kind = ir.FunctionType(ir.VoidType(), [i64.ir, i64.ir])
    function = ir.Function(ir.Module(), kind, "unpack")
    return next(iter(unpack(Emitter(function.append_basic_block(), b.isa), *function.args)))


def add_blocks(
    unpack: Unpack, n_blocks: int, part_bytes: int, near_bytes: int, far_bytes: int
) -> Intrinsic:
    """The function (sums, w, part, group_bytes, rows, at, ahead) -> sums that kernels call.

    It adds the products of a part of `n_blocks` blocks with x, which starts at byte `at` of each
    row. There may be several groups of weights, `group_bytes` apart: `sums` has one for each group
    and row of x, those of a group side by side.

    After each block it prefetches its share of the part's bytes, spread out, because many requests
    at once would exhaust the core's few fill buffers: for one group the bytes `near_bytes` further
    on, for several `far_bytes` of each of them, `ahead` bytes further on.
    """

    @typed(_infer_add)
    def add(
        b: Emitter, sums: Any, w: Any, part: Any, group_bytes: Any, rows: Any, at: Any, ahead: Any
    ) -> Any:
        totals = parts(b, sums)
        xs = [b.add(row, at) for row in parts(b, rows)]
        steps = [b.mul(group_bytes, b.const(i64.ir, g)) for g in range(len(totals) // len(xs))]
        groups = [(b.add(w, step), b.add(part, step)) for step in steps]
        several = len(groups) > 1
        share = (far_bytes if several else part_bytes) // n_blocks
        next_parts = [b.add(p, ahead) if several else after(b, p, near_bytes) for _, p in groups]
        for i, blocks in enumerate(zip(*(unpack(b, *group) for group in groups), strict=True)):
            totals = _add_rows(b, totals, blocks, [after(b, x, BLOCK_BYTES * i) for x in xs])
            for next_part in next_parts:
                for line in range(share * i // 64 * 64, share * (i + 1), 64):
                    prefetch(b, after(b, next_part, line))
        return tile_of(b, totals)

    return add


def _infer_add(*args: Any) -> Any:
    """sums, w, part, group_bytes, rows, at, ahead; a whole number of groups."""
    if len(args) != 7 or not isinstance(args[0], Tile) or not isinstance(args[4], Tile):
        return None
    sums, rows = args[0], args[4]
    if sums.elem != f32x16 or rows.elem != i64 or sums.n % rows.n:
        return None
    return (sums, sums, i64, i64, i64, rows, i64, i64)


def _add_rows(
    b: Emitter, totals: Sequence[Any], blocks: Sequence[Block], xs: Sequence[Any]
) -> list[Any]:
    """add_block, for few rows at a time where registers hold no more of their products."""
    if not in_shorts(b):
        return add_block(b, totals, blocks, xs)
    sums: list[Any] = []
    step = _SHORT_ROWS // len(blocks[0].scales)
    for t in range(0, len(xs), step):
        keep_order(b)
        rows = slice(t, t + step)
        sums += add_block(b, totals[rows], blocks, xs[rows])
    return sums


def add_block(
    b: Emitter, totals: Sequence[Any], blocks: Sequence[Block], xs: Sequence[Any]
) -> list[Any]:
    """totals[g * len(xs) + t] + blocks[g] * xs[t]. Exact in int32 within a scale's reach, then
    rounded.

    Of the halves of a block the first is done with all rows of x before the second is begun, which
    needs fewer registers than the other way round.
    """
    sums = list(totals)
    scaled: list[Any] = [None] * len(sums)
    n_rows, n_scales = len(xs), len(blocks[0].scales)
    for i in range(n_scales):
        products = _dots(b, blocks, xs, i)
        adds = [_scaler(b, block, i) for block in blocks]
        for at in range(len(sums)):
            scaled[at] = adds[at // n_rows](scaled[at], products[at])
    for at, total in enumerate(sums):
        minima, x = blocks[at // n_rows].minima, xs[at % n_rows]
        of_minima = after(b, x, MINUS_D_SUM if len(minima) == 1 else MINUS_D_SUMS)
        sums[at] = add_times_d(b, total, scaled[at], after(b, x, D), minima, of_minima, 4)
    return sums


def _starts_from_m(b: Emitter, block: Block) -> bool:
    """Whether products have M_BITS added, to become floats. With a second scale, whose products are
    added to the first one's, converting both takes no longer."""
    return len(block.scales) == 1 and "fma" in b.isa.has and not block.any_scale


def _scaler(b: Emitter, block: Block, i: int) -> Callable[[Any, Any], Any]:
    """The function (before, products) -> before + products * scale `i`, at first from None."""
    scale = block.scales[i]
    if not _starts_from_m(b, block):
        return lambda before, products: _add_scaled(b, before, products, scale)
    minus_m_scale = b.fmul(scale, b.const(f32x16.ir, -M))
    return lambda before, products: fma(b, b.bitcast(products, f32x16.ir), scale, minus_m_scale)


def _dots(b: Emitter, blocks: Sequence[Block], xs: Sequence[Any], i: int) -> list[Any]:
    """The products of codes for scale `i` of each block and row of x, less its zero: i32x16, with
    M_BITS added if that is their way.

    For one group, whose vectors stay in registers, row after row. For several a word of x is loaded
    once for all of them, and vectors come one by one; those of the same bytes (planes.py) follow
    each other.
    """
    block = blocks[0]  # they are alike
    if in_shorts(b):
        assert len(blocks) == 1, "two groups need the registers of AVX512"
        return [_short_dots(b, block, x, i) for x in xs]
    n_scales, n_rows = len(block.scales), len(xs)
    n_vectors = len(block.u) // n_scales
    minus_sum = MINUS_SUM if n_scales == 1 else MINUS_SUMS + 4 * i
    dot4 = dot4_u8s8 if block.zero >= 128 else dot4_u7s8
    start = M_BITS if _starts_from_m(b, block) else 0
    starts = [_minus_zero(b, after(b, x, minus_sum), block.zero, start) for x in xs]
    products = starts * len(blocks)

    def multiply(j: int, t: int) -> None:
        word = bcast4_i8x64(b, after(b, xs[t], QS + HALF * i + 4 * j))
        for g, of_group in enumerate(blocks):
            at = g * n_rows + t
            products[at] = dot4(b, products[at], of_group.u[i * n_vectors + j], word)

    if len(blocks) == 1:
        for t in range(n_rows):
            for j in range(n_vectors):
                multiply(j, t)
    else:
        for first in range(N_VECTORS // 2):
            products = in_order(b, products)
            for j in range(first, n_vectors, N_VECTORS // 2):
                for t in range(n_rows):
                    multiply(j, t)
    return products


def _short_dots(b: Emitter, block: Block, x: Any, i: int) -> Any:
    """The same of one block and a row of x, in the way of short_dots.py."""
    n_scales = len(block.scales)
    n_vectors = len(block.u) // n_scales
    minus_sum = after(b, x, MINUS_SUM if n_scales == 1 else MINUS_SUMS + 4 * i)
    start = M_BITS if _starts_from_m(b, block) else 0
    at = after(b, x, QS + HALF * i)
    return short_dots(
        b,
        block.u[i * n_vectors : (i + 1) * n_vectors],
        block.largest,
        block.zero,
        [bcast4_i8x64(b, after(b, at, 4 * j)) for j in range(n_vectors)],
        lambda zero: _minus_zero(b, minus_sum, zero, start),
    )


def _add_scaled(b: Emitter, before: Any, products: Any, scale: Any) -> Any:
    """before + products * scale, for each of a block's scales; before the first is None."""
    numbers = b.sitofp(products, f32x16.ir)
    return b.fmul(numbers, scale) if before is None else fma(b, numbers, scale, before)


def add_times_d(
    b: Emitter, total: Any, scaled: Any, d: Any, minima: Sequence[Any], sums: Any, step: int
) -> Any:
    """total + scaled products * d - minima * x, of a block of a row of x whose d is at address `d`,
    and what minima are multiplied with at `sums`, `step` bytes apart."""
    total = fma(b, scaled, _splat_f32(b, d), total)
    for i, minimum in enumerate(minima):
        total = fma(b, minimum, _splat_f32(b, after(b, sums, step * i)), total)
    return total


def _minus_zero(b: Emitter, minus_sum: Any, zero: int, start: int) -> Any:
    """start - zero * sum of x as i32x16."""
    if zero == 0:
        return b.const(i32x16.ir, start)
    assert zero & (zero - 1) == 0, "zero is a power of two"
    sums = b.bitcast(bcast4_i8x64(b, minus_sum), i32x16.ir)
    product = b.shl(sums, b.const(i32x16.ir, zero.bit_length() - 1))
    return b.add(product, b.const(i32x16.ir, start)) if start else product


def _splat_f32(b: Emitter, address: Any) -> Any:
    return b.splat(b.load_from(address, f32), 16)
