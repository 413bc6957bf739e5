"""q2_K, q3_K, q4_K, q5_K, q6_K: blocks of 256, one or two f16 scales, small integer scales inside.

A block is 8 runs of 32 elements: run 4h + p is quarter p of half h. Packed, each run is a part.
planes.py says what a plane is.

q2_K   stored   scales 16 x u8 | qs 64 x u8 | d f16 | dmin f16                        84 bytes
                w[i] = d * (scales[i / 16] & 15) * q - dmin * (scales[i / 16] >> 4)
                q of element i of run 4h + p: bits 2p and 2p + 1 of qs[32h + i]
       packed   d 16 x f16 | dmin 16 x f16 | 8 parts                                1344 bytes
       part     scales 2 x 16 x u8 | qs: a plane of 2

q3_K   stored   hmask 32 x u8 | qs 64 x u8 | scales 12 x u8 | d f16                  110 bytes
                w[i] = d * (scale[i / 16] - 32) * (q - 4)
                q: two bits as in q2_K, above them bit r of hmask[i] for element i of run r
                scale j of 16 has 6 bits: nibble j / 8 of scales[j % 8], above it bits 2(j / 4)
                and 2(j / 4) + 1 of scales[8 + j % 4]
       packed   d 16 x f16 | 8 parts                                                1824 bytes
       part     scale 2 x 16 x i8, 32 less | qs: a plane of 2 | qh: a plane of 1

q4_K   stored   d f16 | dmin f16 | scales 12 x u8 | qs 128 x u8                      144 bytes
                w[32r + i] = d * scale[r] * q - dmin * minimum[r], r < 8, i < 32
                q: for even r the low nibble of qs[16r + i], for odd r the high nibble of
                qs[16(r - 1) + i]; scale and minimum have 6 bits each, spread over 12 bytes:
                  bytes 0..3    scale[0..3] in the low 6 bits, top 2 bits of scale[4..7]
                  bytes 4..7    minimum[0..3], top 2 bits of minimum[4..7]
                  bytes 8..11   low nibble: low 4 bits of scale[4..7], high: of minimum[4..7]
       packed   d 16 x f16 | dmin 16 x f16 | 8 parts                                2368 bytes
       part     scale 16 x u8 | minimum 16 x u8 | qs: a plane of 4

q5_K   stored   d f16 | dmin f16 | scales 12 x u8 | qh 32 x u8 | qs 128 x u8         176 bytes
                as q4_K, with bit r of qh[i] above the nibble of element i of run r
       packed   d 16 x f16 | dmin 16 x f16 | 8 parts                                2880 bytes
       part     scale 16 x u8 | minimum 16 x u8 | qs: a plane of 4 | qh: a plane of 1

q6_K   stored   ql 128 x u8 | qh 64 x u8 | scale 16 x i8 | d f16                     210 bytes
                w[i] = d * scale[i / 16] * (q - 32), i < 256
                q of element i of run 4h + p:
                  low 4 bits     low (p < 2) or high nibble of ql[64h + 32(p % 2) + i]
                  high 2 bits    bits 2p and 2p + 1 of qh[32h + i]
       packed   d 16 x f16 | 8 parts                                                3360 bytes
       part     scale 2 x 16 x i8 | ql: a plane of 4 | qh: a plane of 2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.formats.base import PackedFormat, TwoGroups, quantized_format
from ggmlpy.backends.cpu.formats.blocks import Block, Unpack
from ggmlpy.backends.cpu.formats.columns import Repack, Stored, put, split
from ggmlpy.backends.cpu.formats.planes import (
    field,
    largest_code,
    load_codes,
    plane,
    planes_of_runs,
)
from ggmlpy.backends.cpu.formats.vectors import Vectors
from ggmlpy.backends.cpu.simd.core import Emitter, f32x16, i8x16, i32x16
from ggmlpy.backends.cpu.simd.memory import load_f16x16, load_i8x16_as_i32, load_u8x16_as_i32

_ONE = [("d", "<u2", 16)]
_TWO = [*_ONE, ("dmin", "<u2", 16)]
_Q2_K_PART = np.dtype([("scales", "u1", (2, 16)), ("qs", *plane(2))])
_Q3_K_PART = np.dtype([("scale", "i1", (2, 16)), ("qs", *plane(2)), ("qh", *plane(1))])
_Q4_K_PART = np.dtype([("scale", "u1", 16), ("minimum", "u1", 16), ("qs", *plane(4))])
_Q5_K_PART = np.dtype(
    [("scale", "u1", 16), ("minimum", "u1", 16), ("qs", *plane(4)), ("qh", *plane(1))]
)
_Q6_K_PART = np.dtype([("scale", "i1", (2, 16)), ("ql", *plane(4)), ("qh", *plane(2))])
_Q2_K_PACKED = np.dtype([*_TWO, ("parts", _Q2_K_PART, 8)])
_Q3_K_PACKED = np.dtype([*_ONE, ("parts", _Q3_K_PART, 8)])
_Q4_K_PACKED = np.dtype([*_TWO, ("parts", _Q4_K_PART, 8)])
_Q5_K_PACKED = np.dtype([*_TWO, ("parts", _Q5_K_PART, 8)])
_Q6_K_PACKED = np.dtype([*_ONE, ("parts", _Q6_K_PART, 8)])


# --- unpacking ------------------------------------------------------------------------------------


def _times(b: Emitter, d: Any, integers: Any) -> Any:
    """d * integers: exact, with the 11 bits of an f16 and at most 8 more."""
    return b.fmul(d, b.sitofp(integers, f32x16.ir))


def _unpack_q2_K(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    at_minima = field(b, w, _Q2_K_PACKED, "dmin")

    def both(i: int) -> Any:
        return load_u8x16_as_i32(b, field(b, part, _Q2_K_PART, "scales", i))

    def scale(i: int) -> Any:
        return _times(b, load_f16x16(b, w), b.and_(both(i), b.const(i32x16.ir, 15)))

    def minimum(i: int) -> Any:
        return _times(b, load_f16x16(b, at_minima), b.lshr(both(i), b.const(i32x16.ir, 4)))

    u = load_codes(b, part, _Q2_K_PART, "qs")
    yield Block(u, largest_code(_Q2_K_PART, "qs"), Vectors(2, scale), Vectors(2, minimum))


def _unpack_signed(part_dtype: np.dtype[Any], *planes: str, zero: int) -> Unpack:
    """Codes in planes, with signed scales: d * scale * (code - zero)."""
    n_scales = part_dtype["scale"].shape[0]

    def unpack(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
        def scale(i: int) -> Any:
            integers = load_i8x16_as_i32(b, field(b, part, part_dtype, "scale", i))
            return _times(b, load_f16x16(b, w), integers)

        u = load_codes(b, part, part_dtype, *planes)
        largest = largest_code(part_dtype, *planes)
        yield Block(u, largest, Vectors(n_scales, scale), zero=zero)

    return unpack


def _unpack_with_minimum(part_dtype: np.dtype[Any], *planes: str) -> Unpack:
    """q4_K and q5_K: d * scale * code - dmin * minimum."""

    def unpack(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
        def scale(i: int) -> Any:
            integers = load_u8x16_as_i32(b, field(b, part, part_dtype, "scale"))
            return _times(b, load_f16x16(b, w), integers)

        def minimum(i: int) -> Any:
            integers = load_u8x16_as_i32(b, field(b, part, part_dtype, "minimum"))
            return _times(b, load_f16x16(b, field(b, w, _Q5_K_PACKED, "dmin")), integers)

        u = load_codes(b, part, part_dtype, *planes)
        largest = largest_code(part_dtype, *planes)
        yield Block(u, largest, Vectors(1, scale), Vectors(1, minimum))

    return unpack


# --- packing -----------------------------------------------------------------------------------


def _repack_q2_K(b: Emitter, stored: Stored, out: Any) -> None:
    put(b, out, _Q2_K_PACKED, "d", stored.halves("d"))
    put(b, out, _Q2_K_PACKED, "dmin", stored.halves("dmin"))
    scales = _bytes_of(b, stored.words("scales"))
    qs = planes_of_runs(b, stored.words("qs"), 2)
    for r in range(8):
        part = field(b, out, _Q2_K_PACKED, "parts", r)
        put(b, part, _Q2_K_PART, "scales", *scales[2 * r : 2 * r + 2])
        put(b, part, _Q2_K_PART, "qs", *qs[r])


def _repack_q3_K(b: Emitter, stored: Stored, out: Any) -> None:
    put(b, out, _Q3_K_PACKED, "d", stored.halves("d"))
    *low, high = stored.words("scales")
    words = [
        b.or_(
            _bits(b, low[i % 2], 4 * (i // 2), 0x0F0F0F0F),
            b.shl(_bits(b, high, 2 * i, 0x03030303), b.const(high.type, 4)),
        )
        for i in range(4)
    ]
    scale = [b.sub(codes, b.const(codes.type, 32)) for codes in _bytes_of(b, words)]
    qs = planes_of_runs(b, stored.words("qs"), 2)
    qh = planes_of_runs(b, stored.words("hmask"), 1)
    for r in range(8):
        part = field(b, out, _Q3_K_PACKED, "parts", r)
        put(b, part, _Q3_K_PART, "scale", *scale[2 * r : 2 * r + 2])
        put(b, part, _Q3_K_PART, "qs", *qs[r])
        put(b, part, _Q3_K_PART, "qh", *qh[r])


def _repack_with_minimum(packed: np.dtype[Any]) -> Repack:
    """q4_K and q5_K."""
    part_dtype = packed["parts"].base
    has_high_bits = "qh" in (part_dtype.names or ())

    def repack(b: Emitter, stored: Stored, out: Any) -> None:
        put(b, out, packed, "d", stored.halves("d"))
        put(b, out, packed, "dmin", stored.halves("dmin"))
        low_scale, low_minimum, rest = stored.words("scales")
        scale = _six_bits(b, low_scale, _bits(b, rest, 0, 0x0F0F0F0F))
        minimum = _six_bits(b, low_minimum, _bits(b, rest, 4, 0x0F0F0F0F))
        qs = planes_of_runs(b, stored.words("qs"), 4)
        qh = planes_of_runs(b, stored.words("qh"), 1) if has_high_bits else []
        for r in range(8):
            part = field(b, out, packed, "parts", r)
            put(b, part, part_dtype, "scale", scale[r])
            put(b, part, part_dtype, "minimum", minimum[r])
            put(b, part, part_dtype, "qs", *qs[r])
            if has_high_bits:
                put(b, part, part_dtype, "qh", *qh[r])

    return repack


def _six_bits(b: Emitter, first: Any, low_of_second: Any) -> list[Any]:
    """8 numbers: the low 6 bits of 4 bytes, then 4 with the low bits given, those' top 2 above."""
    tops = b.shl(_bits(b, first, 6, 0x03030303), b.const(first.type, 4))
    return _bytes_of(b, [_bits(b, first, 0, 0x3F3F3F3F), b.or_(low_of_second, tops)])


def _repack_q6_K(b: Emitter, stored: Stored, out: Any) -> None:
    put(b, out, _Q6_K_PACKED, "d", stored.halves("d"))
    scale = _bytes_of(b, stored.words("scale"))
    ql = planes_of_runs(b, stored.words("ql"), 4)
    qh = planes_of_runs(b, stored.words("qh"), 2)
    for r in range(8):
        part = field(b, out, _Q6_K_PACKED, "parts", r)
        put(b, part, _Q6_K_PART, "scale", *scale[2 * r : 2 * r + 2])
        # Two runs 64 elements apart share 32 bytes of ql: theirs are quarters 0 and 2, or 1 and 3.
        half, p = divmod(r, 4)
        put(b, part, _Q6_K_PART, "ql", *ql[4 * half + 2 * (p % 2) + p // 2])
        put(b, part, _Q6_K_PART, "qh", *qh[r])


def _bits(b: Emitter, words: Any, start: int, mask: int) -> Any:
    """The bits of `mask` after a shift to the right."""
    return b.and_(b.lshr(words, b.const(words.type, start)), b.const(words.type, mask))


def _bytes_of(b: Emitter, words: Iterable[Any]) -> list[Any]:
    """Columns of bytes, four from each of words."""
    return [column for word in words for column in split(b, word, i8x16)]


# --- the formats ----------------------------------------------------------------------------------

_D = ("d", "<u2")
_DMIN = ("dmin", "<u2")


def _format(
    type_name: str,
    stored: list[Any],
    packed: np.dtype[Any],
    repack: Repack,
    unpack: Unpack,
    two_groups: TwoGroups = TwoGroups.AS_PACKED,
) -> PackedFormat:
    return quantized_format(
        type_name,
        block=256,
        stored=np.dtype(stored),
        packed=packed,
        repack=repack,
        unpack=unpack,
        two_groups=two_groups,
    )


Q2_K_FORMAT = _format(
    "q2_K",
    [("scales", "u1", (8, 2)), ("qs", "<u4", (2, 8)), _D, _DMIN],
    _Q2_K_PACKED,
    _repack_q2_K,
    _unpack_q2_K,
    two_groups=TwoGroups.NEVER,
)
Q3_K_FORMAT = _format(
    "q3_K",
    [("hmask", "<u4", (1, 8)), ("qs", "<u4", (2, 8)), ("scales", "u1", 12), _D],
    _Q3_K_PACKED,
    _repack_q3_K,
    _unpack_signed(_Q3_K_PART, "qs", "qh", zero=4),
    two_groups=TwoGroups.UNPACKED,
)
Q4_K_FORMAT = _format(
    "q4_K",
    [_D, _DMIN, ("scales", "u1", 12), ("qs", "<u4", (4, 8))],
    _Q4_K_PACKED,
    _repack_with_minimum(_Q4_K_PACKED),
    _unpack_with_minimum(_Q4_K_PART, "qs"),
)
Q5_K_FORMAT = _format(
    "q5_K",
    [_D, _DMIN, ("scales", "u1", 12), ("qh", "<u4", (1, 8)), ("qs", "<u4", (4, 8))],
    _Q5_K_PACKED,
    _repack_with_minimum(_Q5_K_PACKED),
    _unpack_with_minimum(_Q5_K_PART, "qs", "qh"),
)
Q6_K_FORMAT = _format(
    "q6_K",
    [("ql", "<u4", (4, 8)), ("qh", "<u4", (2, 8)), ("scale", "i1", (8, 2)), _D],
    _Q6_K_PACKED,
    _repack_q6_K,
    _unpack_signed(_Q6_K_PART, "ql", "qh", zero=32),
    two_groups=TwoGroups.UNPACKED,
)
