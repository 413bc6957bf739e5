"""Prepares x for matrix products: quantised to int8 blocks, as three bf16 a number, or as
contiguous rows of f32.

All kernels write the rows of x contiguously in the order of its dimensions, for any strides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.formats import activations, bf16_parts
from ggmlpy.backends.cpu.formats.activations import (
    BLOCK,
    BLOCK_BYTES,
    HALF,
    MINUS_D_SUM,
    MINUS_D_SUMS,
    MINUS_SUM,
    MINUS_SUMS,
    QS,
    D,
)
from ggmlpy.backends.cpu.kernel import TENSOR, Int, Kernel, Record, inline, kernel
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import (
    absolute,
    is_nan,
    maximum,
    quotient,
    round_even,
    select,
    zero_f32x16,
    zero_i32x16,
)
from ggmlpy.backends.cpu.simd.convert import (
    bf16_part,
    bits_of_f32,
    f32_from_bits,
    f32_to_i32,
    i32_to_i8,
)
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.gather import gather_bf16x16, gather_f16x16, gather_f32x16
from ggmlpy.backends.cpu.simd.memory import (
    load_bf16,
    load_bf16x16,
    load_f16,
    load_f16x16,
    load_f32,
    load_f32x16,
    load_f32x16_part,
    store_bf16x16,
    store_f32,
    store_i8x16,
    store_i32,
)
from ggmlpy.backends.cpu.simd.reduce import max_lanes, sum_lanes

ARGS = np.dtype([("x", TENSOR), ("y", "i8")], align=True)
_quantized_row_bytes = inline(activations.row_bytes)
_split_row_bytes = inline(bf16_parts.row_bytes)
_INF_BITS = 0x7F800000
_TINY_BITS = 8 << 23  # of 2^-119: from there on amax / 127 is not denormal and 127 / amax finite


@inline
def _quantize_block(y: Int, x0: Any, x1: Any) -> None:
    """Writes 32 numbers as a block of formats/activations.py."""
    # The bits of |x| as integers are in the order of |x|, with NaN above inf.
    amax_bits = max_lanes(maximum(bits_of_f32(absolute(x0)), bits_of_f32(absolute(x1))))
    if _TINY_BITS <= amax_bits < _INF_BITS:
        amax = f32_from_bits(amax_bits)
        d = amax / np.float32(127)
        inverse = np.float32(127) / amax
        q0 = f32_to_i32(round_even(x0 * inverse))
        q1 = f32_to_i32(round_even(x1 * inverse))
    else:
        d = np.float32(np.nan) if amax_bits >= _INF_BITS else np.float32(0)
        q0 = zero_i32x16()
        q1 = zero_i32x16()
    sum0 = -sum_lanes(q0)
    sum1 = -sum_lanes(q1)
    store_i8x16(y + QS, i32_to_i8(q0))
    store_i8x16(y + QS + HALF, i32_to_i8(q1))
    store_f32(y + D, d)
    store_f32(y + MINUS_D_SUM, d * np.float32(sum0 + sum1))
    store_f32(y + MINUS_D_SUMS, d * np.float32(sum0))
    store_f32(y + MINUS_D_SUMS + 4, d * np.float32(sum1))
    store_i32(y + MINUS_SUM, sum0 + sum1)
    store_i32(y + MINUS_SUMS, sum0)
    store_i32(y + MINUS_SUMS + 4, sum1)


def _declare_quantize(
    type_name: str, element_bytes: int, load: Intrinsic, gather: Intrinsic
) -> Kernel:
    @kernel("quantize_activations", (type_name,), args=ARGS, name=f"quantize_{type_name}")
    def quantize(p: Record, ith: int, nth: int) -> None:
        """Threads share the blocks, so that a single row is split too."""
        n_blocks = quotient(p.x.ne0, BLOCK)
        n = n_rows(p.x) * n_blocks
        row_bytes = _quantized_row_bytes(p.x.ne0)
        for i in range(share(n, ith, nth), share(n, ith + 1, nth)):
            row = quotient(i, n_blocks)
            block = i - row * n_blocks
            x = row_ptr(p.x, row) + block * BLOCK * p.x.nb0
            y = p.y + row * row_bytes + block * BLOCK_BYTES
            half = x + HALF * p.x.nb0
            if p.x.nb0 == element_bytes:
                _quantize_block(y, load(x), load(half))
            else:
                x0, x1 = gather(x, p.x.nb0), gather(half, p.x.nb0)
                _quantize_block(y, x0, x1)

    return quantize


def _declare_copy(type_name: str, load: Intrinsic) -> Kernel:
    @kernel("copy_activations", (type_name,), args=ARGS, name=f"copy_{type_name}")
    def copy(p: Record, ith: int, nth: int) -> None:
        """Element by element: for x that is f16, bf16 or transposed, which is rare in models."""
        k = p.x.ne0
        rows = n_rows(p.x)
        for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
            x = row_ptr(p.x, row)
            for i in range(k):
                store_f32(p.y + 4 * (row * k + i), load(x + i * p.x.nb0))

    return copy


@inline
def _store_parts(y: Int, x: Any) -> None:
    """Writes 16 numbers in the form of formats/bf16_parts.py."""
    first = bf16_part(x)
    left = x - first
    left = select(is_nan(left), zero_f32x16(), left)  # of inf and NaN
    second = bf16_part(left)
    store_bf16x16(y, first)
    store_bf16x16(y + bf16_parts.PART_BYTES, second)
    store_bf16x16(y + 2 * bf16_parts.PART_BYTES, left - second)


def _declare_split(type_name: str, load: Intrinsic) -> Kernel:
    is_f32 = type_name == "f32"

    @kernel("split_activations", (type_name,), args=ARGS, name=f"split_{type_name}")
    def split(p: Record, ith: int, nth: int) -> None:
        """Threads share the blocks. x that is not contiguous f32 is read element by element."""
        k = p.x.ne0
        n_blocks = quotient(k + bf16_parts.BLOCK - 1, bf16_parts.BLOCK)
        n = n_rows(p.x) * n_blocks
        row_bytes = _split_row_bytes(k)
        for i in range(share(n, ith, nth), share(n, ith + 1, nth)):
            row = quotient(i, n_blocks)
            block = i - row * n_blocks
            n_left = k - block * bf16_parts.BLOCK
            x = row_ptr(p.x, row) + block * bf16_parts.BLOCK * p.x.nb0
            y = p.y + row * row_bytes + block * bf16_parts.BLOCK_BYTES
            if not (is_f32 and p.x.nb0 == 4):
                for j in range(min(n_left, bf16_parts.BLOCK)):
                    store_f32(y + 4 * j, load(x + j * p.x.nb0))
                x = y
            x0, x1 = load_f32x16_part(x, n_left), load_f32x16_part(x + 64, n_left - 16)
            _store_parts(y, x0)
            _store_parts(y + 32, x1)

    return split


QUANTIZE = {  # by the type of x
    "f32": _declare_quantize("f32", 4, load_f32x16, gather_f32x16),
    "f16": _declare_quantize("f16", 2, load_f16x16, gather_f16x16),
    "bf16": _declare_quantize("bf16", 2, load_bf16x16, gather_bf16x16),
}
COPY = {
    "f32": _declare_copy("f32", load_f32),
    "f16": _declare_copy("f16", load_f16),
    "bf16": _declare_copy("bf16", load_bf16),
}
SPLIT = {
    "f32": _declare_split("f32", load_f32),
    "f16": _declare_split("f16", load_f16),
    "bf16": _declare_split("bf16", load_bf16),
}
