"""q4_0, q8_0: blocks of 32 with one f16 scale.

q4_0   stored   d f16 | qs 16 x u8                     w[i] = d * (q[i] - 8)          18 bytes
                q[i] = low nibble of qs[i], q[16 + i] = its high nibble, i < 16
       packed   d 16 x f16 | 4 vectors of 64 bytes                                   288 bytes
                byte 4 * row + t of vector j is the row's qs[4j + t]

q8_0   stored   d f16 | qs 32 x i8                     w[i] = d * qs[i]               34 bytes
       packed   d 16 x f16 | 8 vectors of 64 bytes                                   544 bytes
                byte 4 * row + t of vector j is the row's qs[4j + t] + 128
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.formats.base import Format, Repack, quantized_format
from ggmlpy.backends.cpu.formats.blocks import Block, Unpack, load_vectors
from ggmlpy.backends.cpu.simd.convert import high_nibbles, low_nibbles
from ggmlpy.backends.cpu.simd.core import Emitter
from ggmlpy.backends.cpu.simd.memory import load_f16x16
from ggmlpy.backends.cpu.simd.product import after

_QS = 32  # bytes of the scales, before the codes


def _unpack_q4_0(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    qs = load_vectors(b, after(b, w, _QS), 4)
    u = [low_nibbles(b, v) for v in qs] + [high_nibbles(b, v) for v in qs]
    yield Block(u, [load_f16x16(b, w)], zero=8)


def _unpack_q8_0(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    yield Block(load_vectors(b, after(b, w, _QS), 8), [load_f16x16(b, w)], zero=128)


def _interleave(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    """`qs` in words of 4 bytes: [groups, 16, blocks, vectors] -> [groups, blocks, vectors, 16]."""
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["qs"] = stored["qs"].transpose(0, 2, 3, 1)


def _interleave_unsigned(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    _interleave(stored, packed)
    packed["qs"] ^= np.uint32(0x80808080)  # 128 more, for every byte


def _format(type_name: str, n_vectors: int, repack: Repack, unpack: Unpack) -> Format:
    return quantized_format(
        type_name,
        block=32,
        stored=np.dtype([("d", "<u2"), ("qs", "<u4", n_vectors)]),
        packed=np.dtype([("d", "<u2", 16), ("qs", "<u4", (n_vectors, 16))]),
        repack=repack,
        unpack=unpack,
    )


Q4_0_FORMAT = _format("q4_0", 4, _interleave, _unpack_q4_0)
Q8_0_FORMAT = _format("q8_0", 8, _interleave_unsigned, _unpack_q8_0)
