"""iq4_nl, iq4_xs, mxfp4, nvfp4: codes of 4 bits that stand for entries of a table of 16 bytes.

iq4_nl   stored   d f16 | qs 16 x u8                   w[i] = d * IQ4[q[i]]           18 bytes
                  q[i] = low nibble of qs[i], q[16 + i] = its high nibble, i < 16
         packed   d 16 x f16 | qs: a plane of 4                                      288 bytes

mxfp4    stored   e u8 | qs 16 x u8                    w[i] = 2^(e - 128) * FP4[q[i]]  17 bytes
         packed   e 16 x u8 | qs: a plane of 4                                       272 bytes

nvfp4    stored   d 4 x u8 | qs 32 x u8                                               36 bytes
                  w[16r + i] = half of d[r] * FP4[low nibble of qs[8r + i]], r < 4, i < 8,
                  and of the high nibble for w[16r + 8 + i]; d has 4 bits of exponent and 3 of
                  mantissa, 0x7F is 0
         packed   2 parts                                                            576 bytes
         part     d 2 x 16 x u8 | qs: a plane of 4

iq4_xs   stored   d f16 | high u16 | low 4 x u8 | qs 128 x u8                        136 bytes
                  w[32r + i] = d * (scale[r] - 32) * IQ4[q], r < 8, i < 32, q as in
                  iq4_nl from the 16 bytes of run r; scale[r] of 6 bits is nibble r % 2 of
                  low[r / 2], above it bits 2r and 2r + 1 of high
         packed   d 16 x f16 | 8 parts                                              2208 bytes
         part     scale 16 x i8, 32 less | qs: a plane of 4

FP4 are twice the numbers of 1 bit sign, 2 bits exponent, 1 bit mantissa. Entries are looked up in
registers, with a constant added that makes them unsigned. planes.py says what a plane is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir

from ggmlpy.backends.cpu.formats.base import TwoGroups, quantized_format
from ggmlpy.backends.cpu.formats.blocks import Block
from ggmlpy.backends.cpu.formats.columns import Stored, put, split
from ggmlpy.backends.cpu.formats.planes import field, join, load_codes, plane
from ggmlpy.backends.cpu.formats.vectors import Vectors
from ggmlpy.backends.cpu.simd.arith import maximum
from ggmlpy.backends.cpu.simd.convert import from_f16_bits, lookup_i8x64
from ggmlpy.backends.cpu.simd.core import Emitter, f32x16, i8x16, i16x16, i32x16
from ggmlpy.backends.cpu.simd.memory import load_f16x16, load_i8x16_as_i32, load_u8x16_as_i32

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_IQ4_ZERO = 128
_IQ4_LARGEST = max(_IQ4) + _IQ4_ZERO
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_FP4_ZERO = 16
_FP4_LARGEST = max(_FP4) + _FP4_ZERO
_IQ4_NL_PACKED = np.dtype([("d", "<u2", 16), ("qs", *plane(4))])
_MXFP4_PACKED = np.dtype([("e", "u1", 16), ("qs", *plane(4))])
_NVFP4_PART = np.dtype([("d", "u1", (2, 16)), ("qs", *plane(4))])
_NVFP4_PACKED = np.dtype([("parts", _NVFP4_PART, 2)])
_IQ4_XS_PART = np.dtype([("scale", "i1", 16), ("qs", *plane(4))])
_IQ4_XS_PACKED = np.dtype([("d", "<u2", 16), ("parts", _IQ4_XS_PART, 8)])


def _load_entries(
    b: Emitter, address: Any, dtype: np.dtype[Any], table: tuple[int, ...], zero: int
) -> Vectors:
    """The table's entries for the codes of a block, `zero` more."""
    entries = ir.Constant(i8x16.ir, [entry + zero for entry in table])
    codes = load_codes(b, address, dtype, "qs")
    return Vectors(len(codes), lambda j: lookup_i8x64(b, entries, codes[j]))


def _half_exponentials(b: Emitter, e: Any) -> Any:
    """2^(e - 128) for integers e from 0 to 255.

    As bits (e - 1) << 23, but the first two are denormal: 2^21 and 2^22, or (e + 1) << 21, which
    is the larger of the two numbers for e < 2 only.
    """
    one, up = b.const(i32x16.ir, 1), [b.const(i32x16.ir, n) for n in (23, 21)]
    normal, denormal = b.shl(b.sub(e, one), up[0]), b.shl(b.add(e, one), up[1])
    return b.bitcast(maximum(b, normal, denormal), f32x16.ir)


def _half_minifloats(b: Emitter, bits: Any) -> Any:
    """Halves of numbers of 4 bits of exponent, biased by 7, and 3 of mantissa: bits [16] of i8.

    They are the middle of an f16, whose exponent is biased by 15: 2^8 too small.
    """
    shorts = b.shl(b.zext(bits, i16x16.ir), b.const(i16x16.ir, 7))
    return b.fmul(from_f16_bits(b, shorts), b.const(f32x16.ir, 2.0**7))


def _unpack_iq4_nl(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    u = _load_entries(b, w, _IQ4_NL_PACKED, _IQ4, _IQ4_ZERO)
    yield Block(u, _IQ4_LARGEST, Vectors(1, lambda i: load_f16x16(b, w)), zero=_IQ4_ZERO)


def _unpack_iq4_xs(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    def scale(i: int) -> Any:
        integers = b.sitofp(load_i8x16_as_i32(b, part), f32x16.ir)
        return b.fmul(load_f16x16(b, w), integers)

    u = _load_entries(b, part, _IQ4_XS_PART, _IQ4, _IQ4_ZERO)
    yield Block(u, _IQ4_LARGEST, Vectors(1, scale), zero=_IQ4_ZERO)


def _unpack_mxfp4(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    u = _load_entries(b, w, _MXFP4_PACKED, _FP4, _FP4_ZERO)
    scales = Vectors(1, lambda i: _half_exponentials(b, load_u8x16_as_i32(b, w)))
    yield Block(u, _FP4_LARGEST, scales, zero=_FP4_ZERO, any_scale=True)


def _unpack_nvfp4(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    def scale(i: int) -> Any:
        return _half_minifloats(b, b.load_from(field(b, part, _NVFP4_PART, "d", i), i8x16))

    u = _load_entries(b, part, _NVFP4_PART, _FP4, _FP4_ZERO)
    yield Block(u, _FP4_LARGEST, Vectors(2, scale), zero=_FP4_ZERO)


def _repack_iq4_nl(b: Emitter, stored: Stored, out: Any) -> None:
    put(b, out, _IQ4_NL_PACKED, "d", stored.halves("d"))
    put(b, out, _IQ4_NL_PACKED, "qs", *stored.words("qs"))


def _repack_mxfp4(b: Emitter, stored: Stored, out: Any) -> None:
    put(b, out, _MXFP4_PACKED, "e", stored.bytes("e"))
    put(b, out, _MXFP4_PACKED, "qs", *stored.words("qs"))


def _repack_nvfp4(b: Emitter, stored: Stored, out: Any) -> None:
    scales = split(b, stored.words("d")[0], i8x16)
    qs = stored.words("qs")  # two for 16 elements
    for i in range(2):
        part = field(b, out, _NVFP4_PACKED, "parts", i)
        put(b, part, _NVFP4_PART, "d", *(_nvfp4_scale(b, d) for d in scales[2 * i : 2 * i + 2]))
        codes = []
        for r in (4 * i, 4 * i + 2):
            for start in (0, 4):
                shift, nibbles = (b.const(i32x16.ir, n) for n in (start, 0x0F0F0F0F))
                codes += [b.and_(b.lshr(word, shift), nibbles) for word in qs[r : r + 2]]
        put(b, part, _NVFP4_PART, "qs", *join(b, codes, 4))


def _nvfp4_scale(b: Emitter, d: Any) -> Any:
    """Without the sign, and 0 for 0x7F."""
    is_zero = b.icmp_unsigned("==", d, b.const(d.type, 0x7F))
    return b.and_(b.select(is_zero, b.const(d.type, 0), d), b.const(d.type, 0x7F))


def _repack_iq4_xs(b: Emitter, stored: Stored, out: Any) -> None:
    put(b, out, _IQ4_XS_PACKED, "d", stored.halves("d"))
    low, high = stored.words("low")[0], b.zext(stored.halves("high"), i32x16.ir)
    qs = stored.words("qs")
    for r in range(8):
        part = field(b, out, _IQ4_XS_PACKED, "parts", r)
        four = b.and_(b.lshr(low, b.const(low.type, 4 * r)), b.const(low.type, 15))
        two = b.and_(b.lshr(high, b.const(high.type, 2 * r)), b.const(high.type, 3))
        six = b.or_(four, b.shl(two, b.const(two.type, 4)))
        scale = b.trunc(b.sub(six, b.const(six.type, 32)), i8x16.ir)
        put(b, part, _IQ4_XS_PART, "scale", scale)
        put(b, part, _IQ4_XS_PART, "qs", *qs[4 * r : 4 * r + 4])


IQ4_NL_FORMAT = quantized_format(
    "iq4_nl",
    block=32,
    stored=np.dtype([("d", "<u2"), ("qs", "<u4", 4)]),
    packed=_IQ4_NL_PACKED,
    repack=_repack_iq4_nl,
    unpack=_unpack_iq4_nl,
)
MXFP4_FORMAT = quantized_format(
    "mxfp4",
    block=32,
    stored=np.dtype([("e", "u1"), ("qs", "<u4", 4)]),
    packed=_MXFP4_PACKED,
    repack=_repack_mxfp4,
    unpack=_unpack_mxfp4,
)
NVFP4_FORMAT = quantized_format(
    "nvfp4",
    block=64,
    stored=np.dtype([("d", "u1", 4), ("qs", "<u4", (4, 2))]),
    packed=_NVFP4_PACKED,
    repack=_repack_nvfp4,
    unpack=_unpack_nvfp4,
    two_groups=TwoGroups.NEVER,
)
IQ4_XS_FORMAT = quantized_format(
    "iq4_xs",
    block=256,
    stored=np.dtype([("d", "<u2"), ("high", "<u2"), ("low", "u1", 4), ("qs", "<u4", (8, 4))]),
    packed=_IQ4_XS_PACKED,
    repack=_repack_iq4_xs,
    unpack=_unpack_iq4_xs,
)
