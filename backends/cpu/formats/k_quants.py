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

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.formats.base import Format, Repack, quantized_format
from ggmlpy.backends.cpu.formats.blocks import Block, Unpack
from ggmlpy.backends.cpu.formats.planes import (
    field,
    load_codes,
    plane,
    planes_of_runs,
    rows_last,
)
from ggmlpy.backends.cpu.simd.core import Emitter, f32x16, i32x16
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
_Q5_K_PACKED = np.dtype([*_TWO, ("parts", _Q5_K_PART, 8)])


# --- unpacking ------------------------------------------------------------------------------------


def _times(b: Emitter, d: Any, integers: Any) -> Any:
    """d * integers: exact, with the 11 bits of an f16 and at most 8 more."""
    return b.fmul(d, b.sitofp(integers, f32x16.ir))


def _unpack_q2_K(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    d = load_f16x16(b, w)
    dmin = load_f16x16(b, field(b, w, _Q2_K_PACKED, "dmin"))
    both = [load_u8x16_as_i32(b, field(b, part, _Q2_K_PART, "scales", i)) for i in range(2)]
    scales = [_times(b, d, b.and_(v, b.const(i32x16.ir, 15))) for v in both]
    minima = [_times(b, dmin, b.lshr(v, b.const(i32x16.ir, 4))) for v in both]
    yield Block(load_codes(b, part, _Q2_K_PART, "qs"), scales, minima)


def _unpack_signed(part_dtype: np.dtype[Any], *planes: str, zero: int) -> Unpack:
    """Codes in planes, with signed scales: d * scale * (code - zero)."""
    n_scales = part_dtype["scale"].shape[0]

    def unpack(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
        d = load_f16x16(b, w)
        at = [field(b, part, part_dtype, "scale", i) for i in range(n_scales)]
        scales = [_times(b, d, load_i8x16_as_i32(b, address)) for address in at]
        yield Block(load_codes(b, part, part_dtype, *planes), scales, zero=zero)

    return unpack


def _unpack_with_minimum(part_dtype: np.dtype[Any], *planes: str) -> Unpack:
    """q4_K and q5_K: d * scale * code - dmin * minimum."""

    def unpack(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
        d = load_f16x16(b, w)
        dmin = load_f16x16(b, field(b, w, _Q5_K_PACKED, "dmin"))
        scale = load_u8x16_as_i32(b, field(b, part, part_dtype, "scale"))
        minimum = load_u8x16_as_i32(b, field(b, part, part_dtype, "minimum"))
        u = load_codes(b, part, part_dtype, *planes)
        yield Block(u, [_times(b, d, scale)], [_times(b, dmin, minimum)])

    return unpack


# --- repacking ------------------------------------------------------------------------------------


def _repack_q2_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["dmin"] = stored["dmin"].swapaxes(1, 2)
    packed["parts"]["scales"] = rows_last(stored["scales"])
    packed["parts"]["qs"] = planes_of_runs(stored["qs"], 2)


def _repack_q3_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    bits = rows_last(stored["scales"])  # [groups, blocks, 12, 16]
    scale = packed["parts"]["scale"]
    for j in range(16):
        low = bits[:, :, j % 8] >> 4 * (j // 8) & 15
        high = bits[:, :, 8 + j % 4] >> 2 * (j // 4) & 3
        scale[:, :, j // 2, j % 2] = (low | high << 4).view(np.int8) - np.int8(32)
    packed["parts"]["qs"] = planes_of_runs(stored["qs"], 2)
    packed["parts"]["qh"] = planes_of_runs(stored["hmask"], 1)


def _repack_scales(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    """d, dmin, scales and minima of q4_K and q5_K."""
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["dmin"] = stored["dmin"].swapaxes(1, 2)
    bits = rows_last(stored["scales"])  # [groups, blocks, 12, 16]
    scale, minimum, rest = (bits[:, :, at : at + 4] for at in (0, 4, 8))
    low, high = packed["parts"][:, :, :4], packed["parts"][:, :, 4:]
    low["scale"] = scale & 63
    high["scale"] = (rest & 15) | (scale >> 6 << 4)
    low["minimum"] = minimum & 63
    high["minimum"] = (rest >> 4) | (minimum >> 6 << 4)


def _repack_q4_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    _repack_scales(stored, packed)
    packed["parts"]["qs"] = planes_of_runs(stored["qs"], 4)


def _repack_q5_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    _repack_q4_K(stored, packed)
    packed["parts"]["qh"] = planes_of_runs(stored["qh"], 1)


def _repack_q6_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["parts"]["scale"] = rows_last(stored["scale"])
    # Two runs 64 elements apart share 32 bytes of ql: theirs are quarters 0 and 2, or 1 and 3.
    ql = planes_of_runs(stored["ql"], 4).reshape(*packed.shape, 2, 2, 2, 4, 16)
    packed["parts"]["ql"] = ql.swapaxes(3, 4).reshape(*packed.shape, 8, 4, 16)
    packed["parts"]["qh"] = planes_of_runs(stored["qh"], 2)


# --- the formats ----------------------------------------------------------------------------------

_D = ("d", "<u2")
_DMIN = ("dmin", "<u2")


def _format(
    type_name: str,
    stored: list[Any],
    packed: np.dtype[Any],
    repack: Repack,
    unpack: Unpack,
) -> Format:
    return quantized_format(
        type_name,
        block=256,
        stored=np.dtype(stored),
        packed=packed,
        repack=repack,
        unpack=unpack,
    )


Q2_K_FORMAT = _format(
    "q2_K",
    [("scales", "u1", (8, 2)), ("qs", "<u4", (2, 8)), _D, _DMIN],
    _Q2_K_PACKED,
    _repack_q2_K,
    _unpack_q2_K,
)
Q3_K_FORMAT = _format(
    "q3_K",
    [("hmask", "<u4", (1, 8)), ("qs", "<u4", (2, 8)), ("scales", "u1", 12), _D],
    np.dtype([*_ONE, ("parts", _Q3_K_PART, 8)]),
    _repack_q3_K,
    _unpack_signed(_Q3_K_PART, "qs", "qh", zero=4),
)
Q4_K_FORMAT = _format(
    "q4_K",
    [_D, _DMIN, ("scales", "u1", 12), ("qs", "<u4", (4, 8))],
    np.dtype([*_TWO, ("parts", _Q4_K_PART, 8)]),
    _repack_q4_K,
    _unpack_with_minimum(_Q4_K_PART, "qs"),
)
Q5_K_FORMAT = _format(
    "q5_K",
    [_D, _DMIN, ("scales", "u1", 12), ("qh", "<u4", (1, 8)), ("qs", "<u4", (4, 8))],
    _Q5_K_PACKED,
    _repack_q5_K,
    _unpack_with_minimum(_Q5_K_PART, "qs", "qh"),
)
Q6_K_FORMAT = _format(
    "q6_K",
    [("ql", "<u4", (4, 8)), ("qh", "<u4", (2, 8)), ("scale", "i1", (8, 2)), _D],
    np.dtype([*_ONE, ("parts", _Q6_K_PART, 8)]),
    _repack_q6_K,
    _unpack_signed(_Q6_K_PART, "ql", "qh", zero=32),
)
