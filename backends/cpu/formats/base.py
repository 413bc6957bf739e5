"""What a weight format supplies, and what all of them share: repacking 16 rows side by side.

A weight [k, m] becomes groups of 16 rows, the last one filled up with zero rows. A group holds, for
each block of k, what the 16 rows have there, arranged so that one vector register gets a piece of
every row: lane i works for row i, and no sum ever crosses lanes.

    stored   row 0: block 0 | block 1 | ...    packed   group 0: block 0 of rows 0..15 | block 1 ...
             row 1: block 0 | block 1 | ...             group 1: block 0 of rows 16..31 | ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.formats.activations import BLOCK, BLOCK_BYTES
from ggmlpy.backends.cpu.formats.blocks import Unpack, add_blocks
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.product import prefetch_bytes
from ggmlpy.quants import Bytes
from ggmlpy.storage import aligned_bytes
from ggmlpy.tensor import Tensor

GROUP = 16  # rows side by side: the lanes of a vector of sums
# How far ahead of their use weights are asked for: 300 ns at the 16 GB/s of one core, which is two
# to three memory latencies.
PREFETCH_BYTES = 4608
_CHUNK_BYTES = 1 << 18  # repacked at a time, so that source and result stay in a core's cache

# Fills packed blocks [groups, blocks] from stored ones [groups, 16, blocks].
Repack = Callable[[NDArray[Any], NDArray[Any]], None]


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """One weight type: its stored and packed blocks, and the code that multiplies them.

    accumulate(sums, w, k, rows) -> sums, from sums of zero, adds the products of the packed group
    at `w` with the rows of x: int8 blocks where `quantizes_x` (activations.py), else f32. Each sum
    is built in one order that depends on k alone.
    """

    type_name: str
    block: int  # elements
    stored: np.dtype[Any]  # a block of one row
    packed: np.dtype[Any]  # the same block of 16 rows
    repack: Repack
    accumulate: Inline
    quantizes_x: bool

    def group_bytes(self, k: int) -> int:
        """Bytes of a packed group of rows of `k` elements."""
        return k // self.block * self.packed.itemsize

    def pack(self, weight: Tensor) -> Bytes:
        """The packed bytes of a contiguous leaf: [matrices, groups, blocks] of `packed`."""
        assert weight.storage is not None
        k, m = weight.ne[:2]
        n_matrices = weight.ne[2] * weight.ne[3]
        n_groups, n_blocks = -(-m // GROUP), k // self.block
        stored = weight.storage.data[: weight.spec.n_bytes].view(self.stored)
        out = aligned_bytes(n_matrices * n_groups * n_blocks * self.packed.itemsize)
        packed = out.view(self.packed)
        for rows, groups in zip(
            stored.reshape(n_matrices, m, n_blocks),
            packed.reshape(n_matrices, n_groups, n_blocks),
            strict=True,
        ):
            self._pack_matrix(rows, groups)
        return out

    def _pack_matrix(self, rows: NDArray[Any], groups: NDArray[Any]) -> None:
        m, n_blocks = rows.shape
        n_whole = m // GROUP
        whole = rows[: n_whole * GROUP].reshape(n_whole, GROUP, n_blocks)
        step = max(1, _CHUNK_BYTES // (n_blocks * self.packed.itemsize))
        for start in range(0, n_whole, step):
            end = min(start + step, n_whole)
            self.repack(whole[start:end], groups[start:end])
        if m % GROUP:
            last = np.zeros((1, GROUP, n_blocks), self.stored)
            last[0, : m % GROUP] = rows[n_whole * GROUP :]
            self.repack(last, groups[n_whole:])


def quantized_format(
    type_name: str,
    *,
    block: int,
    stored: np.dtype[Any],
    packed: np.dtype[Any],
    repack: Repack,
    unpack: Unpack,
    n_parts: int = 1,
) -> Format:
    """A format of integer codes. `unpack` gives the blocks of 32 of one of `n_parts` equal parts of
    a packed block: code for one part is compiled, and a loop goes over the parts."""
    add = add_blocks(unpack)
    n_elements = block // n_parts
    packed_bytes = packed.itemsize
    prefetched_bytes = packed_bytes // n_parts
    x_bytes = n_elements // BLOCK * BLOCK_BYTES

    @inline
    def accumulate(sums: Any, w: Int, k: Int, rows: Any) -> Any:
        for i in range(quotient(k, n_elements)):
            i_block = quotient(i, n_parts)
            at = w + i_block * packed_bytes
            sums = add(sums, at, i - i_block * n_parts, rows, i * x_bytes)
            prefetch_bytes(w + i * prefetched_bytes + PREFETCH_BYTES, prefetched_bytes)
        return sums

    return Format(type_name, block, stored, packed, repack, accumulate, quantizes_x=True)
