"""x as int8 tiles load it: panels of 16 rows, block after block.

    panel    the blocks of 16 rows one after another, up to a multiple of BLOCKS_AT_ONCE
    block    qs 16 x 32 x i8 | d 16 x f32 | sums 2 x 16 x f32                          704 bytes

    sums     -d*S of activations.py where weights have one minimum, -d*S0 and -d*S1 where they have
             two, unused where they have none

A thread packs the rows of a chunk once for all groups of weights that it multiplies with them.
Products then read 9 to 11 cache lines a block, one after another, where rows as they are would be
16 lines as far apart as rows, half of each unused. So each thread packs for itself, what is in its
cache anyway, instead of once for all products that read x: rows that are listed in any order, as
with experts (matmul_lists.py), are like others, and those that no panel has stay rows.

Rows that a panel lacks are its last one again. Blocks that it lacks have d and sums of -0: their
product with finite weights changes no sum, not even one of -0.

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.formats.activations import (
    BLOCK,
    BLOCK_BYTES,
    MINUS_D_SUM,
    MINUS_D_SUMS,
    QS,
    D,
)
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd.amx import ROWS
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.core import Emitter, Intrinsic, Vec, f32, i8x32, i64, intrinsic, void
from ggmlpy.backends.cpu.simd.memory import load_i64, store_i64
from ggmlpy.backends.cpu.simd.product import after

BLOCKS_AT_ONCE = 4
X_QS = 0
X_D = ROWS * BLOCK
X_SUMS = X_D + 4 * ROWS
X_BYTES = X_SUMS + 2 * 4 * ROWS  # of a block
LISTED_BYTES = 8 * ROWS  # of the addresses of a panel's rows
_NUMBERS = Vec(f32, 4)  # d and the three sums that follow it in a block of x
assert [MINUS_D_SUM - D, MINUS_D_SUMS - D] == [4, 8]
_SUMS = {0: (), 1: (1,), 2: (2, 3)}  # by the number of minima: which of these numbers are packed

# weights' number of minima, known when a kernel is compiled
Minima = Callable[[Emitter], int]


def panel_bytes(k: int) -> int:
    """From one panel of rows of `k` elements to the next."""
    n_blocks = (k + BLOCK - 1) // BLOCK
    return (n_blocks + BLOCKS_AT_ONCE - 1) // BLOCKS_AT_ONCE * BLOCKS_AT_ONCE * X_BYTES


def _pack_blocks(n_minima: Minima) -> Intrinsic:
    """The function (listed, n, to): the first `n` blocks of the 16 rows at the addresses listed."""

    @intrinsic(void, i64, i64, i64)
    def pack_blocks(b: Emitter, listed: Any, n: Any, to: Any) -> None:
        def pack_block(i: Any) -> None:
            at = b.mul(i, ir.Constant(i64.ir, BLOCK_BYTES))
            out = b.add(to, b.mul(i, ir.Constant(i64.ir, X_BYTES)))
            rows = [b.add(b.load_from(after(b, listed, 8 * t), i64), at) for t in range(ROWS)]
            for t, row in enumerate(rows):
                codes = b.load_from(after(b, row, QS), i8x32)
                b.store_to(after(b, out, X_QS + BLOCK * t), codes)
            numbers = [b.load_from(after(b, row, D), _NUMBERS) for row in rows]
            for j, column in enumerate((0, *_SUMS[n_minima(b)])):
                b.store_to(after(b, out, X_D + 4 * ROWS * j), _column(b, numbers, column))

        b.repeat(n, pack_block)

    return pack_blocks


def _column(b: Emitter, rows: Sequence[Any], j: int) -> Any:
    """Number `j` of 16 rows of four, as a vector."""
    pairs = [b.concat(rows[t], rows[t + 1]) for t in range(0, ROWS, 2)]
    fours = [b.concat(pairs[t], pairs[t + 1]) for t in range(0, ROWS // 2, 2)]
    lanes = list(range(j, 32, 4))
    return b.concat(b.shuffle(fours[0], fours[1], lanes), b.shuffle(fours[2], fours[3], lanes))


@intrinsic(void, i64)
def _fill_block(b: Emitter, to: Any) -> None:
    """A block of nothing; its codes may be any."""
    for at in range(X_D, X_BYTES, 4 * ROWS):
        b.store_to(after(b, to, at), b.const(Vec(f32, ROWS).ir, -0.0))


def panel_packer(n_minima: Minima) -> Inline:
    """The function that packs the first `n_panels` panels of the `n` rows of x listed at xs to
    address `to`. `listed` is the address of LISTED_BYTES of memory."""
    pack_blocks, panel_bytes_of = _pack_blocks(n_minima), inline(panel_bytes)

    @inline
    def pack(xs: Int, n: Int, n_panels: Int, k: Int, listed: Int, to: Int) -> None:
        n_blocks = quotient(k, BLOCK)
        for j in range(n_panels):
            first, last = ROWS * j, n - 1
            for t in range(ROWS):
                store_i64(listed + 8 * t, load_i64(xs + 8 * min(first + t, last)))
            pack_blocks(listed, n_blocks, to)
            for at in range(n_blocks * X_BYTES, panel_bytes_of(k), X_BYTES):
                _fill_block(to + at)
            to += panel_bytes_of(k)

    return pack
