"""q4_K, q6_K: blocks of 256 with one or two f16 scales, and small integer scales inside.

q4_K   stored   d f16 | dmin f16 | scales 12 x u8 | qs 128 x u8                      144 bytes
                w[32s + i] = d * scale[s] * q - dmin * minimum[s], s < 8, i < 32
                q: for even s the low nibble of qs[16s + i], for odd s the high nibble of
                qs[16(s - 1) + i]; scale and minimum have 6 bits each, spread over 12 bytes:
                  bytes 0..3    scale[0..3] in the low 6 bits, top 2 bits of scale[4..7]
                  bytes 4..7    minimum[0..3], top 2 bits of minimum[4..7]
                  bytes 8..11   low nibble: low 4 bits of scale[4..7], high: of minimum[4..7]
       packed   d 16 x f16 | dmin 16 x f16 | 4 parts of 64 elements                 2368 bytes
       part c   scale 2 x 16 x u8 | minimum 2 x 16 x u8 | 8 vectors of 64 bytes
                byte 4 * row + t of vector j is the row's qs[32c + 4j + t]: its low nibble for
                s = 2c, the high one for s = 2c + 1

q6_K   stored   ql 128 x u8 | qh 64 x u8 | scale 16 x i8 | d f16                     210 bytes
                w[i] = d * scale[i / 16] * (q - 32), i < 256
                element i of quarter p of half h, 128h + 32p + i:
                  low 4 bits of q    low (p < 2) or high nibble of ql[64h + 32(p % 2) + i]
                  high 2 bits        bits 2p and 2p + 1 of qh[32h + i]
       packed   d 16 x f16 | 8 parts of 32 elements, 4h + p                         3360 bytes
       part     scale 2 x 16 x i8 | ql 4 vectors of 64 bytes | qh 2 vectors
                byte 4 * row + t of what follows belongs to the row's element 4j + t of the part:
                  low 4 bits of q    low (j < 4) or high nibble in vector j % 4 of ql
                  high 2 bits        bits 2(j % 4) and 2(j % 4) + 1 in vector j / 4 of qh
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.formats.base import quantized_format
from ggmlpy.backends.cpu.formats.blocks import Block, load_vectors
from ggmlpy.backends.cpu.simd.convert import high_nibbles, low_nibbles
from ggmlpy.backends.cpu.simd.core import Emitter, f32x16, i8x64, i16x32
from ggmlpy.backends.cpu.simd.memory import load_f16x16, load_i8x16_as_i32, load_u8x16_as_i32
from ggmlpy.backends.cpu.simd.product import after

_Q4_K_STORED = np.dtype(
    [("d", "<u2"), ("dmin", "<u2"), ("scales", "u1", 12), ("qs", "<u4", (4, 8))]
)
_Q4_K_PART = np.dtype(
    [("scale", "u1", (2, 16)), ("minimum", "u1", (2, 16)), ("qs", "<u4", (8, 16))]
)
_Q4_K_PACKED = np.dtype([("d", "<u2", 16), ("dmin", "<u2", 16), ("parts", _Q4_K_PART, 4)])
_Q6_K_STORED = np.dtype(
    [("ql", "<u4", (2, 2, 8)), ("qh", "<u4", (2, 8)), ("scale", "i1", (8, 2)), ("d", "<u2")]
)
_Q6_K_PART = np.dtype([("scale", "i1", (2, 16)), ("ql", "<u4", (4, 16)), ("qh", "<u4", (2, 16))])
_Q6_K_PACKED = np.dtype([("d", "<u2", 16), ("parts", _Q6_K_PART, 8)])


def _field(b: Emitter, address: Any, dtype: np.dtype[Any], name: str, i: int = 0) -> Any:
    """The address of a field of the record at `address`, or of its element `i`."""
    fields = dtype.fields
    assert fields is not None
    field, offset = fields[name][:2]
    return after(b, address, offset + i * field.itemsize // field.shape[0])


def _times(b: Emitter, d: Any, integers: Any) -> Any:
    """d * integers: exact, with the 11 bits of an f16 and at most 8 more."""
    return b.fmul(d, b.sitofp(integers, f32x16.ir))


def _unpack_q4_K(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    d = load_f16x16(b, w)
    dmin = load_f16x16(b, _field(b, w, _Q4_K_PACKED, "dmin"))
    qs = load_vectors(b, _field(b, part, _Q4_K_PART, "qs"), 8)
    for i, nibbles in enumerate((low_nibbles, high_nibbles)):
        scale = load_u8x16_as_i32(b, _field(b, part, _Q4_K_PART, "scale", i))
        minimum = load_u8x16_as_i32(b, _field(b, part, _Q4_K_PART, "minimum", i))
        u = [nibbles(b, v) for v in qs]
        yield Block(u, [_times(b, d, scale)], [_times(b, dmin, minimum)])


def _unpack_q6_K(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    d = load_f16x16(b, w)
    ql = load_vectors(b, _field(b, part, _Q6_K_PART, "ql"), 4)
    qh = load_vectors(b, _field(b, part, _Q6_K_PART, "qh"), 2)
    u = []
    for j in range(8):
        low = (low_nibbles if j < 4 else high_nibbles)(b, ql[j % 4])
        u.append(b.or_(low, _two_bits_up(b, qh[j // 4], 2 * (j % 4))))
    scales = [load_i8x16_as_i32(b, _field(b, part, _Q6_K_PART, "scale", i)) for i in range(2)]
    yield Block(u, [_times(b, d, scale) for scale in scales], zero=32)


def _two_bits_up(b: Emitter, v: Any, start: int) -> Any:
    """Bits `start` and `start` + 1 of each byte as bits 4 and 5."""
    words = b.bitcast(v, i16x32.ir)  # bytes have no shift of their own
    if start < 4:
        words = b.shl(words, b.const(i16x32.ir, 4 - start))
    elif start > 4:
        words = b.lshr(words, b.const(i16x32.ir, start - 4))
    return b.and_(b.bitcast(words, i8x64.ir), b.const(i8x64.ir, 0x30))


def _repack_q4_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["dmin"] = stored["dmin"].swapaxes(1, 2)
    bits = np.ascontiguousarray(stored["scales"].transpose(0, 2, 3, 1))  # [groups, blocks, 12, 16]
    scale, minimum, rest = bits[:, :, :4], bits[:, :, 4:8], bits[:, :, 8:]
    low, high = packed["parts"][:, :, :2], packed["parts"][:, :, 2:]
    half = (*packed.shape, 2, 2, 16)  # of the 8 scales, by part
    low["scale"] = (scale & 63).reshape(half)
    high["scale"] = ((rest & 15) | (scale >> 6 << 4)).reshape(half)
    low["minimum"] = (minimum & 63).reshape(half)
    high["minimum"] = ((rest >> 4) | (minimum >> 6 << 4)).reshape(half)
    packed["parts"]["qs"] = stored["qs"].transpose(0, 2, 3, 4, 1)


def _repack_q6_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["parts"]["scale"] = stored["scale"].transpose(0, 2, 3, 4, 1)
    # Words of 4 bytes with the row last, so that the rest is contiguous; 8 words are 32 elements.
    ql = np.ascontiguousarray(stored["ql"].transpose(0, 2, 3, 4, 5, 1))  # [.., h, 2, 8, 16]
    qh = np.ascontiguousarray(stored["qh"].transpose(0, 2, 3, 4, 1))  # [.., h, 8, 16]
    parts = packed["parts"].reshape(*packed.shape, 2, 4)
    for p in range(4):
        nibbles = (ql[:, :, :, p % 2] >> (p // 2 * 4)) & 0x0F0F0F0F
        parts["ql"][:, :, :, p] = nibbles[:, :, :, :4] | nibbles[:, :, :, 4:] << 4
        pairs = ((qh >> 2 * p) & 0x03030303).reshape(*qh.shape[:3], 2, 4, 16)
        joined = pairs[:, :, :, :, 0]
        for i in range(1, 4):
            joined = joined | pairs[:, :, :, :, i] << 2 * i
        parts["qh"][:, :, :, p] = joined


Q4_K_FORMAT = quantized_format(
    "q4_K",
    block=256,
    stored=_Q4_K_STORED,
    packed=_Q4_K_PACKED,
    repack=_repack_q4_K,
    unpack=_unpack_q4_K,
)
Q6_K_FORMAT = quantized_format(
    "q6_K",
    block=256,
    stored=_Q6_K_STORED,
    packed=_Q6_K_PACKED,
    repack=_repack_q6_K,
    unpack=_unpack_q6_K,
)
