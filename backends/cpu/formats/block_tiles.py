"""The product of weight blocks with int8 blocks of x by AMX tiles: 16 rows of x at a time.

x comes as panels of 16 rows (x_panels.py). GROUPS groups of 16 weight rows are multiplied together,
by stretches of STRETCH blocks: their codes and scales are unpacked into memory that stays in the L1
cache, then every panel is multiplied with all of them (tile_loop.py).

A thread's working memory, at a multiple of 64:

    that of the loop | a stretch of each group, unpacked | sums | panels of x

Sums have the bits that they have without tiles, with one exception, which is noticed where weights
are unpacked: a scale that is not finite, or so large that its product with M is not (tile_loop.py).
`multiply` then says that these groups must be computed without tiles.

Counted, not measured (tile_loop.py has the loop's count): to unpack a block of 16 weight rows takes
10 to 30 cycles, at most 4 % of its products with PANELS panels; to load and store the sums once a
stretch is 4 instructions a block; to pack a block of 16 rows of x, some 60 instructions, is as much
as to multiply it with one group.

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ggmlpy.backends.cpu.formats.activations import BLOCK
from ggmlpy.backends.cpu.formats.blocks import Block, M, Unpack
from ggmlpy.backends.cpu.formats.planes import N_VECTORS
from ggmlpy.backends.cpu.formats.tile_loop import (
    LISTED,
    LOOP_BYTES,
    MINIMA,
    SCALE_LIMIT_BITS,
    SCALES,
    UNPACKED_BYTES,
    Form,
    add_blocks,
    begin_products,
    configure_tiles,
)
from ggmlpy.backends.cpu.formats.x_panels import (
    BLOCKS_AT_ONCE,
    X_BYTES,
    panel_bytes,
    panel_packer,
)
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd import amx
from ggmlpy.backends.cpu.simd.amx import ROW_BYTES, ROWS, TILE_BYTES
from ggmlpy.backends.cpu.simd.arith import maximum, quotient, zero_i32x16
from ggmlpy.backends.cpu.simd.block import load_block, store_block
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Intrinsic,
    f32x16,
    i8x64,
    i32x16,
    i64,
    intrinsic,
    void,
)
from ggmlpy.backends.cpu.simd.product import after, prefetch_bytes, unknown
from ggmlpy.backends.cpu.simd.reduce import max_lanes

GROUPS = 4  # of 16 weight rows, that share every panel of x in the L1 cache
STRETCH = 8  # blocks: of 4 groups 20 to 35 KB unpacked
PANELS = 16  # of x at most, for which a stretch is unpacked once
_STRETCH_BYTES = STRETCH * UNPACKED_BYTES
# Panels are read from the L2 cache, of 2 MB where there is AMX, once for GROUPS groups.
_PANELS_BYTES = 3 << 19
# A rest of so many rows or more makes a panel that is not full. Counted: 8 rows in registers take
# 45 to 50 cycles a block and 5 rows about as many, a panel 35 and, where it is the only one, the
# unpacking that others would share.
_LEAST_OF_PANEL, LEAST_ROWS = 5, 9

_WEIGHTS = LOOP_BYTES
SUMS = _WEIGHTS + GROUPS * _STRETCH_BYTES  # [PANELS, GROUPS, ROWS, 16] f32
X = SUMS + PANELS * GROUPS * TILE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class TileProducts:
    """A format's code for tiles. `work` is the address of work_bytes() of memory.

    configure(work)                    before anything else; release_tiles after it all
    pack(xs, n, n_panels, k, work)     makes panels of the n rows listed at xs, up to PANELS
    multiply(w, group_bytes, n_groups, k, n_panels, work)
                                       these panels times up to GROUPS packed groups from w on, to
                                       `work + SUMS`; false if scales are too large for tiles
    """

    configure: Inline
    pack: Inline
    multiply: Inline


def n_panels(n: int) -> int:
    """Panels for `n` rows of x, of which 4 at most are left over."""
    return (n + ROWS - _LEAST_OF_PANEL) // ROWS if n >= LEAST_ROWS else 0


def most_panels(n_bytes: int) -> int:
    """How many panels of so many bytes are multiplied together: as fit the cache."""
    return max(1, min(PANELS, _PANELS_BYTES // n_bytes))


def work_bytes(k: int, n_rows: int) -> int:
    """Working memory of a thread for units of at most `n_rows` rows of x of `k` elements."""
    n_bytes = panel_bytes(k)
    return X + min(n_panels(n_rows), most_panels(n_bytes)) * n_bytes


@intrinsic(void)
def release_tiles(b: Emitter) -> None:
    """Releases this thread's tiles."""
    amx.release(b)


def tile_products(unpack: Unpack, part_of: Inline, n_blocks: int, part_bytes: int) -> TileProducts:
    """The code for a format whose parts have `n_blocks` blocks and take `part_bytes`.

    `part_of(w, i)` gives the addresses of a packed block and of a part in it, the arguments of
    `unpack`. While the first panel is multiplied, the packed bytes of the next stretch, or of the
    next groups, are prefetched.
    """
    assert STRETCH % n_blocks == 0
    unpack_part = _unpack_part(unpack)
    begin, add = begin_products(unpack), add_blocks(unpack)
    pack_panels = panel_packer(lambda b: Form.of(unpack, b).n_minima)
    panel_bytes_of = inline(panel_bytes)
    ahead_bytes = BLOCKS_AT_ONCE * part_bytes // n_blocks

    @inline
    def configure(work: Int) -> None:
        configure_tiles(work)

    @inline
    def pack(xs: Int, n: Int, n_panels: Int, k: Int, work: Int) -> None:
        pack_panels(xs, n, n_panels, k, work + LISTED, work + X)

    @inline
    def unpack_stretch(w: Int, first: Int, n: Int, to: Int, largest: Any) -> Any:
        """`n` blocks from `first` on of the group at w. Returns the larger of `largest` and the
        bits of their scales."""
        first_part = quotient(first, n_blocks)
        for i in range(quotient(n, n_blocks)):
            at, part = part_of(w, first_part + i)
            largest = unpack_part(at, part, to + i * n_blocks * UNPACKED_BYTES, largest)
        for i in range(n, (n + BLOCKS_AT_ONCE - 1) & -BLOCKS_AT_ONCE):
            _clear_scales(to + i * UNPACKED_BYTES)
        return largest

    @inline
    def add_stretch(
        x: Int, n: Int, n_panels: Int, n_groups: Int, k: Int, ahead: Int, ahead_step: Int, work: Int
    ) -> None:
        """Adds the product of `n` unpacked blocks of each group with the panels from x on to the
        sums. Bytes at `ahead`, in steps for each group, are prefetched."""
        n_steps = quotient(n + BLOCKS_AT_ONCE - 1, BLOCKS_AT_ONCE)
        last_step = unknown(n_steps - 1)  # else LLVM writes the code of the last one twice
        first_u, to_next = work + _WEIGHTS, panel_bytes_of(k)
        begin(x, first_u, work)
        u, sums = first_u, work + SUMS
        for j in range(n_panels):
            for group in range(n_groups):
                # where the products go on that are ahead of the last sums
                following_u = first_u + (group + 1) * _STRETCH_BYTES
                following_x = x
                if group + 1 == n_groups:
                    following_u = first_u
                    if j + 1 < n_panels:
                        following_x = x + to_next
                to_prefetch = ahead + group * ahead_step
                n_to_prefetch = n_steps if j == 0 else 0
                at = sums + group * TILE_BYTES
                totals = load_block(at, ROW_BYTES, ROWS, 1)
                block = x
                for i in range(n_steps):
                    if i < n_to_prefetch:
                        prefetch_bytes(to_prefetch + i * ahead_bytes, ahead_bytes)
                    next_block = block + BLOCKS_AT_ONCE * X_BYTES
                    next_u = u + BLOCKS_AT_ONCE * UNPACKED_BYTES
                    if i == last_step:
                        next_block, next_u = following_x, following_u
                    totals = add(totals, block, u, next_block, next_u, work)
                    block, u = next_block, next_u
                store_block(totals, at, ROW_BYTES, ROWS)
            x = block
            sums += GROUPS * TILE_BYTES

    @inline
    def multiply(w: Int, group_bytes: Int, n_groups: Int, k: Int, n_panels: Int, work: Int) -> Any:
        for i in range(n_panels * GROUPS):
            _clear_sums(work + SUMS + TILE_BYTES * i)
        largest = zero_i32x16()
        n_all = quotient(k, BLOCK)
        for first in range(0, n_all, STRETCH):
            n = unknown(min(STRETCH, n_all - first))
            for i in range(n_groups):
                to = work + _WEIGHTS + i * _STRETCH_BYTES
                largest = unpack_stretch(w + i * group_bytes, first, n, to, largest)
            ahead = w + n_groups * group_bytes
            if first + STRETCH < n_all:
                ahead = w + quotient(first + STRETCH, n_blocks) * part_bytes
            x = work + X + first * X_BYTES
            add_stretch(x, n, n_panels, n_groups, k, ahead, group_bytes, work)
        return max_lanes(largest) < SCALE_LIMIT_BITS

    return TileProducts(configure, pack, multiply)


def _unpack_part(unpack: Unpack) -> Intrinsic:
    """The function (w, part, address, largest): the blocks of a part, unpacked to memory at
    `address`. Returns the larger of `largest` and the bits of |first scale|, lane by lane."""

    @intrinsic(i32x16, i64, i64, i64, i32x16)
    def unpack_part(b: Emitter, w: Any, part: Any, address: Any, largest: Any) -> Any:
        for i, block in enumerate(unpack(b, w, part)):
            at = after(b, address, UNPACKED_BYTES * i)
            _store_codes(b, block, at)
            minus_m = b.fmul(block.scales[0], b.const(f32x16.ir, -M))
            for j, scale in enumerate((block.scales[0], minus_m, *block.scales[1:])):
                b.store_to(after(b, at, SCALES + 64 * j), scale)
            for j, minimum in enumerate(block.minima):
                b.store_to(after(b, at, MINIMA + 64 * j), minimum)
            bits = b.bitcast(block.scales[0], i32x16.ir)
            largest = maximum(b, b.and_(bits, b.const(i32x16.ir, 0x7FFFFFFF)), largest)
        return largest

    return unpack_part


def _store_codes(b: Emitter, block: Block, address: Any) -> None:
    """u as signed codes; with two scales the second half 4 vectors of zeros after the first."""
    zero = b.const(i8x64.ir, block.zero)
    vectors = [b.sub(u, zero) for u in block.u]
    if len(block.scales) == 2:
        half = N_VECTORS // 2
        vectors[half:half] = half * [b.const(i8x64.ir, 0)]
    for j, vector in enumerate(vectors):
        b.store_to(after(b, address, 64 * j), vector)


@intrinsic(void, i64)
def _clear_scales(b: Emitter, block: Any) -> None:
    """An unpacked block of nothing; its codes may be any."""
    for at in range(SCALES, UNPACKED_BYTES, 64):
        b.store_to(after(b, block, at), b.const(f32x16.ir, 0.0))


@intrinsic(void, i64)
def _clear_sums(b: Emitter, sums: Any) -> None:
    """Zeros for the sums of a panel and a group."""
    for t in range(ROWS):
        b.store_to(after(b, sums, ROW_BYTES * t), b.const(f32x16.ir, 0.0))
