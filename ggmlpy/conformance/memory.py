"""Memory of a backend in which tensors lie between guard bytes.

Everything that a run may not change is compared byte by byte: guards, sources, and the gaps of
strided results.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.arrays import element_view, row_view
from ggmlpy.graph.buffer import Buffer, BufferType, Bytes, Place
from ggmlpy.graph.spec import Spec

_GUARD_BYTES = 256  # before and after every tensor, rounded up to the memory's alignment
_GUARD = 0xA5
_UNWRITTEN = 0xFF  # NaN as a float, -1 as an index


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes of one tensor: their name for messages, and where they begin in the buffer."""

    name: str
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Written:
    """A result: its region, how it lies there, and which rows are written; None for all."""

    region: Region
    spec: Spec
    offset: int
    rows: NDArray[np.bool_] | None = None


class GuardedMemory:
    """One buffer for the tensors of a run.

    Add all regions, then `allocate`, and `reset` before each run.
    """

    def __init__(self, memory: BufferType) -> None:
        self._memory = memory
        self._regions: list[Region] = []
        self._initial: dict[Region, Bytes] = {}
        self._gap = -(-_GUARD_BYTES // memory.alignment) * memory.alignment
        self._end = self._gap
        self._buffer: Buffer | None = None
        self._image: Bytes = np.empty(0, np.uint8)

    def add(self, name: str, data: Bytes | int, shift: int = 0) -> Region:
        """Room for a tensor: with these bytes, or for so many that a run must write.

        `shift` moves it that many bytes off the memory's alignment.
        """
        n_bytes = data if isinstance(data, int) else data.nbytes
        region = Region(name, self._end + shift, n_bytes)
        self._regions.append(region)
        if not isinstance(data, int):
            self._initial[region] = data.copy()
        padded = -(-(n_bytes + shift) // self._memory.alignment) * self._memory.alignment
        self._end += padded + self._gap
        return region

    def allocate(self) -> None:
        """Raises AllocationError."""
        self._buffer = self._memory.allocate(self._end)
        self._image = np.full(self._end, _GUARD, np.uint8)
        for region in self._regions:
            where = slice(region.offset, region.offset + region.n_bytes)
            self._image[where] = self._initial.get(region, _UNWRITTEN)

    def reset(self) -> None:
        """Write the bytes of sources and guards, and mark those of results as unwritten."""
        self._allocated.write(0, self._image)

    def place(self, region: Region, offset: int = 0) -> Place:
        """The place of the byte at `offset` of a region."""
        return Place(self._allocated, region.offset + offset)

    def read(self, region: Region, offset: int, n_bytes: int) -> Bytes:
        """A copy of bytes of a region, on the host."""
        return self._allocated.read(region.offset + offset, n_bytes).copy()

    def wrongly_changed(self, results: list[Written]) -> str:
        """What a run changed besides the written elements of results; empty if nothing."""
        now = self._allocated.read(0, self._end)
        differs = now != self._image
        for result in results:
            region = result.region
            inside = differs[region.offset : region.offset + region.n_bytes]
            inside &= ~_elements(result)
        if not differs.any():
            return ""
        return self._where(int(np.argmax(differs)), int(differs.sum()))

    def _where(self, at: int, count: int) -> str:
        """Which bytes changed, relative to the nearest tensor."""
        many = f"{count} bytes that the run must not write changed, the first is byte "
        for region in self._regions:
            if region.offset <= at < region.offset + region.n_bytes:
                return f"{many}{at - region.offset} of {region.name}"
        before = [r for r in self._regions if r.offset + r.n_bytes <= at]
        if before:
            last = before[-1]
            return f"{many}{at - last.offset - last.n_bytes} behind the end of {last.name}"
        first = self._regions[0]
        return f"{many}{first.offset - at} before the start of {first.name}"

    @property
    def _allocated(self) -> Buffer:
        assert self._buffer is not None, "allocate comes first"
        return self._buffer


def _elements(result: Written) -> NDArray[np.bool_]:
    """Which bytes of a result's region belong to elements that are written."""
    mine = np.zeros(result.region.n_bytes, np.uint8)
    rows = slice(None) if result.rows is None else result.rows
    spec = result.spec
    if spec.type.is_quantized or spec.rows_contiguous:
        row_view(mine, spec, result.offset)[rows] = 1
    else:
        ones = np.full(spec.type.type_size, 1, np.uint8)
        elements = element_view(mine, spec, result.offset)
        elements[rows] = ones.view(elements.dtype)[0]
    return mine.astype(np.bool_)
