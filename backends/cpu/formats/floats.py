"""f32, f16, bf16: 16 rows side by side, element by element. x stays f32.

stored   w                      packed   w of rows 0..15      32 or 64 bytes for each of k
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.formats.base import PREFETCH_BYTES, Format
from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.memory import load_bf16x16, load_f16x16, load_f32x16
from ggmlpy.backends.cpu.simd.product import add_outer, add_tiles, prefetch_bytes


def _repack(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["w"] = stored["w"].swapaxes(1, 2)


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


def _format(type_name: str, element: str, load: Intrinsic) -> Format:
    stored = np.dtype([("w", element)])
    packed = np.dtype([("w", element, 16)])
    return Format(
        type_name,
        block=1,
        stored=stored,
        packed=packed,
        repack=_repack,
        accumulate=_accumulate(load, packed.itemsize),
        quantizes_x=False,
    )


F32_FORMAT = _format("f32", "<u4", load_f32x16)
F16_FORMAT = _format("f16", "<u2", load_f16x16)
BF16_FORMAT = _format("bf16", "<u2", load_bf16x16)
