"""The inputs of a model's graph: declared for a shape, filled for a ubatch, advanced step by step.

All leaves but the lists of cells, which belong to the memory, lie in one host buffer, so that one
copy brings them to a device. Arrays are as long as the shape allows; a run uses the first entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.buffer import HOST, BufferType, Place
from ggmlpy.graph.count import Count, Symbol
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor, zeros
from ggmlpy.graph.types import type_of
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.cell_table import Index
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.slots import SlotInfo
from ggmlpy.memory.spans import Positions
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.models.inputs import Gathered, GraphInputs, KVView, RecurrentView
from ggmlpy.runtime.gathered import GatheredInputs
from ggmlpy.runtime.lora import AdapterInputs, TokenAdapter, declare_adapter
from ggmlpy.runtime.shape import Shape, Streams


class CacheInputs:
    """The inputs for one KV cache: the rows that tokens are written to, and what each sees."""

    def __init__(self, cache: KVCache, view: KVView) -> None:
        assert view.rows is not None
        self.cache = cache
        self._rows: NDArray[np.int64] = view.rows.array().reshape(-1)  # [tokens]
        self._seen: NDArray[np.int32] = view.seen.array().reshape(-1, 3)  # [tokens, 3]
        self._groups = [GatheredInputs(part) for part in view.gathered]
        self._bias: NDArray[np.float16] | None = None  # [tokens, entries]
        if view.bias is not None:
            self._bias = view.bias.array().reshape(-1, view.bias.ne[0])

    def fill(self, ubatch: UBatch, cells: Index, positions: Positions) -> None:
        """Set the rows of a ubatch's tokens, and the cells that each of them sees."""
        n, table = len(positions), self.cache.cells
        self._rows[:n] = table.rows_at(ubatch.seqs, cells)
        table.lists.seen(ubatch, positions, self._seen[:n])
        if self._bias is not None:
            for row, (seq, first, n_seen), position in zip(
                self._bias, self._seen[:n].tolist(), positions.tolist(), strict=False
            ):
                held = table.lists.positions_of(seq)[first : first + n_seen]
                row[:n_seen] = -np.abs(held - position)
        first = 0
        for group in self._groups:
            at = slice(first, first + group.n_tokens)
            group.fill(first, self._seen[at], positions[at], table)
            first += group.n_tokens

    @property
    def is_gathered(self) -> bool:
        """Whether cells are gathered, for attention in separate ops."""
        return bool(self._groups)

    def advance(self, n_tokens: int, n_cells: int) -> None:
        """Move each token `n_cells` on, in a cache without a window: it sees one cell more."""
        self._rows[:n_tokens] += n_cells
        self._seen[:n_tokens, 2] += 1


class SourceInputs:
    """The inputs for attention to what an encoder has stored: each token sees all of its source."""

    def __init__(self, cache: KVCache, view: KVView) -> None:
        self._cells = cache.cells
        self._seen: NDArray[np.int32] = view.seen.array().reshape(-1, 3)  # [tokens, 3]
        self._groups = [GatheredInputs(part) for part in view.gathered]

    def fill(self, ubatch: UBatch, positions: Positions) -> None:
        """Set the cells that each of a ubatch's tokens sees."""
        seen = self._seen[: len(positions)]
        n = [len(self._cells.lists.rows_of(seq)) for seq in ubatch.run_seqs.tolist()]
        seen[:, 0] = ubatch.seqs
        seen[:, 1] = 0
        seen[:, 2] = np.repeat(n, ubatch.run_lengths)
        first = 0
        for group in self._groups:
            at = slice(first, first + group.n_tokens)
            group.fill(first, seen[at], positions[at], self._cells)
            first += group.n_tokens


class RecurrentInputs:
    """The inputs for recurrent layers: the rows of states, and the columns that tokens take."""

    def __init__(self, memory: SequenceMemory, view: RecurrentView) -> None:
        assert memory.recurrent is not None
        self._recurrent = memory.recurrent
        self._rows: NDArray[np.int32] = view.rows.array().reshape(-1)
        self._rows_out: NDArray[np.int32] = view.rows_out.array().reshape(-1)
        self._spans: NDArray[np.int32] = view.spans.array().reshape(-1, 2)
        self._n_old = memory.recurrent.n_taps - 1  # columns of a state
        self._taps: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None
        if view.taps is not None and view.taps_out is not None:
            self._taps = view.taps.array().reshape(-1), view.taps_out.array().reshape(-1)

    def fill(self, ubatch: UBatch) -> None:
        """Set all inputs for a ubatch."""
        self.fill_rows(ubatch)
        n_seqs, lengths = len(ubatch.run_seqs), ubatch.run_lengths
        self._spans[:n_seqs, 0] = ubatch.run_ends + 1 - lengths
        self._spans[:n_seqs, 1] = lengths
        if self._taps is not None:
            self._fill_taps(ubatch, *self._taps)

    def _fill_taps(
        self, ubatch: UBatch, taps_in: NDArray[np.int32], taps_out: NDArray[np.int32]
    ) -> None:
        n_old, n_seqs, n_tokens = self._n_old, len(ubatch.run_seqs), len(ubatch.index)
        new = n_old * n_seqs + np.arange(n_tokens)  # the column of each token
        runs = np.repeat(np.arange(n_seqs), ubatch.run_lengths)
        back = np.arange(n_old, -1, -1)  # of each tap: how many tokens it lies before
        taps = _columns(new[:, None], ubatch.steps[:, None], back, runs[:, None], n_old)
        taps_in[: taps.size] = taps.reshape(-1)
        last, steps = new[ubatch.run_ends, None], ubatch.run_lengths[:, None] - 1
        taps = _columns(last, steps, back[1:], np.arange(n_seqs)[:, None], n_old)
        taps_out[: taps.size] = taps.reshape(-1)

    def fill_rows(self, ubatch: UBatch) -> None:
        """Set the rows of the states of a ubatch's sequences: those to read, those to write."""
        read, written = self._recurrent.rows(ubatch.run_seqs.tolist())
        self._rows[: len(read)] = read
        self._rows_out[: len(read)] = written


def _columns(new: Index, steps: Index, back: Index, runs: Index, n_old: int) -> Index:
    """The column `back` tokens before one at column `new`, the `steps`-th of its run.

    Before the run's first token come the columns of its state.
    """
    return np.where(steps >= back, new - back, runs * n_old + n_old + steps - back)


class StepInputs:
    """The input leaves of one graph, as arrays that are filled before each step.

    `counts` are the numbers of the step, for the symbols of the graph.
    """

    def __init__(
        self,
        shape: Shape,
        memory: SequenceMemory,
        buffer_type: BufferType = HOST,
        n_pos_per_embd: int = 1,
    ) -> None:
        self.shape = shape
        self._n_pos_per_embd = n_pos_per_embd
        self.leaves, self._own = declare(shape, memory, buffer_type, n_pos_per_embd)
        self.counts: dict[Symbol, int] = {}
        self._numbers = (shape.n_tokens, shape.n_outputs, shape.n_seqs)  # of the step
        self._tokens: NDArray[np.int32] = self.leaves.tokens.array().reshape(-1)
        self._positions: NDArray[np.int32] = self.leaves.positions.array().reshape(-1)
        self._positions4: NDArray[np.int32] | None = None
        if self.leaves.positions4 is not None:
            self._positions4 = self.leaves.positions4.array().reshape(-1)
        self._out_ids: NDArray[np.int32] = self.leaves.out_ids.array().reshape(-1)
        self.caches = [
            CacheInputs(cache, view)
            for cache, view in zip(memory.caches, self.leaves.kvs, strict=True)
        ]
        self._source: SourceInputs | None = None
        if memory.source is not None and self.leaves.source is not None:
            self._source = SourceInputs(memory.source.caches[0], self.leaves.source)
        self.recurrent = None
        if self.leaves.recurrent is not None:
            self.recurrent = RecurrentInputs(memory, self.leaves.recurrent)
        T, n_outputs, R = shape.extents
        extents = (T, n_outputs) if self.recurrent is None else (T, n_outputs, R)
        self._adapters = AdapterInputs(self.leaves.lora)
        extents = (*extents, *self._adapters.extents)
        symbols = (s for n in extents if isinstance(n, Count) for s in n.terms)
        self._symbols = list(dict.fromkeys(symbols))

    def fill(
        self,
        batch: Batch,
        slot_info: SlotInfo,
        outputs: Sequence[int],
        lora: Sequence[TokenAdapter] = (),
    ) -> None:
        """Set all inputs for a ubatch of the batch. Tokens `outputs` of the ubatch are output."""
        ubatch, positions = slot_info.ubatch, slot_info.positions
        n, n_outputs = len(positions), max(1, len(outputs))
        self._tokens[:n] = [batch.tokens[i] for i in ubatch.indices]
        self._set_positions(positions)
        self._out_ids[:n_outputs] = outputs if outputs else 0  # one at least, which is not read
        for part, cells in zip(self.caches, slot_info.cells, strict=True):
            part.fill(ubatch, cells, positions)
        if self._source is not None:
            self._source.fill(ubatch, positions)
        if self.recurrent is not None:
            self.recurrent.fill(ubatch)
        self._numbers = (n, n_outputs, len(ubatch.runs))
        by_name = dict(zip("TOR", self._numbers, strict=True))
        by_name |= self._adapters.fill(lora)
        self.counts = {symbol: by_name[symbol.name] for symbol in self._symbols}

    def set_symbols(self, symbols: Sequence[Symbol]) -> None:
        """Leave out of `counts` what the graph does not depend on: the tokens of an adapter that
        changes the output alone, or the outputs of one that changes none."""
        self._symbols = [symbol for symbol in self._symbols if symbol in symbols]

    def _set_positions(self, positions: Positions) -> None:
        n = len(positions)
        self._positions[:n] = positions
        if self._positions4 is not None:  # that of a token in time, height and width; 0
            self._positions4[: 3 * n].reshape(3, n)[:] = positions
            self._positions4[3 * n : 4 * n] = 0

    def snapshot(self, memory: SequenceMemory, buffer_type: BufferType = HOST) -> GraphInputs:
        """Leaves of their own with what the inputs of this step hold, in its exact lengths."""
        n_tokens, n_outputs, n_seqs = self._numbers
        adapted = zip(self.shape.lora, self._adapters.numbers, strict=True)
        exact = replace(
            self.shape,
            n_tokens=n_tokens,
            n_outputs=n_outputs,
            n_seqs=n_seqs,
            is_exact=True,
            lora=tuple(part.exact(*numbers) for part, numbers in adapted),
        )
        leaves, own = declare(exact, memory, buffer_type, self._n_pos_per_embd)
        for leaf, source in zip(own, self._own, strict=True):
            values = leaf.array().reshape(-1)  # what varies is the last dimension
            values[:] = source.array().reshape(-1)[: values.size]
        read = leaves.source
        return replace(
            leaves,
            kvs=tuple(replace(kv, cells=_copy(kv.cells)) for kv in leaves.kvs),
            source=None if read is None else replace(read, cells=_copy(read.cells)),
        )

    def advance(self, tokens: Sequence[int]) -> Positions:
        """Set new tokens, each at the position after that of the token it replaces.

        Returns the positions.
        """
        n = len(tokens)
        self._tokens[:n] = tokens
        positions = self._positions[:n]
        positions += 1
        if self._positions4 is not None:
            self._positions4[: 3 * n] += 1
        return positions


def declare(
    shape: Shape,
    memory: SequenceMemory,
    buffer_type: BufferType = HOST,
    n_pos_per_embd: int = 1,
) -> tuple[GraphInputs, list[Tensor]]:
    """Input leaves for ubatches of this shape, and a list of those that lie in one buffer.

    A token has `n_pos_per_embd` positions: 1, or 4 with M-RoPE. Raises AllocationError.
    """
    leaves = _Leaves()
    T, n_outputs, R = shape.extents
    inputs = GraphInputs(
        tokens=leaves.add("i32", (T,), "inp_tokens"),
        positions=leaves.add("i32", (T,), "inp_pos"),
        out_ids=leaves.add("i32", (n_outputs,), "inp_out_ids"),
        kvs=tuple(
            _kv_view(leaves, i, cache, shape, cache.suffix) for i, cache in enumerate(memory.caches)
        ),
        source=_source_view(leaves, memory, shape),
        recurrent=_recurrent_view(leaves, memory, T, R),
        positions4=leaves.add("i32", (4 * T,), "inp_pos4") if n_pos_per_embd == 4 else None,
        n_ctx_seq=memory.sizes.n_ctx_seq,
        lora=tuple(
            declare_adapter(leaves.add, i, part, (T, n_outputs), shape.is_exact)
            for i, part in enumerate(shape.lora)
        ),
    )
    leaves.allocate(buffer_type)
    return inputs, leaves.all


def _copy(leaf: Tensor) -> Tensor:
    copied = zeros(leaf.type, leaf.ne, name=leaf.name, flags=leaf.flags)
    copied.array()[:] = leaf.array()
    return copied


class _Leaves:
    """Input leaves, which are allocated together."""

    def __init__(self) -> None:
        self.all: list[Tensor] = []

    def add(self, type: str, ne: Sequence[int], name: str) -> Tensor:
        leaf = Tensor(Spec(ne, type_of(type)), name=name, flags=Flag.INPUT)
        self.all.append(leaf)
        return leaf

    def allocate(self, memory: BufferType) -> None:
        """Put all leaves into one buffer. Raises AllocationError."""
        sizes = [memory.tensor_bytes(leaf.spec) for leaf in self.all]
        buffer, offset = memory.allocate(sum(sizes)), 0
        for leaf, n_bytes in zip(self.all, sizes, strict=True):
            leaf.place = Place(buffer, offset)
            offset += n_bytes


def _source_view(leaves: _Leaves, memory: SequenceMemory, shape: Shape) -> KVView | None:
    if memory.source is None:
        return None
    cache = memory.source.caches[0]
    return _kv_view(leaves, len(memory.caches), cache, shape, "_cross", reads_only=True)


def _kv_view(
    leaves: _Leaves,
    i: int,
    cache: KVCache,
    shape: Shape,
    suffix: str,
    *,
    reads_only: bool = False,
) -> KVView:
    """The view of a cache, the i-th in the groups of a shape."""
    T, _, R = shape.extents
    n_stream = {Streams.ONE: 1, Streams.SEQUENCES: R, Streams.TOKENS: T}[shape.streams]
    n_each = 1 if shape.streams is Streams.TOKENS else T // n_stream
    gathered = []
    for j, group in enumerate(shape.groups):
        part = f"{suffix}.group_{j}" if len(shape.groups) > 1 else suffix
        N, n, R = group.n_kv[i], group.n_each, group.n_seqs
        if not N:
            break
        gathered.append(
            Gathered(
                leaves.add("i32", (N * R,), f"attn_inp_gathered{part}"),
                leaves.add("f16", (N, n, 1, R), f"attn_inp_kq_mask{part}"),
                leaves.add("i32", (n * R,), f"attn_inp_tokens{part}"),
                leaves.add("i32", (N * n * R,), f"pos_bucket{part}")
                if cache.cells.buckets is not None and not reads_only
                else None,
            )
        )
    return KVView(
        cache.store.k,
        cache.store.v,
        None if reads_only else leaves.add("i64", (T,), f"attn_inp_kv_idxs{suffix}"),
        cache.cells.lists.leaf,
        leaves.add("i32", (3, n_each, n_stream), f"attn_inp_seen{suffix}"),
        tuple(gathered),
        leaves.add("f16", (cache.cells.kv_size, n_each, 1, n_stream), f"attn_inp_bias{suffix}")
        if cache.cells.needs_positions and not gathered
        else None,
        cache.store.matrices,
    )


def _recurrent_view(
    leaves: _Leaves, memory: SequenceMemory, T: int, R: int
) -> RecurrentView | None:
    if memory.recurrent is None:
        return None
    K = memory.recurrent.n_taps
    return RecurrentView(
        memory.recurrent.states,
        leaves.add("i32", (R,), "inp_s_copy"),
        leaves.add("i32", (R,), "inp_s_copy_out"),
        leaves.add("i32", (2, R), "inp_spans"),
        leaves.add("i32", (K, T), "inp_taps") if K > 1 else None,
        leaves.add("i32", (R * (K - 1),), "inp_taps_out") if K > 1 else None,
    )
