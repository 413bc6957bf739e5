"""Small compiled functions that apply the vocabulary of kernels to arrays, for the tests.

Few and broad, because every one is compiled for every instruction set. `out` receives one result
after another; `n` counts elements, a multiple of 16 unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ggmlpy.backends.cpu.kernel import Entry, entry
from ggmlpy.backends.cpu.simd import convert, math
from ggmlpy.backends.cpu.simd.arith import (
    absolute,
    copy_sign,
    equal,
    fma,
    iota_i32x16,
    is_nan,
    less,
    maximum,
    minimum,
    quotient,
    remainder,
    round_even,
    select,
    shift_left,
    shift_right,
    splat_f32x16,
    splat_i32x16,
    sqrt,
    zero_f32x16,
    zero_i32x16,
)
from ggmlpy.backends.cpu.simd.core import Emitter, Type, i8x64, i64, intrinsic, void
from ggmlpy.backends.cpu.simd.dot import dot4_s8s8, dot4_u7s8, dot4_u8s8
from ggmlpy.backends.cpu.simd.memory import (
    bcast4_i8x64,
    load_bf16,
    load_bf16x16,
    load_bf16x16_part,
    load_f16,
    load_f16x16,
    load_f16x16_part,
    load_f32,
    load_f32x16,
    load_f32x16_part,
    load_i8,
    load_i8x16,
    load_i8x16_as_i32,
    load_i8x16_part,
    load_i8x64,
    load_i16,
    load_i32,
    load_i32x16,
    load_i64,
    load_u8,
    load_u8x16_as_i32,
    load_u16,
    load_u32,
    prefetch,
    store_bf16,
    store_bf16x16,
    store_bf16x16_part,
    store_f16,
    store_f16x16,
    store_f16x16_part,
    store_f32,
    store_f32x16,
    store_f32x16_part,
    store_fence,
    store_i8,
    store_i8x16,
    store_i8x16_part,
    store_i8x64,
    store_i16,
    store_i32,
    store_i32x16,
    store_i64,
    store_line_past_caches,
)
from ggmlpy.backends.cpu.simd.reduce import lane, max_lanes, min_lanes, sum_lanes

Int = Any
ENTRIES: list[Entry] = []


def compiled(*params: Type) -> Callable[[Callable[..., None]], Entry]:
    """`@entry` without a result, kept in a list."""

    def declare(function: Callable[..., None]) -> Entry:
        made = entry(void, *params)(function)
        ENTRIES.append(made)
        return made

    return declare


@compiled(i64, i64, i64, i64, i64)
def float_arithmetic(x: Int, y: Int, z: Int, out: Int, n: Int) -> None:
    """add sub mul div fma max min sqrt abs copy_sign round, and with a number beside: n each."""
    for at in range(0, 4 * n, 64):
        a, b, c = load_f32x16(x + at), load_f32x16(y + at), load_f32x16(z + at)
        store_f32x16(out + at, a + b)
        store_f32x16(out + 4 * n + at, a - b)
        store_f32x16(out + 8 * n + at, a * b)
        store_f32x16(out + 12 * n + at, a / b)
        store_f32x16(out + 16 * n + at, fma(a, b, c))
        store_f32x16(out + 20 * n + at, maximum(a, b))
        store_f32x16(out + 24 * n + at, minimum(a, b))
        store_f32x16(out + 28 * n + at, sqrt(a))
        store_f32x16(out + 32 * n + at, absolute(a))
        store_f32x16(out + 36 * n + at, copy_sign(a, b))
        store_f32x16(out + 40 * n + at, round_even(a))
        store_f32x16(out + 44 * n + at, 2.0 * a - 1)
        store_f32x16(out + 48 * n + at, select(less(a, b), a, c))
        store_f32x16(out + 52 * n + at, select(equal(a, b), 1.0, b))
        store_f32x16(out + 56 * n + at, select(is_nan(a), 7.0, a))
        store_f32x16(out + 60 * n + at, maximum(a, 0.5))


@compiled(i64, i64, i64, i64)
def int_arithmetic(x: Int, y: Int, out: Int, n: Int) -> None:
    """add sub mul and or xor shl lshr max min abs, of i32: n each."""
    for at in range(0, 4 * n, 64):
        a, b = load_i32x16(x + at), load_i32x16(y + at)
        store_i32x16(out + at, a + b)
        store_i32x16(out + 4 * n + at, a - b)
        store_i32x16(out + 8 * n + at, a * b)
        store_i32x16(out + 12 * n + at, a & b)
        store_i32x16(out + 16 * n + at, a | b)
        store_i32x16(out + 20 * n + at, a ^ b)
        store_i32x16(out + 24 * n + at, shift_left(a, 5))
        store_i32x16(out + 28 * n + at, shift_right(a, 5))
        store_i32x16(out + 32 * n + at, maximum(a, b))
        store_i32x16(out + 36 * n + at, minimum(a, b))
        store_i32x16(out + 40 * n + at, absolute(a))
        store_i32x16(out + 44 * n + at, a & 255)
        store_i32x16(out + 48 * n + at, select(less(a, b), a, 3))


@compiled(i64, i64, i64)
def past_caches(x: Int, out: Int, n: Int) -> None:
    """`n` lines of 64 bytes, the last one first."""
    for i in range(n):
        at = 64 * (n - 1 - i)
        store_line_past_caches(out + at, load_f32x16(x + at))
    store_fence()


@compiled(i64, i64)
def constants(out: Int, n: Int) -> None:
    """Vectors made of nothing."""
    store_f32x16(out, splat_f32x16(1.5))
    store_i32x16(out + 64, splat_i32x16(n))
    store_f32x16(out + 128, zero_f32x16())
    store_i32x16(out + 192, zero_i32x16())
    store_i32x16(out + 256, iota_i32x16())
    store_i64(out + 320, quotient(n, 7))
    store_i64(out + 328, remainder(n, 7))


@compiled(i64, i64, i64)
def widen_f16(x: Int, out: Int, n: Int) -> None:
    """f16 -> f32 by vectors, then one by one."""
    for i in range(0, n, 16):
        store_f32x16(out + 4 * i, load_f16x16(x + 2 * i))
    for i in range(n):
        store_f32(out + 4 * (n + i), load_f16(x + 2 * i))


@compiled(i64, i64, i64)
def widen_bf16(x: Int, out: Int, n: Int) -> None:
    """bf16 -> f32 by vectors, then one by one."""
    for i in range(0, n, 16):
        store_f32x16(out + 4 * i, load_bf16x16(x + 2 * i))
    for i in range(n):
        store_f32(out + 4 * (n + i), load_bf16(x + 2 * i))


@compiled(i64, i64, i64)
def narrow(x: Int, out: Int, n: Int) -> None:
    """f32 -> f16 by vectors and one by one, then -> bf16 the same ways."""
    for i in range(0, n, 16):
        store_f16x16(out + 2 * i, load_f32x16(x + 4 * i))
        store_bf16x16(out + 2 * (2 * n + i), load_f32x16(x + 4 * i))
    for i in range(n):
        store_f16(out + 2 * (n + i), load_f32(x + 4 * i))
        store_bf16(out + 2 * (3 * n + i), load_f32(x + 4 * i))


@compiled(i64, i64)
def scalar_memory(x: Int, out: Int) -> None:
    """Every kind of integer load, unaligned; every kind of integer store."""
    store_i64(out, load_i8(x + 1))
    store_i64(out + 8, load_u8(x + 1))
    store_i64(out + 16, load_i16(x + 1))
    store_i64(out + 24, load_u16(x + 1))
    store_i64(out + 32, load_i32(x + 1))
    store_i64(out + 40, load_u32(x + 1))
    store_i64(out + 48, load_i64(x + 1))
    store_i8(out + 57, load_i64(x + 1))
    store_i16(out + 59, load_i64(x + 1))
    store_i32(out + 62, load_i64(x + 1))
    prefetch(x)
    prefetch(0)


@compiled(i64, i64, i64, i64, i64)
def parts(words: Int, halves: Int, bytes_: Int, out: Int, n: Int) -> None:
    """The first n lanes of each kind: into whole vectors, then stored in part."""
    f = load_f32x16_part(words, n)
    b = load_i8x16_part(bytes_, n)
    h = load_f16x16_part(halves, n)
    bf = load_bf16x16_part(halves, n)
    store_f32x16(out, f)
    store_i8x16(out + 128, b)
    store_f32x16(out + 192, h)
    store_f32x16(out + 256, bf)
    store_f32x16_part(out + 320, f, n)
    store_i8x16_part(out + 448, b, n)
    store_f16x16_part(out + 512, h, n)
    store_bf16x16_part(out + 576, bf, n)


@intrinsic(i8x64, i8x64)
def low_nibbles(b: Emitter, x: Any) -> Any:
    return convert.byte_bits(b, x, 0, 4)


@intrinsic(i8x64, i8x64)
def bits_2_to_4_at_5(b: Emitter, x: Any) -> Any:
    return convert.byte_bits(b, x, 2, 3, to=5)


@compiled(i64, i64)
def byte_vectors(x: Int, out: Int) -> None:
    """What happens to 64 bytes at x; results of 64 bytes each."""
    v = load_i8x64(x)
    store_i8x64(out, v)
    store_i8x64(out + 64, low_nibbles(v))
    store_i8x64(out + 128, bits_2_to_4_at_5(v))
    store_i8x64(out + 192, convert.lookup_i8x64(load_i8x16(x), low_nibbles(v)))
    store_i8x64(out + 256, bcast4_i8x64(x + 3))
    store_i32x16(out + 320, load_i8x16_as_i32(x))
    store_i32x16(out + 384, load_u8x16_as_i32(x))
    store_i8x64(out + 448, (v & 15) ^ v)
    store_i8x16(out + 512, convert.i32_to_i8(load_i32x16(x)))
    store_i32x16(out + 576, convert.i8_to_i32(load_i8x16(x)))
    store_i32x16(out + 640, convert.u8_to_i32(load_i8x16(x)))


@compiled(i64, i64, i64)
def number_conversions(x: Int, out: Int, n: Int) -> None:
    """i32 -> f32, f32 -> i32 towards zero, and bit patterns."""
    for at in range(0, 4 * n, 64):
        v = load_i32x16(x + at)
        f = convert.i32_to_f32(v)
        store_f32x16(out + at, f)
        store_i32x16(out + 4 * n + at, convert.f32_to_i32(f * 0.001))
        store_i32x16(out + 8 * n + at, convert.bits_of_f32(f))


@compiled(i64, i64, i64, i64, i64)
def int8_dots(acc: Int, u: Int, s: Int, out: Int, n: Int) -> None:
    """dot4 of unsigned with signed, then of signed with signed bytes; n vectors each."""
    for i in range(0, 64 * n, 64):
        a = load_i32x16(acc + i)
        store_i32x16(out + i, dot4_u8s8(a, load_i8x64(u + i), load_i8x64(s + i)))
        store_i32x16(out + 64 * n + i, dot4_s8s8(a, load_i8x64(u + i), load_i8x64(s + i)))
        below_128 = load_i8x64(u + i) & 127
        store_i32x16(out + 128 * n + i, dot4_u7s8(a, below_128, load_i8x64(s + i)))


@compiled(i64, i64, i64)
def reductions(x: Int, y: Int, out: Int) -> None:
    """Sum, largest, smallest of 16 f32 at x and 16 i32 at y; a lane."""
    v, w = load_f32x16(x), load_i32x16(y)
    store_f32(out, sum_lanes(v))
    store_f32(out + 4, max_lanes(v))
    store_f32(out + 8, min_lanes(v))
    store_i32(out + 12, sum_lanes(w))
    store_i32(out + 16, max_lanes(w))
    store_i32(out + 20, min_lanes(w))
    store_f32(out + 24, lane(v, 5))


@compiled(i64, i64, i64)
def elementary(x: Int, out: Int, n: Int) -> None:
    """exp log sigmoid silu tanh erf gelu gelu_quick gelu_erf sin cos, by vectors: n each."""
    for at in range(0, 4 * n, 64):
        v = load_f32x16(x + at)
        store_f32x16(out + at, math.exp(v))
        store_f32x16(out + 4 * n + at, math.log(v))
        store_f32x16(out + 8 * n + at, math.sigmoid(v))
        store_f32x16(out + 12 * n + at, math.silu(v))
        store_f32x16(out + 16 * n + at, math.tanh(v))
        store_f32x16(out + 20 * n + at, math.erf(v))
        store_f32x16(out + 24 * n + at, math.gelu(v))
        store_f32x16(out + 28 * n + at, math.gelu_quick(v))
        store_f32x16(out + 32 * n + at, math.gelu_erf(v))
        store_f32x16(out + 36 * n + at, math.sin(v))
        store_f32x16(out + 40 * n + at, math.cos(v))


@compiled(i64, i64, i64)
def elementary_one_by_one(x: Int, out: Int, n: Int) -> None:
    """The same on single numbers."""
    for i in range(n):
        at = 4 * i
        v = load_f32(x + at)
        store_f32(out + at, math.exp(v))
        store_f32(out + 4 * n + at, math.log(v))
        store_f32(out + 8 * n + at, math.sigmoid(v))
        store_f32(out + 12 * n + at, math.silu(v))
        store_f32(out + 16 * n + at, math.tanh(v))
        store_f32(out + 20 * n + at, math.erf(v))
        store_f32(out + 24 * n + at, math.gelu(v))
        store_f32(out + 28 * n + at, math.gelu_quick(v))
        store_f32(out + 32 * n + at, math.gelu_erf(v))
        store_f32(out + 36 * n + at, math.sin(v))
        store_f32(out + 40 * n + at, math.cos(v))
