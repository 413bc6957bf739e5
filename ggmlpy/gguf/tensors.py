"""The tensor table of a GGUF file: names, types, shapes, and where the data lies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.open_file import FilePlace
from ggmlpy.common.quoting import quoted
from ggmlpy.errors import GGUFError, Unsupported
from ggmlpy.gguf.cursor import Cursor
from ggmlpy.gguf.part import Part
from ggmlpy.graph.buffer import HostBuffer
from ggmlpy.graph.types import BF16, BY_ID, TensorType

MIN_INFO_BYTES = 24  # an empty name (8), no dimensions (4), type (4), offset (8)
_MAX_NAME_BYTES = 64  # the format's limit
_MAX_DIMS = 4
_MAX_ELEMENTS = 2**63 - 1
_REMOVED = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file. `data` reads it."""

    name: str
    type: TensorType
    ne: tuple[int, int, int, int]
    """Elements per dimension, fastest first; 1 beyond `n_dims`."""
    n_dims: int
    offset: int
    """The position of the first byte in the file at `path`."""
    n_bytes: int
    path: Path
    _part: Part = field(repr=False, compare=False)

    @property
    def n_elements(self) -> int:
        return math.prod(self.ne)

    @property
    def data(self) -> NDArray[np.uint8]:
        """The stored bytes, little-endian: a read-only view of the mapped file, `[n_bytes]`.

        Numbers of a big-endian file are swapped, in a new copy at every call. Raises Unsupported
        for a quantised tensor of such a file, FileError if the file was closed.
        """
        stored: NDArray[np.uint8] = np.frombuffer(
            self._part.view, np.uint8, self.n_bytes, self.offset
        )
        return stored if self._part.byte_order == "little" else self._swapped(stored)

    @property
    def place(self) -> FilePlace | None:
        """Where `data` can be read without the map; None if it cannot."""
        return self._part.place(self.offset) if self._part.byte_order == "little" else None

    def buffer(self) -> HostBuffer:
        """`data` as a buffer, which knows its place in the file."""
        return HostBuffer(self.data, file=self.place)

    def copy(self) -> NDArray[np.uint8]:
        """A copy of `data`, made without loading pages of the map if possible."""
        place = self.place
        copied = np.empty(self.n_bytes, np.uint8)
        if place is None:
            copied[:] = self.data
        else:
            place.read(0, copied)
        return copied

    def _swapped(self, stored: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self.type.dtype is None and self.type is not BF16:
            raise Unsupported(
                f"{self._part.name}: tensor {quoted(self.name)} is {self.type.name} in a "
                f"big-endian file; of those only plain numbers (f32, f16, bf16, i32, …) are read"
            )
        swapped = stored.reshape(-1, self.type.type_size)[:, ::-1].reshape(-1)
        swapped.flags.writeable = False
        return swapped


def read_tensors(cursor: Cursor, n: int, alignment: int) -> list[TensorInfo]:
    """Read `n` entries at the cursor and check the positions of their data.

    Raises GGUFError with the tensor that is wrong.
    """
    entries: dict[str, _Entry] = {}
    for i in range(n):
        entry = _read_entry(cursor, i, n)
        if entry.name in entries:
            raise cursor.error("is there twice")
        entries[entry.name] = entry
    base = cursor.pos + -cursor.pos % alignment  # the data section begins at the next multiple
    tensors = [_placed(cursor, entry, base, alignment) for entry in entries.values()]
    _check_no_overlap(cursor.part, tensors)
    return tensors


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    type: TensorType
    dims: list[int]
    offset: int  # from the beginning of the data section


def _read_entry(cursor: Cursor, i: int, n: int) -> _Entry:
    cursor.at = f"tensor {i + 1} of {n}"
    name = cursor.text(_MAX_NAME_BYTES)
    cursor.at = f"tensor {quoted(name)}"
    n_dims = cursor.u32()
    if n_dims > _MAX_DIMS:
        raise cursor.error(f"has {n_dims} dimensions, the most is {_MAX_DIMS}")
    dims = [cursor.u64() for _ in range(n_dims)]
    if 0 in dims or math.prod(dims) > _MAX_ELEMENTS:
        raise cursor.error(
            f"has shape {dims}: dimensions must be above 0, their product below 2^63"
        )
    type = _type_of(cursor, cursor.u32())
    row = dims[0] if dims else 1
    if row % type.block_size:
        raise cursor.error(
            f"has shape {dims}: {type.name} is stored in blocks of {type.block_size} elements, "
            f"the first dimension must be a multiple of that"
        )
    return _Entry(name, type, dims, cursor.u64())


def _type_of(cursor: Cursor, id: int) -> TensorType:
    if id in BY_ID:
        return BY_ID[id]
    if id in _REMOVED:
        raise cursor.error(
            f"has type {id} ({_REMOVED[id]}), which was removed from the format; "
            f"the model must be converted again"
        )
    raise cursor.error(f"has the unknown type {id}; known are 0 ({BY_ID[0]}) to {_newest()}")


def _newest() -> str:
    newest = BY_ID[max(BY_ID)]
    return f"{newest.id} ({newest})"


def _placed(cursor: Cursor, entry: _Entry, base: int, alignment: int) -> TensorInfo:
    """The tensor whose data is at `entry.offset` of the data section, which begins at `base`."""
    cursor.at = f"tensor {quoted(entry.name)}"
    if entry.offset % alignment:
        raise cursor.error(
            f"has offset {entry.offset}, which must be a multiple of the alignment {alignment}"
        )
    n_bytes = math.prod(entry.dims) // entry.type.block_size * entry.type.type_size
    offset = base + entry.offset
    n_file_bytes = len(cursor.view)
    if offset + n_bytes > n_file_bytes:
        raise cursor.error(
            f"({entry.type.name} {entry.dims}) needs the bytes {offset} to {offset + n_bytes}, "
            f"but the file ends after {n_file_bytes} bytes"
        )
    ones = [1] * (_MAX_DIMS - len(entry.dims))
    n0, n1, n2, n3 = entry.dims + ones
    return TensorInfo(
        name=entry.name,
        type=entry.type,
        ne=(n0, n1, n2, n3),
        n_dims=len(entry.dims),
        offset=offset,
        n_bytes=n_bytes,
        path=cursor.part.path,
        _part=cursor.part,
    )


def _check_no_overlap(part: Part, tensors: list[TensorInfo]) -> None:
    in_order = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, after in pairwise(in_order):
        if before.offset + before.n_bytes > after.offset:
            raise GGUFError(
                f"{part.name}: tensor {quoted(after.name)} begins at byte {after.offset}, inside "
                f"tensor {quoted(before.name)}, which ends at {before.offset + before.n_bytes}"
            )
