"""The compiled half of packing: threads take pieces of weights, read them and pack them.

Weights that are used where a file is mapped are taken in pieces too, to bring them into memory, and
summed if they were packed before.

A thread makes one call for all its pieces, so it does not hold the GIL in between. Memory shared by
the threads, in lines of 64 bytes:

    line 0     next      the piece that is taken next; n_pieces or more: none
    line 1     done      stored bytes that are packed

Setting `next` to the number of pieces stops the threads after their current pieces.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.formats.columns import GROUP
from ggmlpy.backends.cpu.kernel import Int, entry, inline
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.atomic import atomic_add_i64, atomic_store_i64, call_pack
from ggmlpy.backends.cpu.simd.core import i64
from ggmlpy.backends.cpu.simd.files import read_at
from ggmlpy.backends.cpu.simd.memory import load_i64, load_u8, store_i8, store_i64

PIECE = np.dtype(
    [
        ("pack", "i8"),  # address of the function that packs groups (columns.py)
        ("file", "i8"),  # descriptor of the file that the rows are read from, or -1
        ("rows", "i8"),  # where they begin: the position in the file, or an address
        ("n_rows", "i8"),
        ("row_bytes", "i8"),
        ("out", "i8"),  # address of the groups
        ("n_blocks", "i8"),  # of a row
    ]
)
_BYTES = PIECE.itemsize
_PACK, _FILE, _ROWS, _N_ROWS, _ROW_BYTES, _OUT, _N_BLOCKS = range(0, _BYTES, 8)
_PAGE_BYTES = 4096  # or more
NEXT, DONE = 0, 8  # in words
QUEUE_WORDS = 16
SUMS = 2  # words that `checksum` stores


def scratch_bytes(pieces: NDArray[np.void]) -> int:
    """Bytes of a thread's buffer: the rows of a piece, and an incomplete group."""
    return int(((pieces["n_rows"] + GROUP) * pieces["row_bytes"]).max())


@inline
def read_bytes(file: Int, position: Int, scratch: Int, n: Int) -> Int:
    """Reads `n` bytes to `scratch`; returns whether all could be read."""
    done = 0
    while done < n:
        got = read_at(file, scratch + done, n - done, position + done)
        if got <= 0:
            return 0
        done += got
    return 1


@inline
def fill_group(rows: Int, n: Int, group: Int, n_group: Int) -> None:
    """Copies `n` bytes to `group`, and zeros after them up to `n_group`."""
    for i in range(n):
        store_i8(group + i, load_u8(rows + i))
    for i in range(n, n_group):
        store_i8(group + i, 0)


@inline
def do_piece(piece: Int, scratch: Int) -> Int:
    """Packs a piece; returns whether its bytes could be read."""
    pack, file, rows = load_i64(piece + _PACK), load_i64(piece + _FILE), load_i64(piece + _ROWS)
    n_rows, row_bytes = load_i64(piece + _N_ROWS), load_i64(piece + _ROW_BYTES)
    out, n_blocks = load_i64(piece + _OUT), load_i64(piece + _N_BLOCKS)
    n_bytes = n_rows * row_bytes
    if file >= 0:
        if read_bytes(file, rows, scratch, n_bytes) == 0:
            return 0
        rows = scratch
    n_whole = quotient(n_rows, GROUP)
    out = call_pack(pack, rows, row_bytes, out, n_whole, n_blocks)
    n_packed = n_whole * GROUP * row_bytes
    if n_packed < n_bytes:
        last = scratch + n_bytes
        fill_group(rows + n_packed, n_bytes - n_packed, last, GROUP * row_bytes)
        call_pack(pack, last, row_bytes, out, 1, n_blocks)
    return 1


@entry(i64, i64, i64, i64, i64)
def do_pieces(queue: Int, pieces: Int, n_pieces: Int, scratch: Int) -> Int:
    """Packs pieces until none is left. Returns -1, or the piece whose bytes could not be read,
    after which all threads stop."""
    while True:
        i = atomic_add_i64(queue + 8 * NEXT, 1)
        if i >= n_pieces:
            return -1
        piece = pieces + i * _BYTES
        if do_piece(piece, scratch) == 0:
            atomic_store_i64(queue + 8 * NEXT, n_pieces)
            return i
        done = load_i64(piece + _N_ROWS) * load_i64(piece + _ROW_BYTES)
        atomic_add_i64(queue + 8 * DONE, done)


@entry(i64, i64, i64, i64, i64, i64)
def touch(rows: Int, row_bytes: Int, out: Int, n_groups: Int, n_blocks: Int) -> Int:
    """Used instead of a packing function: reads a byte of every 4096, and writes nothing."""
    total = 0
    for at in range(0, n_groups * GROUP * row_bytes, _PAGE_BYTES):
        total += load_u8(rows + at)
    return total  # so that LLVM does not remove the loads


@entry(i64, i64, i64, i64, i64, i64)
def checksum(rows: Int, row_bytes: Int, out: Int, n_groups: Int, n_blocks: Int) -> Int:
    """Used instead of a packing function: sums words of 64 bits, and the sums up to each word.

    The first sum notices any change of one word, the second also that words have changed places.
    Both are exact, so they are the same on every instruction set.
    """
    total, of_totals = 0, 0
    for at in range(0, n_groups * GROUP * row_bytes, 8):
        total += load_i64(rows + at)
        of_totals += total
    store_i64(out, total)
    store_i64(out + 8, of_totals)
    return out + 8 * SUMS
