"""f32 rows to stored rows: one function per type, `write_*(src, dst, n)` for n elements.

The bits are those of ggml's reference quantisers; in iq4_nl blocks of zeros, whose codes ggml does
not define, have the code of the least value. The result for blocks with NaN or infinity is not
defined.
"""

from __future__ import annotations

import numpy as np

from ggmlpy.backends.cpu.kernel import Inline, Int, inline
from ggmlpy.backends.cpu.kernels.dequantize import iq4_values, read_f32
from ggmlpy.backends.cpu.simd.arith import (
    absolute,
    copy_sign,
    equal,
    less,
    lowest_bit,
    maximum,
    minimum,
    select,
    shift_left,
    splat_i32x16,
)
from ggmlpy.backends.cpu.simd.convert import (
    bits_of_mask,
    f32_to_i32,
    i8_to_i32,
    i32_to_f32,
    i32_to_i8,
    lookup_i8x16,
)
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16,
    load_f32x16_part,
    store_bf16x16,
    store_bf16x16_part,
    store_f16,
    store_f16x16,
    store_f16x16_part,
    store_i8x16,
    store_i16,
)
from ggmlpy.backends.cpu.simd.reduce import lane, max_lanes, min_lanes


@inline
def write_f16(src: Int, dst: Int, n: Int) -> None:
    """f16, rounded to nearest even."""
    whole = n & -16
    for i in range(0, whole, 16):
        store_f16x16(dst + 2 * i, load_f32x16(src + 4 * i))
    if n > whole:
        store_f16x16_part(dst + 2 * whole, load_f32x16_part(src + 4 * whole, n - whole), n - whole)


@inline
def write_bf16(src: Int, dst: Int, n: Int) -> None:
    """bf16, rounded to nearest even."""
    whole = n & -16
    for i in range(0, whole, 16):
        store_bf16x16(dst + 2 * i, load_f32x16(src + 4 * i))
    if n > whole:
        store_bf16x16_part(dst + 2 * whole, load_f32x16_part(src + 4 * whole, n - whole), n - whole)


@inline
def inverse(d: Int) -> Int:
    """1 / d, and 0 for 0."""
    return np.float32(0) if d == np.float32(0) else np.float32(1) / d


@inline
def round_half_away(x: Int) -> Int:
    """16 f32 to the nearest i32, halves away from 0."""
    size = absolute(x)
    whole = i32_to_f32(f32_to_i32(size))
    up = select(less(size - whole, 0.5), whole, whole + 1.0)
    return f32_to_i32(copy_sign(up, x))


@inline
def write_q8_0(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qs 32 x i8: d = max |x| / 127, 34 bytes."""
    for i in range(0, n, 32):
        a, b = load_f32x16(src + 4 * i), load_f32x16(src + 4 * i + 64)
        d = max_lanes(maximum(absolute(a), absolute(b))) / np.float32(127)
        scale = inverse(d)
        store_f16(dst, d)
        store_i8x16(dst + 2, i32_to_i8(round_half_away(a * scale)))
        store_i8x16(dst + 18, i32_to_i8(round_half_away(b * scale)))
        dst += 34


@inline
def farthest(x: Int) -> Int:
    """The first of the 32 f32 at x with the largest magnitude, with its sign."""
    a, b = absolute(load_f32x16(x)), absolute(load_f32x16(x + 64))
    largest = max_lanes(maximum(a, b))
    places = bits_of_mask(equal(a, largest)) | (bits_of_mask(equal(b, largest)) << 16)
    return load_f32(x + 4 * (lowest_bit(places) & 31))


@inline
def write_q4_0(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qs 16 x u8: q = x / d + 8 with the farthest x at q = 0, 18 bytes."""
    for i in range(0, n, 32):
        at = src + 4 * i
        d = farthest(at) / np.float32(-8)
        scale = inverse(d)
        low = minimum(f32_to_i32(load_f32x16(at) * scale + 8.5), 15)
        high = minimum(f32_to_i32(load_f32x16(at + 64) * scale + 8.5), 15)
        store_f16(dst, d)
        store_i8x16(dst + 2, i32_to_i8(low | shift_left(high, 4)))
        dst += 18


@inline
def write_q4_1(src: Int, dst: Int, n: Int) -> None:
    """d f16 | m f16 | qs 16 x u8: q = (x - min) / d, 20 bytes."""
    for i in range(0, n, 32):
        a, b = load_f32x16(src + 4 * i), load_f32x16(src + 4 * i + 64)
        least = min_lanes(minimum(a, b))
        d = (max_lanes(maximum(a, b)) - least) / np.float32(15)
        scale = inverse(d)
        low = minimum(f32_to_i32((a - least) * scale + 0.5), 15)
        high = minimum(f32_to_i32((b - least) * scale + 0.5), 15)
        store_f16(dst, d)
        store_f16(dst + 2, least)
        store_i8x16(dst + 4, i32_to_i8(low | shift_left(high, 4)))
        dst += 20


@inline
def write_fives(dst: Int, low: Int, high: Int) -> None:
    """32 numbers of 5 bits: qh u32 (their top bits) | qs 16 x u8 (their nibbles), 20 bytes."""
    store_i16(dst, bits_of_mask(less(15, low)))
    store_i16(dst + 2, bits_of_mask(less(15, high)))
    store_i8x16(dst + 4, i32_to_i8((low & 15) | shift_left(high & 15, 4)))


@inline
def write_q5_0(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qh u32 | qs 16 x u8: q = x / d + 16 with the farthest x at q = 0, 22 bytes."""
    for i in range(0, n, 32):
        at = src + 4 * i
        d = farthest(at) / np.float32(-16)
        scale = inverse(d)
        low = minimum(f32_to_i32(load_f32x16(at) * scale + 16.5), 31)
        high = minimum(f32_to_i32(load_f32x16(at + 64) * scale + 16.5), 31)
        store_f16(dst, d)
        write_fives(dst + 2, low, high)
        dst += 22


@inline
def write_q5_1(src: Int, dst: Int, n: Int) -> None:
    """d f16 | m f16 | qh u32 | qs 16 x u8: q = (x - min) / d, 24 bytes."""
    for i in range(0, n, 32):
        a, b = load_f32x16(src + 4 * i), load_f32x16(src + 4 * i + 64)
        least = min_lanes(minimum(a, b))
        d = (max_lanes(maximum(a, b)) - least) / np.float32(31)
        scale = inverse(d)
        low = minimum(f32_to_i32((a - least) * scale + 0.5), 31)
        high = minimum(f32_to_i32((b - least) * scale + 0.5), 31)
        store_f16(dst, d)
        store_f16(dst + 2, least)
        write_fives(dst + 4, low, high)
        dst += 24


IQ4_MIDDLES = tuple(  # between neighbouring values: from one on, a number has the next code
    np.float32(x)
    for x in (-115.5, -93.5, -74, -57, -42, -28.5, -16, -4.5, 7, 19, 31.5, 45.5, 61, 79, 101)
)


@inline
def iq4_codes(x: Int) -> Int:
    """16 f32 to the codes of the nearest values; ties go to the larger value."""
    codes = splat_i32x16(15)
    for middle in IQ4_MIDDLES:
        codes = codes - select(less(x, middle), splat_i32x16(1), 0)
    return codes


@inline
def add_in_order(total: Int, x: Int) -> Int:
    """A sum and the 16 lanes of x, added one after another."""
    for i in range(16):
        total += lane(x, i)
    return total


@inline
def write_iq4_nl(src: Int, dst: Int, n: Int) -> None:
    """d f16 | qs 16 x u8: codes of x / s for the s that makes the farthest x -127, 18 bytes.

    d = sum(w q x) / sum(w q^2), q the values of the codes and w = x^2, both sums in order.
    """
    for i in range(0, n, 32):
        a, b = load_f32x16(src + 4 * i), load_f32x16(src + 4 * i + 64)
        far = farthest(src + 4 * i)
        d = np.float32(0)
        low, high = splat_i32x16(8), splat_i32x16(8)
        if abs(far) >= np.float32(1e-15):
            scale = np.float32(1) / (far / np.float32(-127))
            low, high = iq4_codes(a * scale), iq4_codes(b * scale)
            q_a = i32_to_f32(i8_to_i32(lookup_i8x16(iq4_values(), i32_to_i8(low))))
            q_b = i32_to_f32(i8_to_i32(lookup_i8x16(iq4_values(), i32_to_i8(high))))
            wq_a, wq_b = a * a * q_a, b * b * q_b
            wqx = add_in_order(add_in_order(np.float32(0), wq_a * a), wq_b * b)
            wqq = add_in_order(add_in_order(np.float32(0), wq_a * q_a), wq_b * q_b)
            d = wqx / wqq
        store_f16(dst, d)
        store_i8x16(dst + 2, i32_to_i8(low | shift_left(high, 4)))
        dst += 18


WRITERS: dict[str, Inline] = {
    "f32": read_f32,
    "f16": write_f16,
    "bf16": write_bf16,
    "q8_0": write_q8_0,
    "q4_0": write_q4_0,
    "q4_1": write_q4_1,
    "q5_0": write_q5_0,
    "q5_1": write_q5_1,
    "iq4_nl": write_iq4_nl,
}
