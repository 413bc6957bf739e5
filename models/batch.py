"""What a model's graph takes in: leaves that the engine fills before each run.

Letters in shapes: T tokens of the ubatch, O outputs wanted, N cells in view (n_kv), D size of a
head, Hk K/V heads; for one segment of the ubatch Tg tokens in S streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.tensor import Tensor


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

    `k` and `v` hold one state leaf a layer, [n_embd_gqa, kv_size, n_stream].
    """

    k: Sequence[Tensor]
    v: Sequence[Tensor]
    rows: Tensor  # [T] i64: stream * kv_size + cell, where each token is written
    n_kv: int
    segments: tuple[Segment, ...]

    def store(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the tokens' k [Dk, Hk, T] and v [Dv, Hk, T]: the caches after it, a row a cell.

        Reading what this returns, not the leaves, makes the write come first.
        """
        return self._store(self.k[layer], k), self._store(self.v[layer], v)

    def _store(self, cache: Tensor, x: Tensor) -> Tensor:
        D, Hk, T, _ = x.ne
        n_embd, kv_size, n_stream, _ = cache.ne
        rows = ops.reshape_2d(cache, n_embd, kv_size * n_stream)  # [D*Hk, cells of all streams]
        return ops.set_rows(rows, ops.reshape_2d(x, D * Hk, T), self.rows)

    def heads(self, layer: int, stored: Tensor, segment: Segment, D: int) -> Tensor:
        """The cells that a segment sees, of what `store` returned: [D, N, Hk, S]."""
        kv_size = self.k[layer].ne[1]
        row_bytes = stored.nb[1]
        view = ops.view_4d(
            stored, D, stored.ne[0] // D, self.n_kv, segment.n_stream,
            stored.type.row_bytes(D), row_bytes, row_bytes * kv_size,
            segment.first_stream * row_bytes * kv_size,
        )  # [D, Hk, N, S]  # fmt: skip
        return ops.permute(view, 0, 2, 1, 3)  # [D, N, Hk, S]


@dataclass(frozen=True, slots=True)
class UBatch:
    """One ubatch's inputs: T tokens, segment after segment, stream after stream."""

    tokens: Tensor  # [T] i32
    positions: Tensor  # [T] i32
    out_ids: Tensor  # [O] i32: which tokens' logits are wanted
    kv: KVView
    flash_attn: bool
