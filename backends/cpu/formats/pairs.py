"""Two groups of packed weights times PAIR_ROWS rows of x at a time, in registers of AVX512.

The groups share what is loaded of x, which limits the products of one group: two loads a cycle, and
one for every four elements of each row. 24 registers hold sums and products, 8 what these are built
from. Each sum is that of blocks.py.

Blocks of two scales have no registers left for that: the first scale's products wait as floats for
the second's (unpacked_pairs.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ggmlpy.backends.cpu.formats.activations import BLOCK, BLOCK_BYTES
from ggmlpy.backends.cpu.formats.blocks import Unpack, add_blocks
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd.arith import quotient

PAIR_ROWS = 6


@dataclass(frozen=True, slots=True, eq=False)
class PairProducts:
    """A format's code for two groups at a time.

    accumulate(sums, w, group_bytes, k, rows, ahead) -> sums
                    from sums of zero, [2, PAIR_ROWS], adds the products of the groups at w and
                    w + group_bytes with the rows of x. Of what lies `ahead` bytes after each part
                    it prefetches `ahead_bytes`: half of a part, since all that the next unit needs
                    would take longer to arrive than this takes
    """

    accumulate: Inline
    ahead_bytes: int


def pair_products(unpack: Unpack, part_of: Inline, n_blocks: int, part_bytes: int) -> PairProducts:
    """The code for a format whose parts have `n_blocks` blocks and take `part_bytes`. `part_of(w,
    i)` gives the arguments of `unpack`."""
    ahead_bytes = -(-part_bytes // 128) * 64
    add = add_blocks(unpack, n_blocks, 0, 0, ahead_bytes)
    x_bytes, n_elements = n_blocks * BLOCK_BYTES, n_blocks * BLOCK

    @inline
    def accumulate(sums: Any, w: Int, group_bytes: Int, k: Int, rows: Any, ahead: Int) -> Any:
        for i in range(quotient(k, n_elements)):
            at, part = part_of(w, i)
            sums = add(sums, at, part, group_bytes, rows, i * x_bytes, ahead)
        return sums

    return PairProducts(accumulate, ahead_bytes)
