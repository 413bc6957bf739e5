"""What a model's graph takes in: leaves that the engine fills before each run.

Letters in shapes: T tokens of the ubatch, O outputs wanted, N cells in view (n_kv), D size of a
head, Hk K/V heads; for one segment of the ubatch Tg tokens in S streams (or of S sequences).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of a ubatch that attend together: as many from each of S streams.

    The streams lie side by side in the cache. Sequences of different lengths, or in streams apart,
    are segments of their own; all other work of the ubatch does not know about them.
    """

    first_token: int
    n_tokens: int
    first_stream: int
    n_stream: int
    mask: Tensor  # [N, Tg/S, 1, S] f16: 0 where a token sees a cell, else -inf


@dataclass(frozen=True, slots=True)
class KVView:
    """The part of a KV cache that one ubatch reads and writes.

    `k` and `v` hold a state leaf for each layer that keeps its K and V here, by layer number:
    [n_embd_gqa, kv_size, n_stream].
    """

    k: Mapping[int, Tensor]
    v: Mapping[int, Tensor]
    rows: Tensor  # [T] i64: stream * kv_size + cell, where each token is written
    n_kv: int
    segments: tuple[Segment, ...]

    def store(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the tokens' k [Dk, Hk, T] and v [Dv, Hk, T]: the caches after it, a row a cell.

        Reading what this returns, not the leaves, makes the write come first.
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
        """The cells that a segment sees, of what `store` returned: [D, N, Hk, S]."""
        kv_size = self.k[layer].ne[1]
        row_bytes = stored.nb[1]
        view = ops.view_4d(
            stored, D, stored.ne[0] // D, self.n_kv, segment.n_stream,
            stored.type.row_bytes(D), row_bytes, row_bytes * kv_size,
            segment.first_stream * row_bytes * kv_size,
        ).named(f"{name}_cells")  # [D, Hk, N, S]  # fmt: skip
        return ops.permute(view, 0, 2, 1, 3).named(name)  # [D, N, Hk, S]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of a ubatch: as many from each of S sequences, one after the other."""

    first_token: int
    n_tokens: int
    first_sequence: int  # place in `RecurrentView.rows`
    n_seqs: int


@dataclass(frozen=True, slots=True)
class RecurrentView:
    """The recurrent state of the sequences in one ubatch.

    `states` holds a state leaf for each recurrent layer, by layer number: [n_embd_r, rows], a row
    all zeros for a sequence that has not begun.
    """

    states: Mapping[int, Tensor]
    rows: Tensor  # [sequences of the ubatch] i32: the row of each one's state
    rows_out: Tensor  # [sequences of the ubatch] i32: the row that its new state is written to
    runs: tuple[Run, ...]

    def load(self, layer: int) -> Tensor:
        """The states of the ubatch's sequences, in order: [n_embd_r, n_seqs]."""
        return ops.get_rows(self.states[layer], self.rows)

    def store(self, layer: int, states: Tensor) -> Tensor:
        """Write the new states [n_embd_r, n_seqs]. The result must be made part of the graph."""
        return ops.set_rows(self.states[layer], states, self.rows_out)


@dataclass(frozen=True, slots=True)
class UBatch:
    """One ubatch's inputs: T tokens, sequence after sequence.

    A layer's K and V are in one of `kvs` (one for full attention, one for sliding windows).
    """

    tokens: Tensor  # [T] i32
    positions: Tensor  # [T] i32
    out_ids: Tensor  # [O] i32: which tokens' logits are wanted
    kvs: tuple[KVView, ...]
    flash_attn: bool
    recurrent: RecurrentView | None = None
    writes: list[Tensor] = field(default_factory=list)  # nodes to run that no output depends on

    def write(self, node: Tensor) -> None:
        """Make a write to a state leaf part of the graph, though nothing reads its result."""
        self.writes.append(node)

    def kv_of(self, layer: int) -> KVView:
        """The cache that holds a layer's K and V."""
        return next(kv for kv in self.kvs if layer in kv.k)
