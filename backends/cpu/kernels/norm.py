"""Normalisation of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Record, kernel
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import fma, sqrt, zero_f32x16
from ggmlpy.backends.cpu.simd.memory import (
    load_f32x16,
    load_f32x16_part,
    store_f32x16,
    store_f32x16_part,
)
from ggmlpy.backends.cpu.simd.reduce import sum_lanes

ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("eps", "f4")], align=True)


def requires(node: Any) -> bool:
    return bool(node.src[0].rows_contiguous and node.rows_contiguous)


@kernel("rms_norm", ("f32",), args=ARGS, requires=requires)
def rms_norm_f32(p: Record, ith: int, nth: int) -> None:
    """y = x / sqrt(mean(x^2) + eps) along ne0. Lane i sums elements i, i + 16, ...; then a tree."""
    n = p.x.ne0
    whole = n - n % 16
    rows = n_rows(p.x)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        x = row_ptr(p.x, row)
        y = row_ptr(p.y, row)

        squares = zero_f32x16()
        for i in range(0, whole, 16):
            v = load_f32x16(x + 4 * i)
            squares = fma(v, v, squares)
        v = load_f32x16_part(x + 4 * whole, n - whole)
        squares = fma(v, v, squares)
        scale = np.float32(1) / sqrt(sum_lanes(squares) / np.float32(n) + p.eps)

        for i in range(0, whole, 16):
            store_f32x16(y + 4 * i, load_f32x16(x + 4 * i) * scale)
        v = load_f32x16_part(x + 4 * whole, n - whole)
        store_f32x16_part(y + 4 * whole, v * scale, n - whole)
