"""The interface of weight formats, and what all of them share: groups of 16 rows.

Weights of floats are rows as they are stored (floats.py). Where weights are codes, a weight [k, m]
is packed to groups of 16 rows, the last one padded with zero rows. A group holds, for each block of
k, that block of the 16 rows, arranged so that one vector register gets a piece of every row: lane i
works for row i, and no sum ever crosses lanes.

    stored   row 0: block 0 | block 1 | ...    packed   group 0: block 0 of rows 0..15 | block 1 ...
             row 1: block 0 | block 1 | ...             group 1: block 0 of rows 16..31 | ...

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, auto
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.formats.activations import BLOCK, BLOCK_BYTES
from ggmlpy.backends.cpu.formats.bf16_tiles import WholeUnits
from ggmlpy.backends.cpu.formats.block_tiles import TileProducts, tile_products
from ggmlpy.backends.cpu.formats.blocks import Unpack, add_blocks
from ggmlpy.backends.cpu.formats.columns import GROUP as GROUP
from ggmlpy.backends.cpu.formats.columns import Repack, declare_pack
from ggmlpy.backends.cpu.formats.pairs import PairProducts, pair_products
from ggmlpy.backends.cpu.formats.unpacked_pairs import (
    N_PARTS,
    UnpackedProducts,
    unpacked_products,
)
from ggmlpy.backends.cpu.kernel import Entry, Inline, Int, inline
from ggmlpy.backends.cpu.packing import WeightUser
from ggmlpy.backends.cpu.pieces import PIECE
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.graph.tensor import Tensor

# How far ahead of their use weights are prefetched: 300 ns at the 16 GB/s of one core, which is two
# to three memory latencies.
PREFETCH_BYTES = 4608
_PIECE_BYTES = 1 << 19  # packed at a time: in a core's cache, and many to a call


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Format(ABC):
    """One weight type, and the code that multiplies it in groups of 16 rows.

    accumulate(sums, w, k, rows, n_rows) -> sums, from sums of zero, adds the products of the group
    at `w`, which has `n_rows` rows or more, with the rows of x: int8 blocks where `quantizes_x`
    (activations.py), else f32. Each sum is built in one order that depends on k alone.

    `width` is how many rows of x it takes at most: 8 or 4. `tiles` is what multiplies with AMX: 16
    rows of x at a time and to the same bits, or all of them, which then are split into bf16
    (bf16_parts.py). `short` multiplies many rows of x by short rows (short_rows.py), `many` by any
    (many_rows.py), both to the same bits too.
    """

    type_name: str
    accumulate: Inline
    width: int
    quantizes_x: bool
    tiles: TileProducts | WholeUnits | None
    short: Inline | None = None
    many: Inline | None = None

    @abstractmethod
    def group_bytes(self, k: int) -> int:
        """Bytes from one group of rows of `k` elements to the next."""

    @abstractmethod
    def matrix_bytes(self, k: int, m: int) -> int:
        """Bytes from one matrix of `m` such rows to the next."""

    @abstractmethod
    def address(self, weight: Tensor, builder: WeightUser) -> int:
        """The address of a contiguous leaf's first group while the plan runs."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StoredFormat(Format):
    """Rows that are multiplied as they are stored, for example in a mapped file."""

    element_bytes: int

    def group_bytes(self, k: int) -> int:
        return self.matrix_bytes(k, GROUP)

    def matrix_bytes(self, k: int, m: int) -> int:
        return k * m * self.element_bytes

    def address(self, weight: Tensor, builder: WeightUser) -> int:
        return builder.stored(weight)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedFormat(Format):
    """Rows that are packed first, 16 side by side. `two_groups` multiplies two groups at a time, to
    the same bits, where there are the registers of AVX512."""

    tiles: TileProducts
    two_groups: PairProducts | UnpackedProducts | None
    block: int  # elements
    stored: np.dtype[Any]  # a block of one row
    packed: np.dtype[Any]  # the same block of 16 rows
    entry: Entry  # packs (columns.py)

    def group_bytes(self, k: int) -> int:
        return k // self.block * self.packed.itemsize

    def matrix_bytes(self, k: int, m: int) -> int:
        return -(-m // GROUP) * self.group_bytes(k)

    def address(self, weight: Tensor, builder: WeightUser) -> int:
        return builder.packed(weight, self)

    def packed_bytes(self, weight: Tensor) -> int:
        """Bytes of a packed weight: [matrices, groups, blocks] of `packed`."""
        k, m, *n_matrices = weight.ne
        return prod(n_matrices) * self.matrix_bytes(k, m)

    def pieces(self, weight: Tensor, out: int) -> NDArray[np.void]:
        """The work that packs a contiguous leaf to address `out`: PIECEs that say where rows begin
        in the weight's bytes, which file they are in and what packs them left open."""
        k, m = weight.ne[:2]
        n_matrices, group_bytes = prod(weight.ne[2:]), self.group_bytes(k)
        row_bytes = k // self.block * self.stored.itemsize
        step = max(1, _PIECE_BYTES // group_bytes) * GROUP
        first = np.arange(0, m, step, dtype=np.int64)  # row of each piece of a matrix
        pieces = np.zeros((n_matrices, len(first)), PIECE)
        matrix = np.arange(n_matrices, dtype=np.int64)[:, None]
        pieces["rows"] = (matrix * m + first) * row_bytes
        pieces["n_rows"] = np.minimum(step, m - first)
        pieces["row_bytes"] = row_bytes
        pieces["out"] = out + matrix * self.matrix_bytes(k, m) + first // GROUP * group_bytes
        pieces["n_blocks"] = k // self.block
        return pieces.reshape(-1)


class TwoGroups(Enum):
    """How two groups of a format are multiplied at a time."""

    AS_PACKED = auto()  # pairs.py: blocks of 32 have one scale
    UNPACKED = auto()  # unpacked_pairs.py: they have two and no minima, and parts of their own
    NEVER = auto()


def quantized_format(
    type_name: str,
    *,
    block: int,
    stored: np.dtype[Any],
    packed: np.dtype[Any],
    repack: Repack,
    unpack: Unpack,
    two_groups: TwoGroups = TwoGroups.AS_PACKED,
) -> PackedFormat:
    """A format of integer codes.

    Where `packed` ends in a field `parts`, code for one part is compiled, and a loop goes over
    them: `unpack` gives the blocks of 32 of one part. Otherwise a packed block is one part. Parts
    should be small and read from front to back: with parts of 1680 bytes and two runs of loads in
    each, an EPYC (Zen 4) core read q6_K at 5 to 9 GB/s from memory, with these of 416 at 22.
    """
    fields = packed.fields
    assert fields is not None
    parts, parts_at = fields["parts"][:2] if "parts" in fields else (np.dtype((packed, (1,))), 0)
    n_parts = parts.shape[0]
    packed_bytes, part_bytes = packed.itemsize, parts.base.itemsize
    n_elements = block // n_parts
    n_blocks = n_elements // BLOCK  # of 32 in a part
    share = packed_bytes // n_parts  # of the packed bytes, for a part
    add = add_blocks(unpack, n_blocks, share, PREFETCH_BYTES, 0)

    @inline
    def part_of(w: Int, i: Int) -> Any:
        """Part i of a group: the addresses of its packed block, and its own."""
        i_block = quotient(i, n_parts)
        at = w + i_block * packed_bytes
        return at, at + parts_at + (i - i_block * n_parts) * part_bytes

    @inline
    def accumulate(sums: Any, w: Int, k: Int, rows: Any, n_rows: Int) -> Any:
        for i in range(quotient(k, n_elements)):
            at, part = part_of(w, i)
            sums = add(sums, at, part, 0, rows, i * n_blocks * BLOCK_BYTES, 0)
        return sums

    tiles = tile_products(unpack, part_of, n_blocks, share)
    pairs: PairProducts | UnpackedProducts | None = None
    if two_groups is TwoGroups.AS_PACKED:
        pairs = pair_products(unpack, part_of, n_blocks, share)
    elif two_groups is TwoGroups.UNPACKED:
        assert (n_parts, n_blocks) == (N_PARTS, 1)
        pairs = unpacked_products(unpack, part_of, packed_bytes, part_bytes)
    pack = declare_pack(type_name, stored, packed, repack)
    return PackedFormat(
        type_name=type_name,
        accumulate=accumulate,
        width=8,
        two_groups=pairs,
        quantizes_x=True,
        tiles=tiles,
        block=block,
        stored=stored,
        packed=packed,
        entry=pack,
    )
