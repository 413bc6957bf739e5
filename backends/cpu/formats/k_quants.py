"""q4_K, q6_K: blocks of 256 with one or two f16 scales, and small integer scales inside.

q4_K   stored   d f16 | dmin f16 | scales 12 x u8 | qs 128 x u8                      144 bytes
                w[32s + i] = d * scale[s] * q - dmin * minimum[s], s < 8, i < 32
                q: for even s the low nibble of qs[16s + i], for odd s the high nibble of
                qs[16(s - 1) + i]; scale and minimum have 6 bits each, spread over 12 bytes:
                  bytes 0..3    scale[0..3] in the low 6 bits, top 2 bits of scale[4..7]
                  bytes 4..7    minimum[0..3], top 2 bits of minimum[4..7]
                  bytes 8..11   low nibble: low 4 bits of scale[4..7], high: of minimum[4..7]
       packed   d 16 x f16 | dmin 16 x f16 | scale 8 x 16 x u8 | minimum 8 x 16 x u8
                | qs 4 x 8 vectors of 64 bytes                                      2368 bytes
                byte 4 * row + t of vector (c, j) is the row's qs[32c + 4j + t]
       a part is one c: 64 elements, s = 2c from the low nibbles and 2c + 1 from the high ones

q6_K   stored   ql 128 x u8 | qh 64 x u8 | scale 16 x i8 | d f16                     210 bytes
                w[i] = d * scale[i / 16] * (q - 32), i < 256
                element i of quarter p of half h, 128h + 32p + i:
                  low 4 bits of q    low (p < 2) or high nibble of ql[64h + 32(p % 2) + i]
                  high 2 bits        bits 2p and 2p + 1 of qh[32h + i]
       packed   d 16 x f16 | scale 16 x 16 x i8 | ql 2 x 2 x 8 vectors | qh 2 x 8 vectors
                byte 4 * row + t of vector (..., j) is the row's byte 4j + t        3360 bytes
       a part is one h: 128 elements
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from ggmlpy.backends.cpu.formats.base import quantized_format
from ggmlpy.backends.cpu.formats.blocks import Block, load_vectors
from ggmlpy.backends.cpu.simd.convert import high_nibbles, low_nibbles
from ggmlpy.backends.cpu.simd.core import Emitter, f32x16, i8x64, i16x32, i64
from ggmlpy.backends.cpu.simd.memory import load_f16x16, load_i8x16_as_i32, load_u8x16_as_i32
from ggmlpy.backends.cpu.simd.product import after

_Q4_K_STORED = np.dtype(
    [("d", "<u2"), ("dmin", "<u2"), ("scales", "u1", 12), ("qs", "<u4", (4, 8))]
)
_Q4_K_PACKED = np.dtype(
    [
        ("d", "<u2", 16),
        ("dmin", "<u2", 16),
        ("scale", "u1", (4, 2, 16)),
        ("minimum", "u1", (4, 2, 16)),
        ("qs", "<u4", (4, 8, 16)),
    ]
)
_Q6_K_STORED = np.dtype(
    [("ql", "<u4", (2, 2, 8)), ("qh", "<u4", (2, 8)), ("scale", "i1", 16), ("d", "<u2")]
)
_Q6_K_PACKED = np.dtype(
    [
        ("d", "<u2", 16),
        ("scale", "i1", (2, 8, 16)),
        ("ql", "<u4", (2, 2, 8, 16)),
        ("qh", "<u4", (2, 8, 16)),
    ]
)
_VECTORS = 8 * 64  # bytes of 8 vectors


def _field(b: Emitter, w: Any, packed: np.dtype[Any], name: str, part: Any) -> Any:
    """The address of element `part` of a packed field."""
    fields = packed.fields
    assert fields is not None
    dtype, offset = fields[name][:2]
    stride = ir.Constant(i64.ir, dtype.itemsize // dtype.shape[0])
    return b.add(after(b, w, offset), b.mul(part, stride))


def _times(b: Emitter, d: Any, integers: Any) -> Any:
    """d * integers: exact, with the 11 bits of an f16 and at most 8 more."""
    return b.fmul(d, b.sitofp(integers, f32x16.ir))


def _unpack_q4_K(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    d = load_f16x16(b, w)
    dmin = load_f16x16(b, after(b, w, 32))
    scale = _field(b, w, _Q4_K_PACKED, "scale", part)
    minimum = _field(b, w, _Q4_K_PACKED, "minimum", part)
    qs = load_vectors(b, _field(b, w, _Q4_K_PACKED, "qs", part), 8)
    for i, nibbles in enumerate((low_nibbles, high_nibbles)):
        yield Block(
            [nibbles(b, v) for v in qs],
            [_times(b, d, load_u8x16_as_i32(b, after(b, scale, 16 * i)))],
            [_times(b, dmin, load_u8x16_as_i32(b, after(b, minimum, 16 * i)))],
        )


def _unpack_q6_K(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    d = load_f16x16(b, w)
    scale = _field(b, w, _Q6_K_PACKED, "scale", part)
    ql = _field(b, w, _Q6_K_PACKED, "ql", part)
    qh = _field(b, w, _Q6_K_PACKED, "qh", part)
    for p in range(4):
        nibbles = low_nibbles if p < 2 else high_nibbles
        low = [nibbles(b, v) for v in load_vectors(b, after(b, ql, _VECTORS * (p % 2)), 8)]
        high = [_two_bits_up(b, v, 2 * p) for v in load_vectors(b, qh, 8)]
        yield Block(
            [b.or_(x, y) for x, y in zip(low, high, strict=True)],
            [
                _times(b, d, load_i8x16_as_i32(b, after(b, scale, 16 * i)))
                for i in (2 * p, 2 * p + 1)
            ],
            zero=32,
        )


def _two_bits_up(b: Emitter, v: Any, start: int) -> Any:
    """Bits `start` and `start` + 1 of each byte as bits 4 and 5."""
    words = b.bitcast(v, i16x32.ir)
    if start < 4:
        words = b.shl(words, b.const(i16x32.ir, 4 - start))
    elif start > 4:
        words = b.lshr(words, b.const(i16x32.ir, start - 4))
    return b.and_(b.bitcast(words, i8x64.ir), b.const(i8x64.ir, 0x30))


def _repack_q4_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["dmin"] = stored["dmin"].swapaxes(1, 2)
    bits = stored["scales"].transpose(0, 2, 3, 1)  # [groups, blocks, 12, 16]
    scale, minimum, rest = bits[:, :, :4], bits[:, :, 4:8], bits[:, :, 8:]
    shape = (*packed.shape, 8, 16)
    scales, minima = packed["scale"].reshape(shape), packed["minimum"].reshape(shape)
    scales[:, :, :4] = scale & 63
    scales[:, :, 4:] = (rest & 15) | (scale >> 6 << 4)
    minima[:, :, :4] = minimum & 63
    minima[:, :, 4:] = (rest >> 4) | (minimum >> 6 << 4)
    packed["qs"] = stored["qs"].transpose(0, 2, 3, 4, 1)


def _repack_q6_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    scale = stored["scale"].transpose(0, 2, 3, 1)  # [groups, blocks, 16, 16]
    packed["scale"] = scale.reshape(packed["scale"].shape)
    packed["ql"] = stored["ql"].transpose(0, 2, 3, 4, 5, 1)
    packed["qh"] = stored["qh"].transpose(0, 2, 3, 4, 1)


Q4_K_FORMAT = quantized_format(
    "q4_K",
    block=256,
    stored=_Q4_K_STORED,
    packed=_Q4_K_PACKED,
    repack=_repack_q4_K,
    unpack=_unpack_q4_K,
    n_parts=4,
)
Q6_K_FORMAT = quantized_format(
    "q6_K",
    block=256,
    stored=_Q6_K_STORED,
    packed=_Q6_K_PACKED,
    repack=_repack_q6_K,
    unpack=_unpack_q6_K,
    n_parts=2,
)
