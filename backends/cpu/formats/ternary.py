"""tq1_0, tq2_0: weights -d, 0, d in blocks of 256.

tq2_0   stored   qs 64 x u8 | d f16                    w[i] = d * (q - 1)             66 bytes
                 q of element i of run 4h + p, i < 32: bits 2p and 2p + 1 of qs[32h + i]
        packed   d 16 x f16 | 8 parts, one for each run                             1056 bytes
        part     qs: a plane of 2

tq1_0   stored   qs 48 x u8 | qh 4 x u8 | d f16        w[i] = d * (digit - 1)         54 bytes
                 five digits of base 3 a byte, four in qh, as a fraction of 256: digit n of x is
                 the whole part of 3 * (x * 3^n % 256) / 256. The first digits of qs[0 .. 31] are
                 elements 0 .. 31, their second digits the next 32, and so on to 159; then those
                 of qs[32 .. 47], 16 at a time, to 239; then those of qh, 4 at a time
        packed   as tq2_0: a fifth more bytes than stored, and no products to get digits by

planes.py says what a plane is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.formats.base import Format, Repack, quantized_format
from ggmlpy.backends.cpu.formats.blocks import Block
from ggmlpy.backends.cpu.formats.planes import (
    join,
    load_codes,
    plane,
    planes_of_runs,
    rows_last,
)
from ggmlpy.backends.cpu.simd.core import Emitter
from ggmlpy.backends.cpu.simd.memory import load_f16x16

_PART = np.dtype([("qs", *plane(2))])


def _unpack(b: Emitter, w: Any, part: Any) -> Iterator[Block]:
    yield Block(load_codes(b, part, _PART, "qs"), [load_f16x16(b, w)], zero=1)


def _repack_tq2_0(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["parts"]["qs"] = planes_of_runs(stored["qs"], 2)


def _repack_tq1_0(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    words = rows_last(stored["qs"])  # [groups, blocks, 13, 16], qh as the last one
    codes = np.empty((*packed.shape, 64, 16), np.uint32)
    for n in range(5):
        codes[:, :, 8 * n : 8 * n + 8] = _digits(words[:, :, :8], n)
        codes[:, :, 40 + 4 * n : 44 + 4 * n] = _digits(words[:, :, 8:12], n)
    for n in range(4):
        codes[:, :, 60 + n] = _digits(words[:, :, 12], n)
    packed["parts"]["qs"] = join(codes.reshape(*packed.shape, 8, 8, 16), 2)


def _digits(words: NDArray[np.uint32], n: int) -> NDArray[np.uint32]:
    """Digit n of every byte."""
    fraction = words.view(np.uint8) * np.uint8(3**n)  # modulo 256
    digits = (fraction > 85).view(np.uint8) + (fraction > 170).view(np.uint8)  # thirds of 256
    return digits.view(np.uint32)


def _format(type_name: str, stored: list[Any], repack: Repack) -> Format:
    return quantized_format(
        type_name,
        block=256,
        stored=np.dtype([*stored, ("d", "<u2")]),
        packed=np.dtype([("d", "<u2", 16), ("parts", _PART, 8)]),
        repack=repack,
        unpack=_unpack,
    )


TQ1_0_FORMAT = _format("tq1_0", [("qs", "<u4", 13)], _repack_tq1_0)
TQ2_0_FORMAT = _format("tq2_0", [("qs", "<u4", (2, 8))], _repack_tq2_0)
