"""How attention reads rows of K and V: as they are stored, or converted to f32 first.

For one query, K and V of one type (f16, bf16, f32) are read by the products themselves. Of any
other pair of types, and for several queries together, rows are converted to f32 in scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ggmlpy.backends.cpu.kernel import Int, inline
from ggmlpy.backends.cpu.kernels.attention_memory import padded_bytes
from ggmlpy.backends.cpu.kernels.dequantize import CACHE_TYPES, read_any
from ggmlpy.backends.cpu.simd.arith import zero_f32x16
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.memory import (
    load_bf16x16,
    load_f16x16,
    load_f32x16,
    load_i64,
    store_f32x16,
)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads rows of K and V: `load` loads 16 elements from `vector_bytes`, of rows as they are
    stored, or of f32 where `converts`."""

    name: str
    load: Intrinsic
    vector_bytes: int
    pairs: Sequence[tuple[str, str]]  # types of K and V
    converts: bool = False

    def takes(self, node: Any) -> bool:
        """Whether rows consist of whole vectors, where that is needed."""
        whole = node.src[1].ne[0] % 16 == 0 and node.src[2].ne[0] % 16 == 0
        return self.converts or whole


READERS = (
    Reader("f16", load_f16x16, 32, [("f16", "f16")]),
    Reader("bf16", load_bf16x16, 32, [("bf16", "bf16")]),
    Reader("f32", load_f32x16, 64, [("f32", "f32")]),
    Reader("any", load_f32x16, 64, [(k, v) for k in CACHE_TYPES for v in CACHE_TYPES], True),
)


@dataclass(frozen=True, slots=True)
class TileShape:
    """What is multiplied at a time where several queries are attended to together."""

    n_rows: int  # queries with their heads
    n_keys: int  # vectors of 16 cells: a divisor of 4
    n_columns: int  # vectors of a row of V


@dataclass(frozen=True, slots=True)
class Variant:
    """What the kernel's code is generated for."""

    needs: str  # instruction set
    n_heads: int  # heads of q that are multiplied at a time
    n_accumulators: int  # vectors of sums that stay in registers
    fits: Callable[[int], bool]  # number of heads of q that share a head of K -> whether to use it
    tile: TileShape
    reader: Reader

    @property
    def name(self) -> str:
        return f"{self.needs}_{self.n_heads}_{self.reader.name}"

    def takes(self, node: Any) -> bool:
        return self.fits(node.src[0].ne[2] // node.src[1].ne[2]) and self.reader.takes(node)


@inline
def convert_rows(type: Int, base: Int, offsets: Int, n_rows: Int, rows: Int, n: Int) -> None:
    """Rows of n elements at base + each offset as f32, padded with zeros to whole vectors."""
    row_bytes = padded_bytes(n)
    for j in range(n_rows):
        row = rows + j * row_bytes
        if n & 15 != 0:
            store_f32x16(row + row_bytes - 64, zero_f32x16())
        read_any(type, base + load_i64(offsets + 8 * j), row, n)
