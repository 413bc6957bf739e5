"""The inputs of a model's graph: declared for a shape, filled for a ubatch, advanced step by step.

All leaves lie in one host buffer, so that one copy brings them to a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.buffer import HOST, BufferType, Place
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import type_of
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.cell_table import Index
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.slots import SlotInfo
from ggmlpy.memory.spans import Positions
from ggmlpy.memory.ubatch import EqualRuns, SegmentShape, UBatch
from ggmlpy.models.inputs import GraphInputs, KVView, RecurrentSegment, RecurrentView, Segment


@dataclass(frozen=True, slots=True)
class Shape:
    """All that a graph depends on. Two ubatches of one shape run the same plan."""

    segments: tuple[SegmentShape, ...]
    n_outputs: int
    n_kv: tuple[int, ...]  # cells in view of each KV cache
    runs: tuple[tuple[int, int], ...] = ()  # (tokens, sequences), for recurrent layers only

    @classmethod
    def of(cls, ubatch: UBatch, n_outputs: int, memory: SequenceMemory) -> Shape:
        """The shape of a ubatch whose slots have been applied."""
        return cls(
            ubatch.segments,
            max(1, n_outputs),
            tuple(cache.cells.n_kv(ubatch.streams) for cache in memory.caches),
            ubatch.lengths if memory.recurrent is not None else (),
        )

    @property
    def n_tokens(self) -> int:
        return sum(s.n_tokens for s in self.segments)


class CacheInputs:
    """The inputs for one KV cache: the rows that tokens are written to, and the masks."""

    def __init__(self, cache: KVCache, view: KVView) -> None:
        self.cache = cache
        self.n_kv = view.n_kv
        self._rows: NDArray[np.int64] = view.rows.array()  # [tokens]
        # [tokens, n_kv] of each segment
        self._masks = [s.mask.array().reshape(-1, view.n_kv) for s in view.segments]
        self._own: list[tuple[NDArray[np.uint16], NDArray[np.int64]]] = []

    def fill(self, ubatch: UBatch, cells: Index, positions: Positions) -> None:
        """Set the rows of a ubatch's tokens, and the cells that each of them sees."""
        self._rows[:] = self.cache.cells.rows_at(ubatch.seqs, cells)
        first = 0
        for mask, members in zip(self._masks, ubatch.members, strict=True):
            self._fill_mask(mask, members, positions[first : first + len(mask)])
            first += len(mask)

    def _fill_mask(
        self, mask: NDArray[Any], members: tuple[EqualRuns, ...], positions: Positions
    ) -> None:
        for runs in members:
            at = slice(runs.first, runs.stop)
            self.cache.fill_mask(mask[at], positions[at], runs.seqs)

    def begin_advancing(self, cells: Index) -> None:
        """Prepare for `advance` after `fill`, for tokens in these cells."""
        self._own, first = [], 0
        for mask in self._masks:
            n, n_kv = mask.shape
            own = np.arange(n) * n_kv + cells[first : first + n]  # of each token, in the flat mask
            self._own.append((mask.view(np.uint16).reshape(-1), own))
            first += n

    def advance(self, n_cells: int) -> None:
        """Move each token `n_cells` on. It sees its new cell, and the cells it saw before."""
        self._rows += n_cells
        for mask, own in self._own:
            own += n_cells
            mask[own] = 0


class StepInputs:
    """The input leaves of one graph, as arrays that are filled before each step."""

    def __init__(
        self,
        shape: Shape,
        memory: SequenceMemory,
        flash_attn: bool,
        buffer_type: BufferType = HOST,
    ) -> None:
        self.leaves = declare(shape, memory, flash_attn, buffer_type)
        self._memory = memory
        self._tokens = self.leaves.tokens.array()
        self._positions = self.leaves.positions.array()
        self._out_ids = self.leaves.out_ids.array()
        self.caches = [
            CacheInputs(cache, view)
            for cache, view in zip(memory.caches, self.leaves.kvs, strict=True)
        ]

    @property
    def positions(self) -> Positions:
        """The positions of the tokens, [tokens]."""
        return self._positions

    def fill(self, batch: Batch, slot_info: SlotInfo, outputs: Sequence[int]) -> None:
        """Set all inputs for a ubatch of the batch. Tokens `outputs` of the ubatch are output."""
        ubatch, positions = slot_info.ubatch, slot_info.positions
        self._tokens[:] = [batch.tokens[i] for i in ubatch.indices]
        self._positions[:] = positions
        self._out_ids[:] = outputs or 0
        for part, cells in zip(self.caches, slot_info.cells, strict=True):
            part.fill(ubatch, cells, positions)
        self.fill_recurrent(ubatch)

    def fill_recurrent(self, ubatch: UBatch) -> None:
        """Set the rows of the states of the ubatch's sequences: those to read, those to write."""
        recurrent, view = self._memory.recurrent, self.leaves.recurrent
        if recurrent is not None and view is not None:
            read, written = recurrent.rows(ubatch.run_seqs.tolist())
            view.rows.array()[:] = read
            view.rows_out.array()[:] = written

    def advance(self, tokens: Sequence[int]) -> None:
        """Set new tokens, each at the position after that of the token it replaces."""
        self._tokens[:] = tokens
        self._positions += 1


def declare(
    shape: Shape, memory: SequenceMemory, flash_attn: bool, buffer_type: BufferType = HOST
) -> GraphInputs:
    """Input leaves for a ubatch of this shape, in one buffer. Raises AllocationError."""
    leaves = _Leaves()
    n_tokens = shape.n_tokens
    views = [
        _kv_view(leaves, cache, shape, n_kv)
        for cache, n_kv in zip(memory.caches, shape.n_kv, strict=True)
    ]
    inputs = GraphInputs(
        tokens=leaves.add("i32", (n_tokens,), "inp_tokens"),
        positions=leaves.add("i32", (n_tokens,), "inp_pos"),
        out_ids=leaves.add("i32", (shape.n_outputs,), "inp_out_ids"),
        kvs=tuple(views),
        flash_attn=flash_attn,
        recurrent=_recurrent_view(leaves, memory, shape),
    )
    leaves.allocate(buffer_type)
    return inputs


class _Leaves:
    """Input leaves, which are allocated together."""

    def __init__(self) -> None:
        self._leaves: list[Tensor] = []

    def add(self, type: str, ne: Sequence[int], name: str) -> Tensor:
        leaf = Tensor(Spec(ne, type_of(type)), name=name, flags=Flag.INPUT)
        self._leaves.append(leaf)
        return leaf

    def allocate(self, memory: BufferType) -> None:
        """Put all leaves into one buffer. Raises AllocationError."""
        sizes = [memory.tensor_bytes(leaf.spec) for leaf in self._leaves]
        buffer, offset = memory.allocate(sum(sizes)), 0
        for leaf, n_bytes in zip(self._leaves, sizes, strict=True):
            leaf.place = Place(buffer, offset)
            offset += n_bytes


def _kv_view(leaves: _Leaves, cache: KVCache, shape: Shape, n_kv: int) -> KVView:
    window = "" if cache.cells.window is None else "_swa"
    segments, first_token = [], 0
    for i, part in enumerate(shape.segments):
        ne = (n_kv, part.n_tokens // part.n_stream, 1, part.n_stream)
        part_name = f".segment_{i}" if len(shape.segments) > 1 else ""
        mask = leaves.add("f16", ne, f"attn_inp_kq_mask{window}{part_name}")
        segments.append(Segment(first_token, part.n_tokens, part.first_stream, part.n_stream, mask))
        first_token += part.n_tokens
    rows = leaves.add("i64", (shape.n_tokens,), f"attn_inp_kv_idxs{window}")
    return KVView(cache.store.k, cache.store.v, rows, n_kv, tuple(segments))


def _recurrent_view(leaves: _Leaves, memory: SequenceMemory, shape: Shape) -> RecurrentView | None:
    if memory.recurrent is None:
        return None
    runs, first_token, first_sequence = [], 0, 0
    for n_tokens, n_seqs in shape.runs:
        runs.append(RecurrentSegment(first_token, n_tokens, first_sequence, n_seqs))
        first_token += n_tokens
        first_sequence += n_seqs
    rows = leaves.add("i32", (first_sequence,), "inp_s_copy")
    rows_out = leaves.add("i32", (first_sequence,), "inp_s_copy_out")
    return RecurrentView(memory.recurrent.states, rows, rows_out, tuple(runs))
