"""How AMX products of bf16 (bf16_tiles.py) walk over rows of x and over stretches of weights.

A group of 16 weight rows is multiplied with panels of up to 16 rows of x, by stretches of blocks:
the weights of a stretch are prepared for tiles, in memory that stays in the L1 cache, then every
panel is multiplied with them. Tiles load rows that are evenly spaced; where the rows of a panel are
not, as with experts, a stretch of them is gathered first.

A thread's working memory, at a multiple of 64:

    tile configuration | panels (address, stride) | a stretch of weights | sums of panels |
    gathered rows of x | emulated tiles
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from llvmlite import ir

from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd import amx
from ggmlpy.backends.cpu.simd.amx import ROWS
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Intrinsic,
    Vec,
    i8x64,
    i32,
    i64,
    intrinsic,
    suffix,
    void,
)
from ggmlpy.backends.cpu.simd.memory import first_lanes, load_i8x64, load_i64, store_i8x64
from ggmlpy.backends.cpu.simd.product import after, unknown

UNEVEN = 1  # in place of a stride: the rows of a panel do not lie evenly
_PANEL_BYTES = 16  # address and stride
_ADDRESSES = Vec(i64, ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingMemory:
    """Sizes and offsets in a thread's working memory; the tile configuration is at 0."""

    n_panels: int
    stretch: int  # blocks
    weight_bytes: int  # of a prepared block
    sums_bytes: int  # of a panel
    gathered_stride: int  # from one gathered row to the next

    @property
    def panels(self) -> int:
        return amx.CONFIG_BYTES

    @property
    def weights(self) -> int:
        return self.panels + _PANEL_BYTES * self.n_panels

    @property
    def sums(self) -> int:
        return self.weights + self.stretch * self.weight_bytes

    @property
    def gathered(self) -> int:
        return self.sums + self.n_panels * self.sums_bytes

    @property
    def file(self) -> int:
        return self.gathered + ROWS * self.gathered_stride

    @property
    def n_bytes(self) -> int:
        return self.file + amx.FILE_BYTES


class Rows(NamedTuple):
    """The rows of a panel, from the first block of a stretch on."""

    x: Int
    stride: Int


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A format's code for `panel_products`. Blocks are `first` .. first + n - 1; `work` is the
    address of working memory.

    begin(sums)                                 before the first stretch, for each panel's sums
    prepare(w, k, first, n, n_lanes, work)      the stretch of the group at w, with n_lanes rows
    add(rows, sums, w, first, n, panel, work)   adds its product with a panel to the sums
    """

    begin: Inline
    prepare: Inline
    add: Inline


@intrinsic(void, i64, i64, i64)
def note_panel(b: Emitter, rows: Any, n_rows: Any, panel: Any) -> None:
    """Where the first of `n_rows` listed rows is and how far they are apart, UNEVEN if not evenly.
    No address past them is read."""
    one = ir.Constant(i64.ir, 1)
    first = b.load_from(rows, i64)
    is_one = b.icmp_signed("==", n_rows, one)
    second = b.load_from(b.select(is_one, rows, after(b, rows, 8)), i64)
    stride = b.sub(second, first)
    steps = b.mul(b.splat(stride, ROWS), ir.Constant(_ADDRESSES.ir, list(range(ROWS))))
    even = b.add(b.splat(first, ROWS), steps)
    name = f"llvm.masked.load.{suffix(_ADDRESSES.ir)}.p0"
    mask, align = first_lanes(b, n_rows, ROWS), ir.Constant(i32.ir, 1)
    pointer = b.pointer(rows, _ADDRESSES.ir)
    addresses = b.llvm(name, _ADDRESSES.ir, pointer, align, mask, even)
    bits = b.bitcast(b.icmp_signed("==", addresses, even), ir.IntType(ROWS))
    is_even = b.icmp_signed("==", bits, ir.Constant(bits.type, -1))
    b.store_to(panel, first)
    b.store_to(after(b, panel, 8), b.select(is_even, stride, ir.Constant(i64.ir, UNEVEN)))


def _gather_panel(gathered_stride: int) -> Intrinsic:
    """The function (rows, at, n_lines, to): `n_lines` times 64 bytes, `at` bytes into each of ROWS
    listed rows, as evenly spaced rows."""

    @intrinsic(void, i64, i64, i64, i64)
    def gather_panel(b: Emitter, rows: Any, at: Any, n_lines: Any, to: Any) -> None:
        xs = [b.add(b.load_from(after(b, rows, 8 * t), i64), at) for t in range(ROWS)]

        def copy_line(i: Any) -> None:
            offset = b.mul(i, ir.Constant(i64.ir, 64))
            for t, x in enumerate(xs):
                line = b.load_from(b.add(x, offset), i8x64)
                b.store_to(b.add(after(b, to, gathered_stride * t), offset), line)

        b.repeat(n_lines, copy_line)

    return gather_panel


def panel_products(memory: WorkingMemory, block: int, block_bytes: int, steps: Steps) -> Inline:
    """The function that multiplies a group with up to memory.n_panels panels. `block` and
    `block_bytes` are elements and bytes of a block of x."""
    begin, prepare, add = steps.begin, steps.prepare, steps.add
    panels, sums, sums_bytes = memory.panels, memory.sums, memory.sums_bytes
    gathered, gathered_stride = memory.gathered, memory.gathered_stride
    stretch = memory.stretch
    gather_panel = _gather_panel(gathered_stride)

    @inline
    def gather(xs: Int, n_rows: Int, at: Int, n_bytes: Int, to: Int) -> None:
        """`n_bytes`, `at` bytes into each of the rows listed at xs, as evenly spaced rows."""
        if n_rows == ROWS:
            gather_panel(xs, at, n_bytes >> 6, to)
            return
        for t in range(n_rows):
            x = load_i64(xs + 8 * t) + at
            for i in range(0, n_bytes, 64):
                store_i8x64(to + t * gathered_stride + i, load_i8x64(x + i))

    @inline
    def rows_of(panel: Int, xs: Int, n_rows: Int, first: Int, n: Int, work: Int) -> Rows:
        """A panel's rows, gathered where they do not lie evenly."""
        at = block_bytes * first
        x, stride = load_i64(panel) + at, load_i64(panel + 8)
        if stride == UNEVEN:
            gather(xs, n_rows, at, block_bytes * n, work + gathered)
            x, stride = work + gathered, gathered_stride
        return Rows(x, stride)

    @inline
    def multiply(
        w: Int, k: Int, xs: Int, n_x: Int, n_rows: Int, n_panels: Int, n_lanes: Int, work: Int
    ) -> None:
        """The group at w, of `n_lanes` rows, times `n_panels` panels of `n_rows` rows, of the n_x
        that are listed at xs. The last panel ends with the last row: it may overlap the one before.
        """
        for j in range(n_panels):
            rows = xs + 8 * min(ROWS * j, n_x - n_rows)
            note_panel(rows, n_rows, work + panels + _PANEL_BYTES * j)
            begin(work + sums + sums_bytes * j)
        n_blocks = quotient(k + block - 1, block)
        for first in range(0, n_blocks, stretch):
            n = unknown(min(stretch, n_blocks - first))
            prepare(w, k, first, n, n_lanes, work)
            for j in range(n_panels):
                listed = xs + 8 * min(ROWS * j, n_x - n_rows)
                panel = work + panels + _PANEL_BYTES * j
                at = rows_of(panel, listed, n_rows, first, n, work)
                add(at, work + sums + sums_bytes * j, w, first, n, j, work)

    return multiply
