"""Packed blocks as numpy makes them, from stored blocks with the axes [groups, 16 rows, blocks].

Written by the layouts in the formats' docstrings, and apart from the code that packs: what is held
against it bit by bit. planes.py says what a plane is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

N_VECTORS = 8  # of a block's u


def rows_last(stored: NDArray[Any]) -> NDArray[Any]:
    """A copy [groups, blocks, ..., 16] of [groups, 16, blocks, ...]."""
    return np.moveaxis(stored, 1, -1).copy()


def planes_of_runs(stored: NDArray[Any], width: int) -> NDArray[np.uint32]:
    """Planes [groups, blocks, 8, width, 16] of the 8 runs of 32 elements in a block of 256.

    stored [groups, 16, blocks, n, 8] are words of n stretches of 32 bytes, in each of which 8 / n
    runs share the bytes: byte i holds element i of all of them, the first one in the lowest bits.

    A stretch has word j = m * width + v for field m of vector v, and run r in field r of every
    word; a plane has it the other way round. So fields and words change places, as rows and columns
    of a small matrix do: halves first, then quarters.
    """
    words = rows_last(stored)
    n_groups, n_blocks, n = words.shape[:3]
    step = 4 // width
    while step:
        pairs = words.reshape(n_groups, n_blocks, n, -1, 2, step * width * 16)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        shift = step * width
        swapped = (first >> shift ^ second) & _fields_without(step, width)
        second ^= swapped
        first ^= swapped << shift
        step //= 2
    return words.reshape(n_groups, n_blocks, 8, width, 16)


def _fields_without(step: int, width: int) -> np.uint32:
    """The bits, in every byte of a word, of the fields whose number lacks the bit `step`."""
    fields = [i for i in range(8 // width) if not i & step]
    return np.uint32(0x01010101 * sum(((1 << width) - 1) << i * width for i in fields))


def join(codes: NDArray[np.uint32], width: int) -> NDArray[np.uint32]:
    """A plane [..., width, 16] from words [..., 8, 16] with a code in each byte."""
    joined: NDArray[Any] = codes[..., :width, :]
    for j in range(width, N_VECTORS, width):
        joined = joined | codes[..., j : j + width, :] << j  # as many bits as vectors are behind
    return joined


def _interleave(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    """Fields of one number a row and of words: [groups, 16, blocks] -> [groups, blocks, .., 16]."""
    names = stored.dtype.names or ()
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["qs"] = stored["qs"].transpose(0, 2, 3, 1)
    if "m" in names:
        packed["minus_m"] = stored["m"].swapaxes(1, 2) ^ np.uint16(0x8000)  # the sign of an f16
    if "qh" in names:
        packed["qh"][:, :, 0] = _bits_in_words(stored["qh"].swapaxes(1, 2))


def _bits_in_words(qh: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Bit 4j + t as bit j of byte t, for j < 8 and t < 4."""
    words = np.zeros_like(qh)
    for j in range(8):
        # Bits 0 .. 3 go to bits 0, 8, 16, 24: the copies, 7 bits apart, do not meet.
        words |= ((qh >> 4 * j & 15) * np.uint32(0x00204081) & np.uint32(0x01010101)) << j
    return words


def _interleave_unsigned(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    _interleave(stored, packed)
    packed["qs"] ^= np.uint32(0x80808080)  # 128 more, for every byte


def _q2_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["dmin"] = stored["dmin"].swapaxes(1, 2)
    packed["parts"]["scales"] = rows_last(stored["scales"])
    packed["parts"]["qs"] = planes_of_runs(stored["qs"], 2)


def _q3_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    bits = rows_last(stored["scales"])  # [groups, blocks, 12, 16]
    scale = packed["parts"]["scale"]
    for j in range(16):
        low = bits[:, :, j % 8] >> 4 * (j // 8) & 15
        high = bits[:, :, 8 + j % 4] >> 2 * (j // 4) & 3
        scale[:, :, j // 2, j % 2] = (low | high << 4).view(np.int8) - np.int8(32)
    packed["parts"]["qs"] = planes_of_runs(stored["qs"], 2)
    packed["parts"]["qh"] = planes_of_runs(stored["hmask"], 1)


def _scales(stored: NDArray[Any], packed: NDArray[Any]) -> None:
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


def _q4_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    _scales(stored, packed)
    packed["parts"]["qs"] = planes_of_runs(stored["qs"], 4)


def _q5_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    _q4_K(stored, packed)
    packed["parts"]["qh"] = planes_of_runs(stored["qh"], 1)


def _q6_K(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["parts"]["scale"] = rows_last(stored["scale"])
    # Two runs 64 elements apart share 32 bytes of ql: theirs are quarters 0 and 2, or 1 and 3.
    ql = planes_of_runs(stored["ql"], 4).reshape(*packed.shape, 2, 2, 2, 4, 16)
    packed["parts"]["ql"] = ql.swapaxes(3, 4).reshape(*packed.shape, 8, 4, 16)
    packed["parts"]["qh"] = planes_of_runs(stored["qh"], 2)


def _iq4_nl(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["qs"] = stored["qs"].transpose(0, 2, 3, 1)


def _mxfp4(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["e"] = stored["e"].swapaxes(1, 2)
    packed["qs"] = stored["qs"].transpose(0, 2, 3, 1)


def _nvfp4(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    d = rows_last(stored["d"])  # [groups, blocks, 4, 16]
    d[d == 0x7F] = 0
    packed["parts"]["d"] = (d & 0x7F).reshape(*packed.shape, 2, 2, 16)
    qs = rows_last(stored["qs"])  # [groups, blocks, 4, 2, 16]: words of 8 bytes for 16 elements
    nibbles = np.uint32(0x0F0F0F0F)
    codes = np.concatenate([qs & nibbles, qs >> 4 & nibbles], axis=3)
    packed["parts"]["qs"] = join(codes.reshape(*packed.shape, 2, 8, 16), 4)


def _iq4_xs(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    low, high = rows_last(stored["low"]), rows_last(stored["high"])  # [groups, blocks, (4,) 16]
    scale = packed["parts"]["scale"]
    for r in range(8):
        six_bits = low[:, :, r // 2] >> 4 * (r % 2) & 15 | (high >> 2 * r & 3) << 4
        scale[:, :, r] = six_bits.astype(np.int8) - np.int8(32)
    packed["parts"]["qs"] = stored["qs"].transpose(0, 2, 3, 4, 1)


def _tq2_0(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["parts"]["qs"] = planes_of_runs(stored["qs"], 2)


def _tq1_0(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    words = rows_last(stored["qs"])  # [groups, blocks, 13, 16], qh as the last one
    codes = np.empty((*packed.shape, 64, 16), np.uint32)
    for n in range(5):
        codes[:, :, 8 * n : 8 * n + 8] = _digits(words[:, :, :8], n)
        codes[:, :, 40 + 4 * n : 44 + 4 * n] = _digits(words[:, :, 8:12], n)
    for n in range(4):
        codes[:, :, 60 + n] = _digits(words[:, :, 12], n)
    packed["parts"]["qs"] = join(codes.reshape(*packed.shape, 8, 8, 16), 2)


def _q1_0(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    packed["parts"]["qs"][:, :, :, 0] = _bits_in_words(rows_last(stored["qs"]))


def _q2_0(stored: NDArray[Any], packed: NDArray[Any]) -> None:
    packed["d"] = stored["d"].swapaxes(1, 2)
    bytes_of_rows = np.ascontiguousarray(stored["qs"]).view(np.uint8)  # [groups, 16, blocks, 16]
    pairs = bytes_of_rows[..., None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    codes = rows_last(pairs.view(np.uint32)[..., 0])  # [groups, blocks, 16, 16]
    packed["parts"]["qs"] = join(codes.reshape(*packed.shape, 2, 8, 16), 2)


def _digits(words: NDArray[np.uint32], n: int) -> NDArray[np.uint32]:
    """Digit n of every byte."""
    fraction = words.view(np.uint8) * np.uint8(3**n)  # modulo 256
    digits = (fraction > 85).view(np.uint8) + (fraction > 170).view(np.uint8)  # thirds of 256
    return digits.view(np.uint32)


REPACK: dict[str, Callable[[NDArray[Any], NDArray[Any]], None]] = {
    **dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1"), _interleave),
    "q8_0": _interleave_unsigned,
    "q2_K": _q2_K,
    "q3_K": _q3_K,
    "q4_K": _q4_K,
    "q5_K": _q5_K,
    "q6_K": _q6_K,
    "iq4_nl": _iq4_nl,
    "iq4_xs": _iq4_xs,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "tq1_0": _tq1_0,
    "tq2_0": _tq2_0,
    "q1_0": _q1_0,
    "q2_0": _q2_0,
}
