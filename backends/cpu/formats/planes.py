"""Codes of 1, 2 or 4 bits: into packed bytes, and out of them in the order of a Block.

A plane of width n holds n bits of each of 32 elements of 16 rows in n vectors of 64 bytes. Element
4j + t of a row is byte 4 * row + t of the block's vector u[j], j < 8, and its bits lie in the same
byte of the plane's vector j % n, from bit n * (j // n) on:

    width 4   vectors for j = 0 4 | 1 5 | 2 6 | 3 7          low nibbles and high ones
    width 2   vectors for j = 0 2 4 6 | 1 3 5 7
    width 1   a vector for j = 0 .. 7

Longer codes are several planes, the lowest bits first: 6 bits are a plane of 4 and one of 2. A
plane is a field of a packed record, n x 16 words of 4 bytes, and its shape determines the width.

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.formats.vectors import Vectors
from ggmlpy.backends.cpu.simd.convert import byte_bits
from ggmlpy.backends.cpu.simd.core import Emitter, i8x64
from ggmlpy.backends.cpu.simd.product import after

N_VECTORS = 8  # of a block's u


def plane(width: int) -> tuple[str, tuple[int, int]]:
    """The type and the shape of a packed record's field that is a plane."""
    return "<u4", (width, 16)


def field(b: Emitter, address: Any, dtype: np.dtype[Any], name: str, i: int = 0) -> Any:
    """The address of a field of the record at `address`, or of element `i` of it."""
    fields = dtype.fields
    assert fields is not None
    of, offset = fields[name][:2]
    return after(b, address, offset + (i * of.itemsize // of.shape[0] if i else 0))


def load_codes(b: Emitter, address: Any, dtype: np.dtype[Any], *names: str) -> Vectors:
    """u of a block: the codes in the planes `names` of the record at `address`."""
    planes = [(field(b, address, dtype, name), dtype[name].shape[0]) for name in names]

    def codes(j: int) -> Any:
        """Loads anew what a vector before it came from: LLVM drops that where nothing is between,
        and elsewhere a register is worth more than a load."""
        found, n_bits = None, 0
        for at, width in planes:
            vector = b.load_from(after(b, at, 64 * (j % width)), i8x64)
            bits = byte_bits(b, vector, width * (j // width), width, n_bits)
            found = bits if found is None else b.or_(found, bits)
            n_bits += width
        return found

    return Vectors(N_VECTORS, codes)


def largest_code(dtype: np.dtype[Any], *names: str) -> int:
    """The largest code that the planes `names` can hold."""
    n_bits: int = sum(dtype[name].shape[0] for name in names)
    return (1 << n_bits) - 1


def load_vectors(b: Emitter, address: Any, n: int) -> Vectors:
    """`n` contiguous vectors of 64 bytes."""
    return Vectors(n, lambda i: b.load_from(after(b, address, 64 * i), i8x64))


# --- packing: columns of words, i32x16, one lane a row (columns.py) -------------------------------


def planes_of_runs(b: Emitter, words: Sequence[Any], width: int) -> list[list[Any]]:
    """The planes of the 8 runs of 32 elements in a block of 256.

    `words` are `width` stretches of 32 bytes, in each of which 8 / width runs share the bytes: byte
    i holds element i of all of them, the first one in the lowest bits.

    A stretch has word j = m * width + v for field m of vector v, and run r in field r of every
    word; a plane has it the other way round. So fields and words are transposed, as rows and
    columns of a small matrix: halves first, then quarters.
    """
    vectors = list(words)
    assert len(vectors) == width * N_VECTORS
    step = 4 // width
    while step:
        shift = step * width
        for i in (i for i in range(len(vectors)) if not i & shift):
            first, second = vectors[i], vectors[i + shift]
            moved = b.xor(b.lshr(first, b.const(first.type, shift)), second)
            moved = b.and_(moved, b.const(first.type, _fields_without(step, width)))
            vectors[i + shift] = b.xor(second, moved)
            vectors[i] = b.xor(first, b.shl(moved, b.const(first.type, shift)))
        step //= 2
    return [vectors[i : i + width] for i in range(0, len(vectors), width)]


def _fields_without(step: int, width: int) -> int:
    """The bits, in every byte of a word, of the fields whose number lacks the bit `step`."""
    fields = [i for i in range(8 // width) if not i & step]
    return 0x01010101 * sum(((1 << width) - 1) << i * width for i in fields)


def join(b: Emitter, codes: Sequence[Any], width: int) -> list[Any]:
    """A plane from 8 words with a code in each byte."""
    joined = list(codes[:width])
    for j in range(width, N_VECTORS, width):  # as many bits as vectors are behind
        moved = [b.shl(code, b.const(code.type, j)) for code in codes[j : j + width]]
        joined = [b.or_(low, high) for low, high in zip(joined, moved, strict=True)]
    return joined


def bits_in_words(b: Emitter, qh: Any) -> Any:
    """A plane of 1 from the bits of 32 elements: bit 4j + t as bit j of byte t, j < 8 and t < 4."""
    words = b.const(qh.type, 0)
    for j in range(8):
        # Bits 0 .. 3 go to bits 0, 8, 16, 24: the copies, 7 bits apart, do not meet.
        bits = b.and_(b.lshr(qh, b.const(qh.type, 4 * j)), b.const(qh.type, 15))
        spread = b.mul(bits, b.const(qh.type, 0x00204081))
        spread = b.and_(spread, b.const(qh.type, 0x01010101))
        words = b.or_(words, b.shl(spread, b.const(qh.type, j)))
    return words
