"""The store of a KV cache: K and V of its layers in buffers, read and changed by rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.buffer import HOST, BufferType, Bytes, UnallocatedBuffer
from ggmlpy.graph.tensor import Flag, Tensor, stored_rows, zeros
from ggmlpy.graph.types import TensorType
from ggmlpy.memory.cache_types import check_cache_type
from ggmlpy.memory.cell_table import Index, padded
from ggmlpy.memory.rotation import Rotation, hadamard, rotation_of
from ggmlpy.models.memory import AttentionLayers, KVSizes

BufferTypes = Mapping[int, BufferType]  # by layer; the host for those that are not named


@dataclass(frozen=True, slots=True)
class SavedRows:
    """What some cells of a stream stored: of every leaf [cells, bytes of a row]."""

    stream: int
    cells: Index
    rows: list[NDArray[np.uint8]]


class KVStore:
    """K and V leaves, `[n_embd_gqa, kv_size, n_stream]` a layer. A cell is a row of each. Layers
    whose V is a part of K have no leaf of it; `sizes` has all layers. `rotations` says how K and V
    are rotated before they are stored, `matrices` has what they are multiplied by.

    Which cells are in use is not known here. Raises Unsupported for a type that rows cannot be
    written in.
    """

    def __init__(
        self,
        spec: AttentionLayers,
        n_ctx: int,
        n_stream: int,
        type_k: TensorType,
        type_v: TensorType,
        buffer_types: BufferTypes = {},  # noqa: B006  (never written to)
        kv_rotation: bool | None = None,
    ) -> None:
        self.n_bytes = cache_bytes(spec, n_ctx, n_stream, type_k, type_v)
        self.kv_size = padded(n_ctx)
        self.n_stream = n_stream
        self.sizes = dict(spec.layers)
        self.type_k, self.type_v = type_k, type_v
        types = {i: buffer_types.get(i, HOST) for i in spec.layers}
        self.k = {
            i: self._leaf(f"cache_k_l{i}", type_k, size.n_embd_k, types[i])
            for i, size in spec.layers.items()
            if size.n_embd_k
        }
        self.v = {
            i: self._leaf(f"cache_v_l{i}", type_v, size.n_embd_v, types[i])
            for i, size in spec.layers.items()
            if size.n_embd_v
        }
        self.rotations: dict[int, Rotation] = {
            i: rotation_of(size, type_k, type_v, kv_rotation) for i, size in spec.layers.items()
        }
        known: dict[tuple[int, BufferType], Tensor] = {}
        self.matrices: dict[int, tuple[Tensor | None, Tensor | None]] = {
            i: (_matrix(known, by.k, types[i]), _matrix(known, by.v, types[i]))
            for i, by in self.rotations.items()
            if by
        }

    def _leaf(self, name: str, type: TensorType, n_embd: int, at: BufferType) -> Tensor:
        ne = (n_embd, self.kv_size, self.n_stream)
        return zeros(type, ne, name=name, flags=Flag.STATE, buffer_type=at)

    @property
    def first_layer(self) -> int:
        """One of its layers: all hold the same positions."""
        return next(iter(self.sizes))

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """K of every layer, then V of every layer."""
        return (*self.k.values(), *self.v.values())

    def read_rows(self, leaf: Tensor, stream: int, cells: Index) -> Bytes:
        """What some cells of a layer store, [cells, bytes of a row]; `leaf` is its K or V."""
        buffer, rows = stored_rows(leaf)
        return buffer.read_rows(rows, self._index(stream, cells))

    def write_rows(self, leaf: Tensor, stream: int, cells: Index, values: Bytes) -> None:
        """Let some cells of a layer store [cells, bytes of a row]."""
        buffer, rows = stored_rows(leaf)
        buffer.write_rows(rows, self._index(stream, cells), values)

    def copy_rows(self, from_stream: int, source: Index, to_stream: int, target: Index) -> None:
        """Copy K and V from cell to cell, in every layer."""
        at, to = self._index(from_stream, source), self._index(to_stream, target)
        for leaf in self.leaves:
            buffer, rows = stored_rows(leaf)
            buffer.copy_rows(rows, at, to)

    def save_rows(self, stream: int, cells: Index) -> SavedRows:
        """What cells store in every layer, as `restore_rows` takes it."""
        return SavedRows(stream, cells, [self.read_rows(x, stream, cells) for x in self.leaves])

    def restore_rows(self, saved: SavedRows) -> None:
        """Write back what `save_rows` returned."""
        for leaf, rows in zip(self.leaves, saved.rows, strict=True):
            self.write_rows(leaf, saved.stream, saved.cells, rows)

    def _index(self, stream: int, cells: Index) -> Index:
        """The rows of a stream's cells among those of all streams."""
        return stream * self.kv_size + cells


def _matrix(known: dict[tuple[int, BufferType], Tensor], n: int, at: BufferType) -> Tensor | None:
    """The matrix [n, n] of a rotation, once in each memory; None for no rotation."""
    if not n:
        return None
    if (n, at) not in known:
        leaf = zeros("f32", (n, n), name=f"hadamard_{n}", flags=Flag.WEIGHT, buffer_type=at)
        assert leaf.place is not None
        if not isinstance(leaf.place.buffer, UnallocatedBuffer):
            leaf.place.buffer.write(leaf.place.offset, hadamard(n).view(np.uint8).reshape(-1))
        known[n, at] = leaf
    return known[n, at]


def cache_bytes(
    spec: AttentionLayers, n_ctx: int, n_stream: int, type_k: TensorType, type_v: TensorType
) -> int:
    """Bytes of K and V in all layers of a cache. Raises Unsupported for types it cannot have."""
    n = sum(cell_bytes(size, type_k, type_v) for size in spec.layers.values())
    return n_stream * padded(n_ctx) * n


def cell_bytes(size: KVSizes, type_k: TensorType, type_v: TensorType) -> int:
    """Bytes of K and V of a token in one layer. Raises Unsupported for types it cannot have."""
    if size.n_embd_head_k:
        check_cache_type("type_k", type_k, size.n_embd_head_k)
    if size.n_embd_head_v:
        check_cache_type("type_v", type_v, size.n_embd_head_v)
    return type_k.row_bytes(size.n_embd_k) + type_v.row_bytes(size.n_embd_v)
