"""Products of codes with int8 blocks of x on AVX2 without VNNI: sums in 16 bits first.

A multiplication of bytes gives sums of two products there, in 16 bits; two more instructions add
these in pairs to sums in 32 bits. Where codes are small, 16 bits hold many such sums, of nibbles
those of a whole block: 8 * 2 * 15 * 127 < 2^15. So one addition takes the place of the two:

    sum16 = dot2(u[0], x[0]) + dot2(u[1], x[1]) + ...         as many as fit
    sum32 = sum32 + sum16[2i] + sum16[2i + 1]

Codes up to 255 have the zero 128: less it they are from -128 to 127, x gets their signs, and sums
of two products fit: 2 * 128 * 127 < 2^15. Nothing is left to subtract. Sums of integers are exact,
so all this has the bits of the other instruction sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from ggmlpy.backends.cpu.simd.arith import absolute
from ggmlpy.backends.cpu.simd.core import Emitter
from ggmlpy.backends.cpu.simd.dot import add_dot2s, dot2_u8s8, with_sign

_MOST = 2**15 - 1  # of a sum in 16 bits
_MOST_X = 127  # of a code of x (activations.py)
_SIGNED_ZERO = 128


def in_shorts(b: Emitter) -> bool:
    """Whether this instruction set adds products so; VNNI has one instruction for all of it."""
    return "avx2" in b.isa.has and "vnni" not in b.isa.has


def short_dots(
    b: Emitter,
    u: Sequence[Any],
    largest: int,
    zero: int,
    words: Sequence[Any],
    begin: Callable[[int], Any],
) -> Any:
    """The sum of (u[j] - zero) * words[j] over all j and, in fours, over bytes: i32x16.

    Args:
        u: Vectors of codes, i8x64, of which none is above `largest`.
        words: As many vectors of x.
        begin: Emits what products are added to, for a zero that is still to be subtracted.
    """
    signed = zero >= _SIGNED_ZERO
    sums, rest = begin(0 if signed else zero), list(zip(u, words, strict=True))
    n_fitting = 1 if signed else _MOST // (2 * largest * _MOST_X)
    while rest:
        pairs = [
            _signed_dot2(b, codes, word, zero) if signed else dot2_u8s8(b, codes, word)
            for codes, word in rest[:n_fitting]
        ]
        sums, rest = add_dot2s(b, sums, reduce(b.add, pairs)), rest[n_fitting:]
    return sums


def _signed_dot2(b: Emitter, codes: Any, word: Any, zero: int) -> Any:
    """Products of codes less `zero`, whose signs go to x, in pairs."""
    signed = b.sub(codes, b.const(codes.type, zero))
    return dot2_u8s8(b, absolute(b, signed), with_sign(b, word, signed))
