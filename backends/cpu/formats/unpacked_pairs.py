"""Two groups of packed weights times many rows of x, unpacked first, in registers of AVX512.

    for each packed block of the groups          unpacked once, in the L1 cache for the next loop
        for TILE_ROWS rows of x
            add the products of the block        as in blocks.py, all sums in registers

Between blocks sums are in memory. This serves blocks of two scales whose codes lie in two planes.
Products with the first scale wait as floats for those with the second: with the sums these are 24
vectors for TILE_ROWS rows, which leaves no registers for unpacking. Nothing can be put aside: a
store of a vector takes as long as two products (on Zen 5, where 64 bytes are stored by way of the
ports that multiply).

A tile that finds all in the L1 cache is at its bound, 44 cycles a block for 88 products and
multiplications on two ports: 390 G multiply-adds/s. With unpacking and sums of 128 rows q6_K makes
320, of 32 rows 302; one group at a time, which is unpacked for each 8 rows and has a load for each
product, makes 273 and 255 (weights [2048, 2048], best of 20, a core of an EPYC, Zen 5, 2026-11-27).
A loop over blocks that is unrolled made 296.

One plane is unpacked in less time than its store takes: q2_K and nvfp4 were no faster this way.
Neither were blocks of one scale (pairs.py): q4_0 made 346 instead of 380, q5_K as many as before.

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ggmlpy.backends.cpu.formats.activations import BLOCK, BLOCK_BYTES
from ggmlpy.backends.cpu.formats.blocks import Block, Unpack, add_block, form_of
from ggmlpy.backends.cpu.formats.planes import N_VECTORS, load_vectors
from ggmlpy.backends.cpu.formats.vectors import Vectors
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.block import load_block, store_block
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Intrinsic,
    Tile,
    f32x16,
    i64,
    intrinsic,
    typed,
    void,
)
from ggmlpy.backends.cpu.simd.memory import prefetch
from ggmlpy.backends.cpu.simd.product import after, load_rows, parts, tile_of, unknown
from ggmlpy.backends.cpu.simd.tile import tile_f32x16

TILE_ROWS = 4
# With 12 rows one group at a time took as long, with 8 three quarters of it (q6_K [2048, 2048], a
# core of an EPYC, Zen 5, 2026-11-27).
LEAST_ROWS = 16
MOST_ROWS = 128  # whose sums are kept
N_PARTS = 8  # of a packed block, with a block of 32 each
_N_SUMS = 2 * TILE_ROWS
_VECTOR = 64  # bytes
_UNPACKED_BYTES = _VECTOR * (N_VECTORS + 2)  # codes and scales of a block of 32
_GROUP_BYTES = N_PARTS * _UNPACKED_BYTES
_SUMS = 2 * _GROUP_BYTES  # where those of the first tile are
WORK_BYTES = _SUMS + 2 * MOST_ROWS * _VECTOR
# A tile asks for as many cache lines of each part of the weights that come next: all tiles at once
# would exhaust the core's fill buffers. The fewest tiles there are ask for a whole part.
_PREFETCHED_LINES = 2
_MOST_PART_BYTES = LEAST_ROWS // TILE_ROWS * _PREFETCHED_LINES * 64


@dataclass(frozen=True, slots=True, eq=False)
class UnpackedProducts:
    """A format's code for two groups at a time. `work` is the address of WORK_BYTES.

    accumulate(w, group_bytes, k, xs, n, work)
                    the products of the groups at w and w + group_bytes with the `n` rows of x
                    listed at xs, a multiple of TILE_ROWS, at most MOST_ROWS: sums for load_sums.
                    Prefetches the next two groups' first weights
    """

    accumulate: Inline


@inline
def _sums_at(work: Int, t: Int) -> Int:
    return work + _SUMS + 2 * _VECTOR * t


@inline
def load_sums(work: Int, t: Int) -> Any:
    """The sums of rows t .. t + TILE_ROWS - 1, [2, TILE_ROWS]; t is a multiple of it."""
    return load_block(_sums_at(work, t), _VECTOR, _N_SUMS, 1)


def unpacked_products(
    unpack: Unpack, part_of: Inline, packed_bytes: int, part_bytes: int
) -> UnpackedProducts:
    """The code for a format whose packed blocks take `packed_bytes` and have N_PARTS parts of
    `part_bytes`. `part_of(w, i)` gives the arguments of `unpack`."""
    assert part_bytes <= _MOST_PART_BYTES
    unpack_part, add = _unpack_part(unpack), _add_unpacked(unpack)

    @inline
    def unpack_block(w: Int, to: Int) -> None:
        for i in range(unknown(N_PARTS)):
            at, part = part_of(w, i)
            unpack_part(at, part, to + _UNPACKED_BYTES * i)

    @inline
    def add_block_times_rows(
        work: Int, start: Int, xs: Int, n: Int, w_next: Int, group_bytes: Int
    ) -> None:
        """The unpacked weights times the elements of each row of x from `start` on."""
        for t in range(0, n, TILE_ROWS):
            rows, sums = load_rows(tile_f32x16(TILE_ROWS), xs + 8 * t), tile_f32x16(_N_SUMS)
            if start > 0:
                sums = load_sums(work, t)
            asked_for = min(quotient(64 * _PREFETCHED_LINES * t, TILE_ROWS), part_bytes)
            for i in range(unknown(N_PARTS)):
                _, part = part_of(w_next, i)
                x = (quotient(start, BLOCK) + i) * BLOCK_BYTES
                unpacked = work + _UNPACKED_BYTES * i
                sums = add(sums, unpacked, rows, x, part + asked_for, group_bytes)
            store_block(sums, _sums_at(work, t), _VECTOR, _N_SUMS)

    @inline
    def accumulate(w: Int, group_bytes: Int, k: Int, xs: Int, n: Int, work: Int) -> None:
        at, end = w, w + group_bytes
        for start in range(0, k, BLOCK * N_PARTS):
            unpack_block(at, work)
            unpack_block(at + group_bytes, work + _GROUP_BYTES)
            at += packed_bytes
            w_next = at if at < end else end + group_bytes
            add_block_times_rows(work, start, xs, n, w_next, group_bytes)

    return UnpackedProducts(accumulate)


def _unpack_part(unpack: Unpack) -> Intrinsic:
    """The function (w, part, to): the vectors of a part's block, then its scales, to memory."""

    @intrinsic(void, i64, i64, i64)
    def unpack_part(b: Emitter, w: Any, part: Any, to: Any) -> None:
        (block,) = unpack(b, w, part)
        assert len(block.scales) == 2 and not block.minima
        for j, vector in enumerate([*block.u, *block.scales]):
            b.store_to(after(b, to, _VECTOR * j), vector)

    return unpack_part


def _add_unpacked(unpack: Unpack) -> Intrinsic:
    """The function (sums, w, rows, at, next_weights, group_bytes) -> sums: adds the products of a
    block of both groups, unpacked at w, with x, at byte `at` of each row. It prefetches from
    `next_weights` on, and from as far in the other group."""

    @typed(_infer_add)
    def add(
        b: Emitter, sums: Any, w: Any, rows: Any, at: Any, next_weights: Any, group_bytes: Any
    ) -> Any:
        for address in (next_weights, b.add(next_weights, group_bytes)):
            for line in range(_PREFETCHED_LINES):
                prefetch(b, after(b, address, 64 * line))
        form = form_of(unpack, b)
        blocks = [_unpacked(b, form, after(b, w, _GROUP_BYTES * g)) for g in range(2)]
        xs = [b.add(row, at) for row in parts(b, rows)]
        return tile_of(b, add_block(b, parts(b, sums), blocks, xs))

    return add


def _infer_add(*args: Any) -> Any:
    if len(args) != 6 or not isinstance(args[0], Tile) or not isinstance(args[2], Tile):
        return None
    sums, rows = args[0], args[2]
    if sums != Tile(f32x16, 2 * rows.n) or rows.elem != i64:
        return None
    return (sums, sums, i64, rows, i64, i64, i64)


def _unpacked(b: Emitter, form: Block, at: Any) -> Block:
    """The block whose vectors are in memory at `at`."""
    scales_at = after(b, at, _VECTOR * N_VECTORS)
    scales = Vectors(2, lambda i: b.load_from(after(b, scales_at, _VECTOR * i), f32x16))
    return replace(form, u=load_vectors(b, at, N_VECTORS), scales=scales)
