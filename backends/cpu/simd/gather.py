"""Strided loads of 16 numbers, for operands that are not contiguous: slow, for any stride."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.convert import from_bf16_bits, from_f16_bits
from ggmlpy.backends.cpu.simd.core import Emitter, Scalar, f32, f32x16, i16, i64, intrinsic


def _gather(b: Emitter, ptr: Any, stride: Any, elem: Scalar) -> Any:
    vector = ir.Constant(ir.VectorType(elem.ir, 16), ir.Undefined)
    for i in range(16):
        vector = b.insert_element(vector, b.load_from(ptr, elem), ir.Constant(ir.IntType(32), i))
        ptr = b.add(ptr, stride)
    return vector


@intrinsic(f32x16, i64, i64)
def gather_f32x16(b: Emitter, ptr: Any, stride: Any) -> Any:
    """16 f32, `stride` bytes apart."""
    return _gather(b, ptr, stride, f32)


@intrinsic(f32x16, i64, i64)
def gather_f16x16(b: Emitter, ptr: Any, stride: Any) -> Any:
    """16 f16, `stride` bytes apart, as f32."""
    return from_f16_bits(b, _gather(b, ptr, stride, i16))


@intrinsic(f32x16, i64, i64)
def gather_bf16x16(b: Emitter, ptr: Any, stride: Any) -> Any:
    """16 bf16, `stride` bytes apart, as f32."""
    return from_bf16_bits(b, _gather(b, ptr, stride, i16))
