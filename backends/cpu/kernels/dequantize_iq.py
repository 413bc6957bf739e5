"""Stored rows of the types below 4 bits that are not k-quants, to f32.

As in dequantize.py: `read_*(src, dst, n)`, with ggml's own roundings. The iq1, iq2 and iq3 types
name rows of a grid, 8 or 4 weights at once; the grids are the gguf package's, and become part of
the machine code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf.quants
import numpy as np
from llvmlite import ir

from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.kernels.dequantize import mxfp4_values
from ggmlpy.backends.cpu.simd.arith import select, shift_right, splat_f32x16
from ggmlpy.backends.cpu.simd.convert import (
    f16_from_bits,
    f32_from_bits,
    i8_to_i32,
    i32_to_f32,
    lookup_i8x16,
    mask_of_bits,
    u8_to_i32,
)
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Intrinsic,
    i8,
    i8x16,
    i32,
    i32x16,
    i64,
    intrinsic,
)
from ggmlpy.backends.cpu.simd.memory import (
    load_f16,
    load_i8x16_part,
    load_u8,
    load_u8x16_as_i32,
    load_u16,
    load_u32,
    store_f32x16,
    store_f32x16_part,
)

# --- tables in the machine code -------------------------------------------------------------------


def byte_table(name: str, make: Callable[[], bytes]) -> Intrinsic:
    """An intrinsic without arguments: the address of constant bytes."""

    @intrinsic(i64)
    def address(b: Emitter) -> Any:
        table = b.module.globals.get(name)
        if table is None:
            data = bytearray(make())
            kind = ir.ArrayType(i8.ir, len(data))
            table = ir.GlobalVariable(b.module, kind, name)
            table.initializer = ir.Constant(kind, data)
            table.global_constant = True
            table.linkage = "internal"
        return b.ptrtoint(table, i64.ir)

    return address


def _grid(type: Any) -> Intrinsic:
    """The rows of a type's grid, one byte per weight."""

    def make() -> bytes:
        type.init_grid()
        return bytes(type.grid.astype(np.int8).tobytes())

    return byte_table(f"grid_{type.__name__}", make)


iq2_xxs_grid, iq2_xs_grid, iq2_s_grid = map(
    _grid, (gguf.quants.IQ2_XXS, gguf.quants.IQ2_XS, gguf.quants.IQ2_S)
)
iq3_xxs_grid, iq3_s_grid = map(_grid, (gguf.quants.IQ3_XXS, gguf.quants.IQ3_S))
iq1_grid = _grid(gguf.quants.IQ1_S)
sign_table = byte_table(
    "signs", lambda: bytes(gguf.quants.IQ2_XXS.ksigns)
)  # 7 bits -> 8, even parity


@intrinsic(i8x16, i64, i64)
def load_8_and_8(b: Emitter, x: Any, y: Any) -> Any:
    """8 bytes at x, then 8 bytes at y: two rows of a grid."""
    pair = ir.Constant(ir.VectorType(i64.ir, 2), ir.Undefined)
    for i, address in enumerate((x, y)):
        pair = b.insert_element(pair, b.load_from(address, i64), ir.Constant(i32.ir, i))
    return b.bitcast(pair, i8x16.ir)


@intrinsic(i8x16, i64, i64, i64, i64)
def load_4_times_4(b: Emitter, x0: Any, x1: Any, x2: Any, x3: Any) -> Any:
    """4 bytes at each address: four rows of a grid."""
    words = ir.Constant(ir.VectorType(i32.ir, 4), ir.Undefined)
    for i, address in enumerate((x0, x1, x2, x3)):
        words = b.insert_element(words, b.load_from(address, i32), ir.Constant(i32.ir, i))
    return b.bitcast(words, i8x16.ir)


# --- iq2, iq3: magnitudes by a grid, signs by bits ------------------------------------------------


@inline
def write_signed(dst: Int, magnitudes: Any, signs: Int, d: Any) -> None:
    """16 weights: d times bytes, negative where a bit of `signs` is set."""
    v = select(mask_of_bits(signs), 0 - magnitudes, magnitudes)
    store_f32x16(dst, i32_to_f32(i8_to_i32(v)) * d)


@inline
def two_signs(low: Int, high: Int) -> Int:
    """16 signs, from two times 7 bits."""
    return load_u8(sign_table() + (low & 127)) | load_u8(sign_table() + (high & 127)) << 8


@inline
def read_iq2_xxs(src: Int, dst: Int, n: Int) -> None:
    """d f16 | 8 x (4 x u8 rows of the grid | u32: 4 x 7 bits of signs, 4 of scale) -> 256 weights,
    66 bytes."""
    for i in range(0, n, 256):
        d = load_f16(src)
        for j in range(8):
            at = src + 2 + 8 * j
            word = load_u32(at + 4)
            db = d * (np.float32(0.5) + np.float32(word >> 28)) * np.float32(0.25)
            for half in range(2):
                first = iq2_xxs_grid() + 8 * load_u8(at + 2 * half)
                second = iq2_xxs_grid() + 8 * load_u8(at + 2 * half + 1)
                signs = two_signs(word >> (14 * half), word >> (14 * half + 7))
                to = dst + 4 * (i + 32 * j + 16 * half)
                write_signed(to, load_8_and_8(first, second), signs, db)
        src += 66


@inline
def read_iq2_xs(src: Int, dst: Int, n: Int) -> None:
    """d f16 | 32 x u16: 9 bits of a row, 7 of signs | scales 8 x u8, a nibble for every 16 weights
    -> 256 weights, 74 bytes."""
    for i in range(0, n, 256):
        d = load_f16(src)
        for j in range(16):
            first, second = load_u16(src + 2 + 4 * j), load_u16(src + 4 + 4 * j)
            scale = load_u8(src + 66 + (j >> 1)) >> (4 * (j & 1)) & 15
            db = d * (np.float32(0.5) + np.float32(scale)) * np.float32(0.25)
            grid = iq2_xs_grid()
            v = load_8_and_8(grid + 8 * (first & 511), grid + 8 * (second & 511))
            write_signed(dst + 4 * (i + 16 * j), v, two_signs(first >> 9, second >> 9), db)
        src += 74


@inline
def read_iq2_s(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qs 32 x u8 | signs 32 x u8 | qh 8 x u8, two bits on top of each of qs | scales as in
    iq2_xs -> 256 weights, 82 bytes."""
    for i in range(0, n, 256):
        d = load_f16(src)
        for j in range(16):
            high = load_u8(src + 66 + (j >> 1)) >> (4 * (j & 1))
            first = load_u8(src + 2 + 2 * j) | (high & 3) << 8
            second = load_u8(src + 3 + 2 * j) | (high & 12) << 6
            scale = load_u8(src + 74 + (j >> 1)) >> (4 * (j & 1)) & 15
            db = d * (np.float32(0.5) + np.float32(scale)) * np.float32(0.25)
            v = load_8_and_8(iq2_s_grid() + 8 * first, iq2_s_grid() + 8 * second)
            write_signed(dst + 4 * (i + 16 * j), v, load_u16(src + 34 + 2 * j), db)
        src += 82


@inline
def read_iq3_xxs(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qs 64 x u8 rows of 4 | 8 x u32: signs and scale as in iq2_xxs -> 256 weights,
    98 bytes."""
    for i in range(0, n, 256):
        d = load_f16(src)
        for j in range(16):
            word = load_u32(src + 66 + 4 * (j >> 1))
            db = d * (np.float32(0.5) + np.float32(word >> 28)) * np.float32(0.5)
            signs = two_signs(word >> (14 * (j & 1)), word >> (14 * (j & 1) + 7))
            grid, at = iq3_xxs_grid(), src + 2 + 4 * j
            v = load_4_times_4(
                grid + 4 * load_u8(at),
                grid + 4 * load_u8(at + 1),
                grid + 4 * load_u8(at + 2),
                grid + 4 * load_u8(at + 3),
            )
            write_signed(dst + 4 * (i + 16 * j), v, signs, db)
        src += 98


@inline
def read_iq3_s(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qs 64 x u8 | qh 8 x u8, a bit on top of each of qs | signs 32 x u8 | scales 4 x u8,
    a nibble for every 32 weights -> 256 weights, 110 bytes."""
    for i in range(0, n, 256):
        d = load_f16(src)
        for j in range(16):
            high = load_u8(src + 66 + (j >> 1)) >> (4 * (j & 1))
            scale = load_u8(src + 106 + (j >> 2)) >> (4 * (j >> 1 & 1)) & 15
            db = d * np.float32(1 + 2 * scale)
            grid, at = iq3_s_grid(), src + 2 + 4 * j
            v = load_4_times_4(
                grid + 4 * (load_u8(at) | (high & 1) << 8),
                grid + 4 * (load_u8(at + 1) | (high & 2) << 7),
                grid + 4 * (load_u8(at + 2) | (high & 4) << 6),
                grid + 4 * (load_u8(at + 3) | (high & 8) << 5),
            )
            write_signed(dst + 4 * (i + 16 * j), v, load_u16(src + 74 + 2 * j), db)
        src += 110


# --- iq1: -1, 0, 1 by a grid, and a shift ---------------------------------------------------------


@inline
def write_shifted(dst: Int, first: Int, second: Int, negative: Int, d: Any) -> None:
    """16 weights of two rows of the grid: d * (grid - 1/8) where a bit is set, else + 1/8."""
    v = i32_to_f32(i8_to_i32(load_8_and_8(iq1_grid() + 8 * first, iq1_grid() + 8 * second)))
    shift = select(mask_of_bits(negative), splat_f32x16(-0.125), 0.125)
    store_f32x16(dst, (v + shift) * d)


@inline
def read_iq1_s(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qs 32 x u8 | 8 x u16: 4 x 3 bits on top of qs, 3 of scale, the shift's sign -> 256
    weights, 50 bytes."""
    for i in range(0, n, 256):
        d = load_f16(src)
        for j in range(16):
            word = load_u16(src + 34 + 2 * (j >> 1))
            high = word >> (6 * (j & 1))
            first = load_u8(src + 2 + 2 * j) | (high & 7) << 8
            second = load_u8(src + 3 + 2 * j) | (high & 56) << 5
            dl = d * np.float32(2 * (word >> 12 & 7) + 1)
            write_shifted(dst + 4 * (i + 16 * j), first, second, (word >> 15) * 0xFFFF, dl)
        src += 50


@inline
def read_iq1_m(src: Int, dst: Int, n: Int) -> None:
    """qs 32 x u8 | qh 16 x u8 | scales 4 x u16 -> 256 weights, 56 bytes.

    A nibble of qh: 3 bits on top of qs and the shift's sign. A word of scales: 3 bits for each of
    4 runs of 16, and a nibble of the f16 that scales them all.
    """
    for i in range(0, n, 256):
        bits = 0
        for j in range(4):
            bits |= load_u16(src + 48 + 2 * j) >> 12 << (4 * j)
        d = f16_from_bits(bits)
        for j in range(16):
            high = load_u8(src + 32 + j)
            first = load_u8(src + 2 * j) | (high & 7) << 8
            second = load_u8(src + 2 * j + 1) | (high & 0x70) << 4
            scale = load_u16(src + 48 + 2 * (j >> 2)) >> (3 * (j & 3)) & 7
            negative = (high >> 3 & 1) * 0xFF | (high >> 7) * 0xFF00
            dl = d * np.float32(2 * scale + 1)
            write_shifted(dst + 4 * (i + 16 * j), first, second, negative, dl)
        src += 56


# --- two to four values, and FP4 with two kinds of scale ------------------------------------------


@inline
def read_tq2_0(src: Int, dst: Int, n: Int) -> None:
    """qs 64 x u8 | d f16 -> 256 weights d * (q - 1), 66 bytes: of 32 bytes the two lowest bits,
    then the next two, and so on."""
    for i in range(0, n, 256):
        d = load_f16(src + 64)
        for j in range(4):
            q = load_u8x16_as_i32(src + 16 * j)
            at = dst + 4 * (i + 128 * (j >> 1) + 16 * (j & 1))
            for part in range(4):
                store_f32x16(at + 128 * part, i32_to_f32((q & 3) - 1) * d)
                q = shift_right(q, 2)
        src += 66


@inline
def trits(q: Any, power: Int) -> Any:
    """Digit -1, 0 or 1 of 16 bytes, each 5 digits as a fraction of 256; `power` is 3^digit."""
    return i32_to_f32(shift_right((q * power & 255) * 3, 8) - 1)


@inline
def read_tq1_0(src: Int, dst: Int, n: Int) -> None:
    """qs 48 x u8 | qh 4 x u8 | d f16 -> 256 weights of base 3, 54 bytes.

    The first digits of 32 bytes, the second ones ... the fifth; so for 16 bytes, and for 4 (qh, of
    four digits).
    """
    for i in range(0, n, 256):
        d = load_f16(src + 52)
        power = 1
        for digit in range(5):
            at = dst + 4 * i
            store_f32x16(at + 128 * digit, trits(load_u8x16_as_i32(src), power) * d)
            store_f32x16(at + 128 * digit + 64, trits(load_u8x16_as_i32(src + 16), power) * d)
            store_f32x16(at + 640 + 64 * digit, trits(load_u8x16_as_i32(src + 32), power) * d)
            if digit < 4:
                last = u8_to_i32(load_i8x16_part(src + 48, 4))
                store_f32x16_part(at + 960 + 16 * digit, trits(last, power) * d, 4)
            power *= 3
        src += 54


@inline
def read_q1_0(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qs 16 x u8 -> 128 weights, d where the weight's bit is set, else -d, 18 bytes."""
    for i in range(0, n, 128):
        d = load_f16(src)
        for j in range(8):
            signs = mask_of_bits(load_u16(src + 2 + 2 * j))
            store_f32x16(dst + 4 * (i + 16 * j), select(signs, splat_f32x16(d), -d))
        src += 18


@intrinsic(i32x16, i64)
def pairs_of_word(b: Emitter, word: Any) -> Any:
    """The 16 numbers of 2 bits in a word, lowest first."""
    words = b.splat(b.trunc(word, i32.ir), 16)
    shifts = ir.Constant(i32x16.ir, [2 * i for i in range(16)])
    return b.and_(b.lshr(words, shifts), b.const(i32x16.ir, 3))


@inline
def read_q2_0(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qs 16 x u8 -> 64 weights d * (q - 1), four of 2 bits in a byte, 18 bytes."""
    for i in range(0, n, 64):
        d = load_f16(src)
        for j in range(4):
            q = pairs_of_word(load_u32(src + 2 + 4 * j))
            store_f32x16(dst + 4 * (i + 16 * j), i32_to_f32(q - 1) * d)
        src += 18


@inline
def half_ue4m3(x: Int) -> Any:
    """Half of an unsigned number of 4 bits of exponent and 3 of mantissa; 0x7F stands for 0."""
    exponent, mantissa = x >> 3 & 15, x & 7
    if x == 0x7F:
        return np.float32(0)
    if exponent == 0:
        return np.float32(mantissa) * np.float32(2.0**-10)
    return f32_from_bits((exponent + 119) << 23 | mantissa << 20)


@inline
def read_nvfp4(src: Int, dst: Int, n: Int) -> None:
    """d 4 x u8 | qs 32 x u8 -> 64 weights, 36 bytes: of every 16 the low nibbles of 8 bytes, then
    the high ones, with the codes of mxfp4."""
    for i in range(0, n, 64):
        for j in range(4):
            d = half_ue4m3(load_u8(src + j))
            codes = load_i8x16_part(src + 4 + 8 * j, 8)
            at = dst + 4 * (i + 16 * j)
            low = i8_to_i32(lookup_i8x16(mxfp4_values(), codes & 15))
            high = i8_to_i32(lookup_i8x16(mxfp4_values(), shift_right(codes, 4)))
            store_f32x16_part(at, i32_to_f32(low) * d, 8)
            store_f32x16_part(at + 32, i32_to_f32(high) * d, 8)
        src += 36


READERS: dict[str, Inline] = {
    "iq2_xxs": read_iq2_xxs,
    "iq2_xs": read_iq2_xs,
    "iq2_s": read_iq2_s,
    "iq3_xxs": read_iq3_xxs,
    "iq3_s": read_iq3_s,
    "iq1_s": read_iq1_s,
    "iq1_m": read_iq1_m,
    "tq1_0": read_tq1_0,
    "tq2_0": read_tq2_0,
    "q1_0": read_q1_0,
    "q2_0": read_q2_0,
    "nvfp4": read_nvfp4,
}
