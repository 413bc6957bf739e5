"""tq1_0, tq2_0, q1_0, q2_0: weights of one f16 scale and of two to four values.

tq2_0   stored   qs 64 x u8 | d f16                    w[i] = d * (q - 1)             66 bytes
                 q of element i of run 4h + p, i < 32: bits 2p and 2p + 1 of qs[32h + i]
        packed   d 16 x f16 | 8 parts, one for each run                             1056 bytes
        part     qs: a plane of 2

tq1_0   stored   qs 48 x u8 | qh 4 x u8 | d f16        w[i] = d * (digit - 1)         54 bytes
                 five digits of base 3 a byte, four in qh, as a fraction of 256: digit n of x is
                 the whole part of 3 * (x * 3^n % 256) / 256. The first digits of qs[0 .. 31] are
                 elements 0 .. 31, their second digits the next 32, and so on to 159; then those
                 of qs[32 .. 47], 16 at a time, to 239; then those of qh, 4 at a time
        packed   as tq2_0: a fifth more bytes than stored, and no multiplications for digits

q1_0    stored   d f16 | qs 16 x u8                    w[i] = d * (2 q - 1)           18 bytes
                 q of element i: bit i of qs, from the lowest of the first byte; blocks of 128
        packed   d 16 x f16 | 4 parts, one for each run of 32                        288 bytes
        part     qs: a plane of 1

q2_0    stored   d f16 | qs 16 x u8                    w[i] = d * (q - 1)             18 bytes
                 q of element 4j + t: bits 2t and 2t + 1 of qs[j]; blocks of 64
        packed   d 16 x f16 | 2 parts, one for each run of 32                        288 bytes
        part     qs: a plane of 2

planes.py says what a plane is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.formats.base import PackedFormat, quantized_format
from ggmlpy.backends.cpu.formats.blocks import Block
from ggmlpy.backends.cpu.formats.columns import Repack, Stored, put
from ggmlpy.backends.cpu.formats.planes import (
    bits_in_words,
    field,
    join,
    largest_code,
    load_codes,
    plane,
    planes_of_runs,
)
from ggmlpy.backends.cpu.formats.vectors import Vectors
from ggmlpy.backends.cpu.simd.core import Emitter, i8x64
from ggmlpy.backends.cpu.simd.memory import load_f16x16

_PART = np.dtype([("qs", *plane(2))])
_PACKED = np.dtype([("d", "<u2", 16), ("parts", _PART, 8)])
_Q1_0_PART = np.dtype([("qs", *plane(1))])
_Q1_0_PACKED = np.dtype([("d", "<u2", 16), ("parts", _Q1_0_PART, 4)])
_Q2_0_PACKED = np.dtype([("d", "<u2", 16), ("parts", _PART, 2)])


def _unpack(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    u = load_codes(b, part, _PART, "qs")
    yield Block(u, largest_code(_PART, "qs"), Vectors(1, lambda i: load_f16x16(b, w)), zero=1)


def _unpack_q1_0(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    bits = load_codes(b, part, _Q1_0_PART, "qs")
    u = Vectors(len(bits), lambda j: b.add(bits[j], bits[j]))
    yield Block(u, 2, Vectors(1, lambda i: load_f16x16(b, w)), zero=1)


def _repack_tq2_0(b: Emitter, stored: Stored, out: Any) -> None:
    _put(b, out, _PACKED, stored, planes_of_runs(b, stored.words("qs"), 2))


def _repack_tq1_0(b: Emitter, stored: Stored, out: Any) -> None:
    words = stored.words("qs")  # qh as the last one
    codes = [
        *(_digits(b, word, n) for n in range(5) for word in words[:8]),
        *(_digits(b, word, n) for n in range(5) for word in words[8:12]),
        *(_digits(b, words[12], n) for n in range(4)),
    ]
    planes = [join(b, codes[8 * r : 8 * r + 8], 2) for r in range(8)]
    _put(b, out, _PACKED, stored, planes)


def _repack_q1_0(b: Emitter, stored: Stored, out: Any) -> None:
    planes = [[bits_in_words(b, word)] for word in stored.words("qs")]
    _put(b, out, _Q1_0_PACKED, stored, planes)


def _repack_q2_0(b: Emitter, stored: Stored, out: Any) -> None:
    words = stored.words("qs")  # of 16 elements
    codes = [_pairs_in_bytes(b, word, j) for word in words for j in range(4)]
    _put(b, out, _Q2_0_PACKED, stored, [join(b, codes[8 * r : 8 * r + 8], 2) for r in range(2)])


def _put(
    b: Emitter, out: Any, packed: np.dtype[Any], stored: Stored, planes: Sequence[Sequence[Any]]
) -> None:
    """The scale, and the plane of each part."""
    put(b, out, packed, "d", stored.halves("d"))
    part = packed["parts"].base
    for r, plane_of_run in enumerate(planes):
        put(b, field(b, out, packed, "parts", r), part, "qs", *plane_of_run)


def _pairs_in_bytes(b: Emitter, words: Any, j: int) -> Any:
    """The four pairs of bits of byte j, each in a byte of its own."""
    pairs = b.and_(b.lshr(words, b.const(words.type, 8 * j)), b.const(words.type, 0xFF))
    for shift, fields in ((12, 0x000F000F), (6, 0x03030303)):
        pairs = b.or_(pairs, b.shl(pairs, b.const(words.type, shift)))
        pairs = b.and_(pairs, b.const(words.type, fields))
    return pairs


def _digits(b: Emitter, words: Any, n: int) -> Any:
    """Digit n of every byte."""
    numbers = b.bitcast(words, i8x64.ir)
    fraction = b.mul(numbers, b.const(i8x64.ir, 3**n))  # modulo 256
    digits = [
        b.zext(b.icmp_unsigned(">", fraction, b.const(i8x64.ir, third)), i8x64.ir)
        for third in (85, 170)  # thirds of 256
    ]
    return b.bitcast(b.add(*digits), words.type)


def _format(type_name: str, stored: list[Any], repack: Repack) -> PackedFormat:
    return quantized_format(
        type_name,
        block=256,
        stored=np.dtype([*stored, ("d", "<u2")]),
        packed=_PACKED,
        repack=repack,
        unpack=_unpack,
    )


TQ1_0_FORMAT = _format("tq1_0", [("qs", "<u4", 13)], _repack_tq1_0)
TQ2_0_FORMAT = _format("tq2_0", [("qs", "<u4", (2, 8))], _repack_tq2_0)
Q1_0_FORMAT = quantized_format(
    "q1_0",
    block=128,
    stored=np.dtype([("d", "<u2"), ("qs", "<u4", 4)]),
    packed=_Q1_0_PACKED,
    repack=_repack_q1_0,
    unpack=_unpack_q1_0,
)
Q2_0_FORMAT = quantized_format(
    "q2_0",
    block=64,
    stored=np.dtype([("d", "<u2"), ("qs", "<u4", 4)]),
    packed=_Q2_0_PACKED,
    repack=_repack_q2_0,
    unpack=_unpack,
)
