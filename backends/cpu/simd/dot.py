"""int8 products summed in fours: exact in int32, so every instruction set gives the same bits.

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from typing import Any

from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Vec,
    i8x32,
    i8x64,
    i16,
    i16x16,
    i16x32,
    i32,
    i32x16,
    intrinsic,
)


@intrinsic(i32x16, i32x16, i8x64, i8x64)
def dot4_u8s8(b: Emitter, acc: Any, u: Any, s: Any) -> Any:
    """acc[i] + sum over k < 4 of u[4i + k] * s[4i + k], u unsigned and s signed bytes."""
    if "vnni" in b.isa.has:
        operands = acc, b.bitcast(u, i32x16.ir), b.bitcast(s, i32x16.ir)
        if "avx512" in b.isa.has:
            return b.llvm("llvm.x86.avx512.vpdpbusd.512", i32x16.ir, *operands)
        halves = ([b.lanes(x, start, 8) for x in operands] for start in (0, 8))
        half = Vec(i32, 8).ir
        return b.concat(*(b.llvm("llvm.x86.avx512.vpdpbusd.256", half, *h) for h in halves))
    u_even, u_odd = _split_unsigned(b, u)
    s_even, s_odd = _split_signed(b, s)
    if "avx2" in b.isa.has:
        even, odd = _multiply_add_pairs(b, u_even, s_even), _multiply_add_pairs(b, u_odd, s_odd)
    else:
        # 255 * -128 fits 16 bits, so the products do; their sums need not.
        even, odd = _add_pairs(b, b.mul(u_even, s_even)), _add_pairs(b, b.mul(u_odd, s_odd))
    return b.add(acc, b.add(even, odd))


@intrinsic(i32x16, i32x16, i8x64, i8x64)
def dot4_u7s8(b: Emitter, acc: Any, u: Any, s: Any) -> Any:
    """The same for u below 128, as nibbles and 6-bit weights are: half the work without VNNI."""
    if "vnni" in b.isa.has or "avx2" not in b.isa.has:
        return dot4_u8s8(b, acc, u, s)
    # 2 * 127 * 128 fits 16 bits.
    return add_dot2s(b, acc, dot2_u8s8(b, u, s))


@intrinsic(i16x32, i8x64, i8x64)
def dot2_u8s8(b: Emitter, u: Any, s: Any) -> Any:
    """u[2i] * s[2i] + u[2i + 1] * s[2i + 1], which must fit 16 bits. Needs AVX2."""
    return _by_halves(b, "llvm.x86.avx2.pmadd.ub.sw", i16x16, u, s)


@intrinsic(i32x16, i32x16, i16x32)
def add_dot2s(b: Emitter, acc: Any, pairs: Any) -> Any:
    """acc[i] + pairs[2i] + pairs[2i + 1]."""
    return b.add(acc, _multiply_add_pairs(b, pairs, b.const(i16x32.ir, 1)))


@intrinsic(i8x64, i8x64, i8x64)
def with_sign(b: Emitter, x: Any, y: Any) -> Any:
    """x where y > 0, -x where y < 0, else 0, of signed bytes; -(-128) is -128. Needs AVX2."""
    return _by_halves(b, "llvm.x86.avx2.psign.b", i8x32, x, y)


@intrinsic(i32x16, i32x16, i8x64, i8x64)
def dot4_s8s8(b: Emitter, acc: Any, x: Any, y: Any) -> Any:
    """acc[i] + sum over k < 4 of x[4i + k] * y[4i + k], signed bytes."""
    x_even, x_odd = _split_signed(b, x)
    y_even, y_odd = _split_signed(b, y)
    if "avx2" in b.isa.has:
        even, odd = _multiply_add_pairs(b, x_even, y_even), _multiply_add_pairs(b, x_odd, y_odd)
    else:
        even, odd = _add_pairs(b, b.mul(x_even, y_even)), _add_pairs(b, b.mul(x_odd, y_odd))
    return b.add(acc, b.add(even, odd))


def _by_halves(b: Emitter, name: str, half: Vec, x: Any, y: Any) -> Any:
    """An instruction of two vectors of 32 bytes, for 64; `half` is its result."""
    halves = (b.llvm(name, half.ir, b.lanes(x, i, 32), b.lanes(y, i, 32)) for i in (0, 32))
    return b.concat(*halves)


def _split_unsigned(b: Emitter, x: Any) -> tuple[Any, Any]:
    """The even and the odd bytes, zero-extended to 16 bits."""
    words = b.bitcast(x, i16x32.ir)
    return b.and_(words, b.const(i16x32.ir, 0xFF)), b.lshr(words, b.const(i16x32.ir, 8))


def _split_signed(b: Emitter, x: Any) -> tuple[Any, Any]:
    """The even and the odd bytes, sign-extended to 16 bits."""
    words = b.bitcast(x, i16x32.ir)
    eight = b.const(i16x32.ir, 8)
    return b.ashr(b.shl(words, eight), eight), b.ashr(words, eight)


def _multiply_add_pairs(b: Emitter, x: Any, y: Any) -> Any:
    """x[2i] * y[2i] + x[2i + 1] * y[2i + 1] of 16-bit lanes, as i32: pmaddwd."""
    if "avx512" in b.isa.has:
        return b.llvm("llvm.x86.avx512.pmaddw.d.512", i32x16.ir, x, y)
    half = Vec(i32, 8).ir
    low, high = (
        b.llvm("llvm.x86.avx2.pmadd.wd", half, b.lanes(x, start, 16), b.lanes(y, start, 16))
        for start in (0, 16)
    )
    return b.concat(low, high)


def _add_pairs(b: Emitter, products: Any) -> Any:
    """p[2i] + p[2i + 1] of signed 16-bit lanes, as i32."""
    assert products.type == Vec(i16, 32).ir
    pairs = b.bitcast(products, i32x16.ir)
    sixteen = b.const(i32x16.ir, 16)
    return b.add(b.ashr(b.shl(pairs, sixteen), sixteen), b.ashr(pairs, sixteen))
