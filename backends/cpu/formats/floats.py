"""f32, f16, bf16: 16 rows side by side, element by element. x stays f32.

stored   w                      packed   w of rows 0..15      32 or 64 bytes for each of k
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.formats.base import PREFETCH_BYTES, Format
from ggmlpy.backends.cpu.formats.columns import CHUNK_BYTES, Repack, Stored, declare_pack, split
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd.core import Emitter, Intrinsic, i16x16
from ggmlpy.backends.cpu.simd.memory import load_bf16x16, load_f16x16, load_f32x16
from ggmlpy.backends.cpu.simd.product import add_outer, add_tiles, after, prefetch_bytes


def _repack_one(b: Emitter, stored: Stored, out: Any) -> None:
    """One element of k."""
    b.store_to(out, stored.single("w"))


def _repack_f32(b: Emitter, stored: Stored, out: Any) -> None:
    """Four elements of k."""
    for i, column in enumerate(stored.words("blocks")):
        b.store_to(after(b, out, 64 * i), column)


def _repack_f16(b: Emitter, stored: Stored, out: Any) -> None:
    """Eight elements of k: two in every column of words."""
    for i, column in enumerate(stored.words("blocks")):
        for j, half in enumerate(split(b, column, i16x16)):
            b.store_to(after(b, out, 64 * i + 32 * j), half)


def _accumulate(load: Intrinsic, vector_bytes: int) -> Inline:
    pair_bytes = 2 * vector_bytes

    @inline
    def accumulate(sums: Any, w: Int, k: Int, rows: Any) -> Any:
        """Even and odd elements are summed apart, so that two chains of fma hide each other's
        latency where there is one row of x; sums start from `sums`, which are zero."""
        odd = sums
        at = 0
        for _ in range(k // 2):
            sums = add_outer(sums, load(w), rows, at)
            odd = add_outer(odd, load(w + vector_bytes), rows, at + 4)
            prefetch_bytes(w + PREFETCH_BYTES, pair_bytes)
            w += pair_bytes
            at += 8
        if k % 2:
            sums = add_outer(sums, load(w), rows, at)
        return add_tiles(sums, odd)

    return accumulate


def _format(type_name: str, element: str, many: Repack, load: Intrinsic) -> Format:
    stored, packed = np.dtype([("w", element)]), np.dtype([("w", element, 16)])
    repacks = {1: _repack_one, CHUNK_BYTES // stored.itemsize: many}
    return Format(
        type_name,
        block=1,
        stored=stored,
        packed=packed,
        entry=declare_pack(type_name, stored, packed, repacks),
        accumulate=_accumulate(load, packed.itemsize),
        quantizes_x=False,
    )


F32_FORMAT = _format("f32", "<u4", _repack_f32, load_f32x16)
F16_FORMAT = _format("f16", "<u2", _repack_f16, load_f16x16)
BF16_FORMAT = _format("bf16", "<u2", _repack_f16, load_bf16x16)
