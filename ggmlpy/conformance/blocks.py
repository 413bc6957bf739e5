"""Quantised rows with random values, for every type that can be read as floats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.quants import Bytes, from_float, has_quantizer
from ggmlpy.graph.types import TensorType

# Where the f16 scales lie in a block, and the size that makes values of about 1, for the types that
# numpy cannot write. Every other byte of these formats may hold anything.
_F16_SCALES = {
    "q2_K": ((80, 82), 1 / 32),
    "q3_K": ((108,), 1 / 64),
    "q4_K": ((0, 2), 1 / 512),
    "q5_K": ((0, 2), 1 / 1024),
    "q6_K": ((208,), 1 / 2048),
    "iq1_s": ((0,), 1 / 16),
    "iq2_xxs": ((0,), 1 / 64),
    "iq2_xs": ((0,), 1 / 64),
    "iq2_s": ((0,), 1 / 64),
    "iq3_xxs": ((0,), 1 / 128),
    "iq3_s": ((0,), 1 / 128),
    "iq4_nl": ((0,), 1 / 128),
    "iq4_xs": ((0,), 1 / 2048),
}


def random_rows(rng: np.random.Generator, type: TensorType, n_rows: int, n: int) -> Bytes:
    """`n_rows` rows of `n` elements, values of about 1 in size: bytes [n_rows, row_bytes].

    Types with a quantiser hold quantised uniform values of -1 to 1; the others are random blocks
    with sane scales, which covers every code of the format.
    """
    if has_quantizer(type):
        return from_float(rng.uniform(-1, 1, (n_rows, n)).astype(np.float32), type)
    blocks = rng.integers(0, 256, (n_rows * n // type.block_size, type.type_size), np.uint8)
    _set_scales(rng, type, blocks)
    return blocks.reshape(n_rows, type.row_bytes(n))


def _set_scales(rng: np.random.Generator, type: TensorType, blocks: Bytes) -> None:
    count = len(blocks)
    if type.name == "iq1_m":  # one f16 in the top four bits of the last four u16
        words = blocks[:, 48:56].view(np.uint16)
        bits = _scales(rng, count, 1 / 16).view(np.uint16)[:, None]
        nibbles = bits >> np.array([0, 4, 8, 12], np.uint16) & np.uint16(15)
        words[...] = words & np.uint16(0x0FFF) | nibbles << np.uint16(12)
    elif type.name == "nvfp4":  # four e4m3 scales without sign: 0.125 to 0.47
        blocks[:, :4] = rng.integers(0x20, 0x30, (count, 4))
    else:
        offsets, size = _F16_SCALES[type.name]
        for offset in offsets:
            scales = _scales(rng, count, size)
            blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(count, 2)


def _scales(rng: np.random.Generator, count: int, size: float) -> NDArray[np.float16]:
    return (rng.uniform(0.5, 1.5, count) * size).astype(np.float16)
