"""Columns of 16 stored rows: the words of all rows at one offset, as a vector with a lane a row.

    row 0    a b c d e f ..                 16 bytes of every row, loaded and transposed,
    row 1    A B C D E F ..      words:     are four columns: (a A ..) (b B ..) (c C ..) (d D ..)
    ..

Weights are packed with them. A format says in the vocabulary below which parts of a stored block go
where in a packed one (`Repack`); `declare_pack` makes the compiled function that does it for whole
matrices. These functions write LLVM IR, as intrinsics do: the lists are registers.

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from ggmlpy.backends.cpu.formats.planes import field
from ggmlpy.backends.cpu.kernel import Entry, Int, entry
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Vec,
    i8x16,
    i16x16,
    i32,
    i64,
    intrinsic,
    void,
)
from ggmlpy.backends.cpu.simd.product import after

GROUP = 16  # rows side by side: the lanes of a vector of sums
_CHUNK_BYTES = 16  # of a row
_CHUNK = Vec(i32, 4)
# Where the words of two vectors go in each quarter of 128 bits: first both low halves, then the
# high ones, interleaved; the same with pairs of words.
_LOW = [4 * quarter + i for quarter in range(4) for i in (0, 16, 1, 17)]
_HIGH = [lane + 2 for lane in _LOW]
_LOW_PAIRS = [4 * quarter + i for quarter in range(4) for i in (0, 1, 16, 17)]
_HIGH_PAIRS = [lane + 2 for lane in _LOW_PAIRS]


@dataclass(frozen=True, slots=True)
class Stored:
    """A block of 16 rows as it is in the file: row r's at `rows[r]`, laid out as `dtype`."""

    b: Emitter
    rows: Sequence[Any]
    dtype: np.dtype[Any]

    def words(self, name: str) -> list[Any]:
        """The columns i32x16 of a field of whole words, in order."""
        begin, end = self._place(name)
        assert (end - begin) % 4 == 0
        whole = end - (end - begin) % _CHUNK_BYTES
        found = [column for at in range(begin, whole, _CHUNK_BYTES) for column in self._chunk(at)]
        return found + [self._word(at) for at in range(whole, end, 4)]

    def halves(self, name: str) -> Any:
        """The column i16x16 of a field of two bytes."""
        return self._number(name, i16x16)

    def bytes(self, name: str) -> Any:
        """The column i8x16 of a field of one byte."""
        return self._number(name, i8x16)

    def _place(self, name: str) -> tuple[int, int]:
        fields = self.dtype.fields
        assert fields is not None
        dtype, begin = fields[name][:2]
        return begin, begin + dtype.itemsize

    def _number(self, name: str, column: Vec) -> Any:
        begin, end = self._place(name)
        assert end - begin == column.ir.element.width // 8
        at = min(begin, self.dtype.itemsize - 4)  # the word from there on, or the block's last one
        return split(self.b, self._word(at), column)[(begin - at) * 8 // column.ir.element.width]

    def _word(self, begin: int) -> Any:
        """A column: of the 16 bytes that start with it, or end with it at the end of a block."""
        fits = begin + _CHUNK_BYTES <= self.dtype.itemsize
        at = begin if fits else begin + 4 - _CHUNK_BYTES
        assert at >= 0
        return self._chunk(at)[(begin - at) // 4]

    def _chunk(self, begin: int) -> list[Any]:
        """Four columns: 16 bytes of each row, from byte `begin` of the block on."""
        b = self.b
        chunks = [b.load_from(after(b, row, begin), _CHUNK) for row in self.rows]
        # Vector i: rows i, i + 4, i + 8, i + 12 in its quarters, so that no word leaves its own.
        lines = [
            b.concat(b.concat(chunks[i], chunks[i + 4]), b.concat(chunks[i + 8], chunks[i + 12]))
            for i in range(4)
        ]
        low = [b.shuffle(lines[i], lines[i + 1], _LOW) for i in (0, 2)]
        high = [b.shuffle(lines[i], lines[i + 1], _HIGH) for i in (0, 2)]
        pairs = ((low, _LOW_PAIRS), (low, _HIGH_PAIRS), (high, _LOW_PAIRS), (high, _HIGH_PAIRS))
        return [b.shuffle(first, second, lanes) for (first, second), lanes in pairs]


# Writes the code that fills the packed block at an address from stored ones.
Repack = Callable[[Emitter, Stored, Any], None]


def split(b: Emitter, column: Any, into: Vec) -> list[Any]:
    """The columns of the numbers that a column of words is made of, lowest first."""
    n = 32 // into.ir.element.width
    numbers = b.bitcast(column, ir.VectorType(into.ir.element, GROUP * n))
    sorted_ = b.shuffle(numbers, numbers, [n * row + i for i in range(n) for row in range(GROUP)])
    return [b.lanes(sorted_, i * GROUP, GROUP) for i in range(n)]


def put(
    b: Emitter, record: Any, dtype: np.dtype[Any], name: str, *columns: Any, i: int = 0
) -> None:
    """Stores columns one after another in a field of the record at `record`, from element i on."""
    at = field(b, record, dtype, name, i)
    n_bytes = 0
    for column in columns:
        b.store_to(after(b, at, n_bytes), column)
        n_bytes += column.type.count * column.type.element.width // 8


def declare_pack(
    type_name: str, stored: np.dtype[Any], packed: np.dtype[Any], repack: Repack
) -> Entry:
    """The compiled function pack(rows, row_bytes, out, n_groups, n_blocks) -> the end of `out`.

    It packs rows of `n_blocks` stored blocks, `row_bytes` apart, as groups of 16.
    """
    stored_bytes, packed_bytes = stored.itemsize, packed.itemsize

    @intrinsic(void, i64, i64, i64)
    def pack_block(b: Emitter, first: Any, row_bytes: Any, out: Any) -> None:
        rows = [b.add(first, b.mul(row_bytes, ir.Constant(i64.ir, r))) for r in range(GROUP)]
        repack(b, Stored(b, rows, stored), out)

    def pack(rows: Int, row_bytes: Int, out: Int, n_groups: Int, n_blocks: Int) -> Int:
        for _ in range(n_groups):
            for i in range(n_blocks):
                pack_block(rows + i * stored_bytes, row_bytes, out)
                out += packed_bytes
            rows += GROUP * row_bytes
        return out

    home = repack.__module__
    return entry(i64, i64, i64, i64, i64, i64, name=f"pack_{type_name}", module=home)(pack)
