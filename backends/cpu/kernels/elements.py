"""Elements of any plain type, at any stride, to and from f32 in scratch memory.

Kernels without a variant for each type and stride work on one such piece at a time.
"""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, inline
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.dequantize import read_bf16, read_f16, read_f32
from ggmlpy.backends.cpu.kernels.quantize import write_bf16, write_f16
from ggmlpy.backends.cpu.simd.memory import (
    load_bf16,
    load_f16,
    load_f32,
    load_i32,
    store_bf16,
    store_f16,
    store_f32,
    store_i32,
)

PIECE = 256  # elements of scratch memory that a thread works on

_F16, _BF16, _I32 = types.F16, types.BF16, types.I32


@inline
def read_elements(type: Int, src: Int, stride: Int, n: Int, dst: Int) -> None:
    """n elements, `stride` bytes apart, as contiguous f32; i32 are rounded."""
    if type == _F16:
        if stride == 2:
            read_f16(src, dst, n)
        else:
            for i in range(n):
                store_f32(dst + 4 * i, load_f16(src + stride * i))
    elif type == _BF16:
        if stride == 2:
            read_bf16(src, dst, n)
        else:
            for i in range(n):
                store_f32(dst + 4 * i, load_bf16(src + stride * i))
    elif type == _I32:
        for i in range(n):
            store_f32(dst + 4 * i, np.float32(load_i32(src + stride * i)))
    elif stride == 4:
        read_f32(src, dst, n)
    else:
        for i in range(n):
            store_f32(dst + 4 * i, load_f32(src + stride * i))


@inline
def write_elements(type: Int, src: Int, dst: Int, stride: Int, n: Int) -> None:
    """n contiguous f32 as elements `stride` bytes apart; for i32 they are truncated."""
    if type == _F16:
        if stride == 2:
            write_f16(src, dst, n)
        else:
            for i in range(n):
                store_f16(dst + stride * i, load_f32(src + 4 * i))
    elif type == _BF16:
        if stride == 2:
            write_bf16(src, dst, n)
        else:
            for i in range(n):
                store_bf16(dst + stride * i, load_f32(src + 4 * i))
    elif type == _I32:
        for i in range(n):
            store_i32(dst + stride * i, np.int32(load_f32(src + 4 * i)))
    elif stride == 4:
        read_f32(src, dst, n)
    else:
        for i in range(n):
            store_f32(dst + stride * i, load_f32(src + 4 * i))
