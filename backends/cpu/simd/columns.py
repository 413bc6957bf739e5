"""Products with rows that lie transposed: element i of 16 rows is a vector, one lane for each row.

The dot products of 16 rows come in one vector, without shuffles, and each of them has the bits of a
product whose 16 lanes are summed at the end (reduce.sum_lanes).
"""

from __future__ import annotations

from typing import Any

from ggmlpy.backends.cpu.simd.block import row_at
from ggmlpy.backends.cpu.simd.core import Emitter, f32x16, i64, intrinsic, void
from ggmlpy.backends.cpu.simd.transpose import transposed


@intrinsic(void, i64, i64, i64, i64)
def transpose16(b: Emitter, src: Any, src_bytes: Any, dst: Any, dst_bytes: Any) -> None:
    """16 numbers of 32 bits of 16 rows: element (r, c), at src + r * src_bytes + 4 * c, to
    dst + c * dst_bytes + 4 * r."""
    rows = [b.load_from(row_at(b, src, src_bytes, r), f32x16) for r in range(16)]
    for c, column in enumerate(transposed(b, rows)):
        b.store_to(row_at(b, dst, dst_bytes, c), column)


@intrinsic(f32x16, i64, i64)
def sum_halved(b: Emitter, ptr: Any, stride: Any) -> Any:
    """The sum of the 8 vectors at ptr, ptr + stride, ..., in the order in which `sum_lanes` adds 8
    lanes: those that are left when lane i + 8 has been added to lane i."""
    vectors = [b.load_from(row_at(b, ptr, stride, i), f32x16) for i in range(8)]
    while len(vectors) > 1:
        n = len(vectors) // 2
        vectors = [b.fadd(x, y) for x, y in zip(vectors[:n], vectors[n:], strict=True)]
    return vectors[0]
