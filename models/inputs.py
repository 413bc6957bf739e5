"""The inputs of a model's graph: leaves that the runtime fills before each run.

Letters in shapes: T tokens of the ubatch, O outputs, N cells (n_kv), D head size, Hk K/V heads;
for one segment of the ubatch Tg tokens in S streams (or of S sequences).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of a ubatch that attend together: the same number from each of S streams.

    The streams are neighbours in the cache. Sequences with other numbers of tokens, or in streams
    that are not neighbours, form segments of their own. Only attention depends on segments.
    """

    first_token: int
    n_tokens: int
    first_stream: int
    n_stream: int
    mask: Tensor  # [N, Tg/S, 1, S] f16: 0 where a token attends to a cell, else -inf


@dataclass(frozen=True, slots=True)
class KVView:
    """The part of a KV cache that one ubatch reads and writes.

    `k` and `v` map a layer's number to its state leaf, [n_embd_gqa, kv_size, n_stream].
    """

    k: Mapping[int, Tensor]
    v: Mapping[int, Tensor]
    rows: Tensor  # [T] i64: the row that each token is written to, stream * kv_size + cell
    n_kv: int
    segments: tuple[Segment, ...]

    def store(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the tokens' k [Dk, Hk, T] and v [Dv, Hk, T]. Returns the caches, a row a cell.

        Read the returned tensors, not the leaves: that orders the write before the read.
        """
        k_rows = self._store(self.k[layer], k).named("k_stored")
        v_rows = self._store(self.v[layer], v).named("v_stored")
        return k_rows, v_rows

    def _store(self, cache: Tensor, x: Tensor) -> Tensor:
        D, Hk, T, _ = x.ne
        n_embd, kv_size, n_stream, _ = cache.ne
        rows = ops.reshape_2d(cache, n_embd, kv_size * n_stream)  # [D*Hk, cells of all streams]
        return ops.set_rows(rows, ops.reshape_2d(x, D * Hk, T), self.rows)

    def heads(self, layer: int, stored: Tensor, segment: Segment, D: int, name: str) -> Tensor:
        """The segment's cells of a cache that `store` returned: [D, N, Hk, S]."""
        kv_size = self.k[layer].ne[1]
        row_bytes = stored.nb[1]
        view = ops.view_4d(
            stored, D, stored.ne[0] // D, self.n_kv, segment.n_stream,
            stored.type.row_bytes(D), row_bytes, row_bytes * kv_size,
            segment.first_stream * row_bytes * kv_size,
        ).named(f"{name}_cells")  # [D, Hk, N, S]  # fmt: skip
        return ops.permute(view, 0, 2, 1, 3).named(name)  # [D, N, Hk, S]


@dataclass(frozen=True, slots=True)
class RecurrentSegment:
    """Consecutive tokens of a ubatch: the same number from each of S sequences, in order."""

    first_token: int
    n_tokens: int
    first_sequence: int  # index into `RecurrentView.rows`
    n_seqs: int


@dataclass(frozen=True, slots=True)
class RecurrentView:
    """The recurrent state of the sequences in one ubatch.

    `states` maps a recurrent layer's number to its state leaf, [n_embd_r, rows]. The state of an
    empty sequence is zero.
    """

    states: Mapping[int, Tensor]
    rows: Tensor  # [n_seqs] i32: the row of each sequence's state
    rows_out: Tensor  # [n_seqs] i32: the row that its new state is written to
    segments: tuple[RecurrentSegment, ...]

    def load(self, layer: int) -> Tensor:
        """The states of the ubatch's sequences, in order: [n_embd_r, n_seqs]."""
        return ops.get_rows(self.states[layer], self.rows)

    def store(self, layer: int, states: Tensor) -> Tensor:
        """Write the new states [n_embd_r, n_seqs]. Pass the result to `GraphInputs.write`."""
        return ops.set_rows(self.states[layer], states, self.rows_out)


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """The inputs of one ubatch: T tokens, sequence after sequence.

    `kvs` has a cache for full attention and one for each size of sliding window.
    """

    tokens: Tensor  # [T] i32
    positions: Tensor  # [T] i32
    out_ids: Tensor  # [O] i32: the tokens whose logits are output
    kvs: tuple[KVView, ...]
    flash_attn: bool
    recurrent: RecurrentView | None = None
    writes: list[Tensor] = field(default_factory=list)  # nodes that no output depends on

    def write(self, node: Tensor) -> None:
        """Add a write to a state leaf to the graph, although no node reads its result."""
        self.writes.append(node)

    def kv_of(self, layer: int) -> KVView:
        """The cache that holds a layer's K and V."""
        return next(kv for kv in self.kvs if layer in kv.k)
