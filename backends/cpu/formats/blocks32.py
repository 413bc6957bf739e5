"""q4_0, q4_1, q5_0, q5_1, q8_0: blocks of 32 with one or two f16 scales.

q4_0   stored   d f16 | qs 16 x u8                     w[i] = d * (q[i] - 8)          18 bytes
                q[i] = low nibble of qs[i], q[16 + i] = its high nibble, i < 16
       packed   d 16 x f16 | qs: a plane of 4                                        288 bytes

q4_1   stored   d f16 | m f16 | qs 16 x u8             w[i] = d * q[i] + m            20 bytes
       packed   d 16 x f16 | -m 16 x f16 | qs: a plane of 4                          320 bytes

q5_0   stored   d f16 | qh u32 | qs 16 x u8            w[i] = d * (q[i] - 16)         22 bytes
                q[i] = the nibble as in q4_0, bit i of qh above it
       packed   d 16 x f16 | qs: a plane of 4 | qh: a plane of 1                     352 bytes

q5_1   stored   d f16 | m f16 | qh u32 | qs 16 x u8    w[i] = d * q[i] + m            24 bytes
       packed   d 16 x f16 | -m 16 x f16 | qs: a plane of 4 | qh: a plane of 1       384 bytes

q8_0   stored   d f16 | qs 32 x i8                     w[i] = d * qs[i]               34 bytes
       packed   d 16 x f16 | 8 vectors of 64 bytes                                   544 bytes
                byte 4 * row + t of vector j is the row's qs[4j + t] + 128

planes.py says what a plane is; the nibbles of stored words of 4 bytes lie as in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.formats.base import quantized_format
from ggmlpy.backends.cpu.formats.blocks import Block, Unpack
from ggmlpy.backends.cpu.formats.columns import Repack, Stored, put
from ggmlpy.backends.cpu.formats.planes import (
    bits_in_words,
    field,
    largest_code,
    load_codes,
    load_vectors,
    plane,
)
from ggmlpy.backends.cpu.formats.vectors import Vectors
from ggmlpy.backends.cpu.simd.core import Emitter
from ggmlpy.backends.cpu.simd.memory import load_f16x16

_SCALE = ("<u2", 16)
_WORD = ("<u4", 4)
_Q4_0_PACKED = np.dtype([("d", *_SCALE), ("qs", *plane(4))])
_Q4_1_PACKED = np.dtype([("d", *_SCALE), ("minus_m", *_SCALE), ("qs", *plane(4))])
_Q5_0_PACKED = np.dtype([("d", *_SCALE), ("qs", *plane(4)), ("qh", *plane(1))])
_Q5_1_PACKED = np.dtype(
    [("d", *_SCALE), ("minus_m", *_SCALE), ("qs", *plane(4)), ("qh", *plane(1))]
)
_Q8_0_PACKED = np.dtype([("d", *_SCALE), ("qs", "<u4", (8, 16))])


def _unpack(packed: np.dtype[Any], *planes: str, zero: int = 0) -> Unpack:
    """A block of codes in planes: weights d * (code - zero), or d * code + m."""
    has_minimum = "minus_m" in (packed.names or ())

    def unpack(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
        u = load_codes(b, w, packed, *planes)
        scales = Vectors(1, lambda i: load_f16x16(b, w))
        minima = Vectors(int(has_minimum), lambda i: load_f16x16(b, field(b, w, packed, "minus_m")))
        yield Block(u, largest_code(packed, *planes), scales, minima, zero)

    return unpack


def _unpack_q8_0(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    u = load_vectors(b, field(b, w, _Q8_0_PACKED, "qs"), 8)
    yield Block(u, 255, Vectors(1, lambda i: load_f16x16(b, w)), zero=128)


def _repack(packed: np.dtype[Any], flip: int = 0) -> Repack:
    """Scales, minima and words as they are, but for the bits `flip` of each word."""
    names = packed.names or ()

    def repack(b: Emitter, stored: Stored, out: Any) -> None:
        put(b, out, packed, "d", stored.halves("d"))
        words = stored.words("qs")
        put(b, out, packed, "qs", *(b.xor(w, b.const(w.type, flip)) for w in words))
        if "minus_m" in names:
            m = stored.halves("m")
            put(b, out, packed, "minus_m", b.xor(m, b.const(m.type, 0x8000)))  # the sign of an f16
        if "qh" in names:
            put(b, out, packed, "qh", bits_in_words(b, stored.words("qh")[0]))

    return repack


Q4_0_FORMAT = quantized_format(
    "q4_0",
    block=32,
    stored=np.dtype([("d", "<u2"), ("qs", *_WORD)]),
    packed=_Q4_0_PACKED,
    repack=_repack(_Q4_0_PACKED),
    unpack=_unpack(_Q4_0_PACKED, "qs", zero=8),
)
Q4_1_FORMAT = quantized_format(
    "q4_1",
    block=32,
    stored=np.dtype([("d", "<u2"), ("m", "<u2"), ("qs", *_WORD)]),
    packed=_Q4_1_PACKED,
    repack=_repack(_Q4_1_PACKED),
    unpack=_unpack(_Q4_1_PACKED, "qs"),
)
Q5_0_FORMAT = quantized_format(
    "q5_0",
    block=32,
    stored=np.dtype([("d", "<u2"), ("qh", "<u4"), ("qs", *_WORD)]),
    packed=_Q5_0_PACKED,
    repack=_repack(_Q5_0_PACKED),
    unpack=_unpack(_Q5_0_PACKED, "qs", "qh", zero=16),
)
Q5_1_FORMAT = quantized_format(
    "q5_1",
    block=32,
    stored=np.dtype([("d", "<u2"), ("m", "<u2"), ("qh", "<u4"), ("qs", *_WORD)]),
    packed=_Q5_1_PACKED,
    repack=_repack(_Q5_1_PACKED),
    unpack=_unpack(_Q5_1_PACKED, "qs", "qh"),
)
Q8_0_FORMAT = quantized_format(
    "q8_0",
    block=32,
    stored=np.dtype([("d", "<u2"), ("qs", "<u4", 8)]),
    packed=_Q8_0_PACKED,
    repack=_repack(_Q8_0_PACKED, flip=0x80808080),  # 128 more, for every byte
    unpack=_unpack_q8_0,
)
