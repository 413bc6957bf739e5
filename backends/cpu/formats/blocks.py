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
from ggmlpy.backends.cpu.simd.arith import fma
from ggmlpy.backends.cpu.simd.core import Emitter, Intrinsic, f32, f32x16, i8x64, i32x16, i64, typed
from ggmlpy.backends.cpu.simd.dot import dot4_u7s8, dot4_u8s8
from ggmlpy.backends.cpu.simd.memory import bcast4_i8x64, prefetch
from ggmlpy.backends.cpu.simd.product import after, expect, parts, tile_of


@dataclass(frozen=True, slots=True)
class Block:
    """32 elements of 16 weight rows, in registers: weight = scale * (u - zero) - minimum.

    u         8 vectors i8x64, unsigned: byte 4 * row + t of vector j is element 4j + t of the row
    scales    f32x16, a lane a row: one for the block, or one for each half of 16 elements
    minima    the same, or none
    zero      0 or a power of two; below 128 every u must be below 128 too
    """

    u: Sequence[Any]
    scales: Sequence[Any]
    minima: Sequence[Any] = ()
    zero: int = 0


# emitter, address of a packed block, address of one of its parts -> the part's blocks in order
Unpack = Callable[[Emitter, Any, Any], Iterable[Block]]


def load_vectors(b: Emitter, address: Any, n: int) -> list[Any]:
    """`n` contiguous vectors of 64 bytes."""
    return [b.load_from(after(b, address, 64 * j), i8x64) for j in range(n)]


def add_blocks(unpack: Unpack, n_blocks: int, part_bytes: int, ahead_bytes: int) -> Intrinsic:
    """The function (sums, w, part, rows, at) -> sums that kernels call.

    It adds the products of a part of `n_blocks` blocks with x, which starts at byte `at` of each
    row. After each block it prefetches its share of the part's bytes, `ahead_bytes` further on:
    spread out, because many requests at once would exhaust the core's few fill buffers.
    """
    share = part_bytes // n_blocks

    @typed(expect([f32x16], i64, i64, [i64], i64, result=[f32x16]))
    def add(b: Emitter, sums: Any, w: Any, part: Any, rows: Any, at: Any) -> Any:
        totals = parts(b, sums)
        xs = [b.add(row, at) for row in parts(b, rows)]
        for i, block in enumerate(unpack(b, w, part)):
            totals = _add_block(b, totals, block, [after(b, x, BLOCK_BYTES * i) for x in xs])
            for line in range(share * i // 64 * 64, share * (i + 1), 64):
                prefetch(b, after(b, part, ahead_bytes + line))
        return tile_of(b, totals)

    return add


def _add_block(b: Emitter, totals: Sequence[Any], block: Block, xs: Sequence[Any]) -> list[Any]:
    """totals[t] + block * xs[t]. Exact in int32 within a scale's reach, then rounded.

    Of the halves of a block the first is done with all rows of x before the second is begun, which
    needs fewer registers than the other way round.
    """
    sums = list(totals)
    scaled: list[Any] = [None] * len(xs)
    n_scales = len(block.scales)
    n_vectors = len(block.u) // n_scales
    for i, scale in enumerate(block.scales):
        u = block.u[i * n_vectors : (i + 1) * n_vectors]
        minus_sum = MINUS_SUM if n_scales == 1 else MINUS_SUMS + 4 * i
        for t, x in enumerate(xs):
            start = _minus_zero(b, after(b, x, minus_sum), block.zero)
            products = _dot(b, start, u, after(b, x, QS + HALF * i), block.zero)
            scaled[t] = _add_scaled(b, scaled[t], products, scale)
            if i == n_scales - 1:
                at = MINUS_D_SUM if len(block.minima) == 1 else MINUS_D_SUMS
                sums[t] = add_times_d(
                    b, sums[t], scaled[t], after(b, x, D), block.minima, after(b, x, at), 4
                )
    return sums


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


def _minus_zero(b: Emitter, minus_sum: Any, zero: int) -> Any:
    """-zero * sum of x as i32x16."""
    if zero == 0:
        return b.const(i32x16.ir, 0)
    assert zero & (zero - 1) == 0, "zero is a power of two"
    sums = b.bitcast(bcast4_i8x64(b, minus_sum), i32x16.ir)
    return b.shl(sums, b.const(i32x16.ir, zero.bit_length() - 1))


def _splat_f32(b: Emitter, address: Any) -> Any:
    return b.splat(b.load_from(address, f32), 16)


def _dot(b: Emitter, start: Any, u: Sequence[Any], qs: Any, zero: int) -> Any:
    dot4 = dot4_u8s8 if zero >= 128 else dot4_u7s8
    for j, vector in enumerate(u):
        start = dot4(b, start, vector, bcast4_i8x64(b, after(b, qs, 4 * j)))
    return start
