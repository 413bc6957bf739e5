"""What a model's graph takes in: leaves that the engine fills before each run.

Letters in shapes: T tokens of the ubatch, O outputs wanted, S streams, N cells in view (n_kv),
Dk, Dv head sizes, H heads, Hk K/V heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.tensor import Tensor


@dataclass(frozen=True, slots=True)
class KVView:
    """The part of a KV cache that one ubatch reads and writes: S consecutive streams, N cells each.

    `k` and `v` hold one state leaf a layer, [n_embd_gqa, kv_size, n_stream].
    """

    k: Sequence[Tensor]
    v: Sequence[Tensor]
    rows: Tensor  # [T] i64: stream * kv_size + cell, where each token is written
    mask: Tensor  # [N, T/S, 1, S] f16: 0 where a token sees a cell, else -inf
    n_kv: int
    first_stream: int
    n_stream: int

    def store(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the tokens' k [Dk, Hk, T] and v [Dv, Hk, T]; the cells in view, written ones too.

        Returns k [Dk, N, Hk, S] and v [Dv, N, Hk, S].
        """
        return self._store(self.k[layer], k), self._store(self.v[layer], v)

    def _store(self, cache: Tensor, x: Tensor) -> Tensor:
        D, Hk, T, _ = x.ne
        n_embd, kv_size, n_stream, _ = cache.ne
        rows = ops.reshape_2d(cache, n_embd, kv_size * n_stream)  # [D*Hk, cells of all streams]
        written = ops.set_rows(rows, ops.reshape_2d(x, D * Hk, T), self.rows)
        head_bytes = cache.type.row_bytes(D)
        row_bytes = cache.nb[1]
        view = ops.view_4d(
            written, D, Hk, self.n_kv, self.n_stream,
            head_bytes, row_bytes, row_bytes * kv_size, self.first_stream * row_bytes * kv_size,
        )  # [D, Hk, N, S]  # fmt: skip
        return ops.permute(view, 0, 2, 1, 3)  # [D, N, Hk, S]


@dataclass(frozen=True, slots=True)
class UBatch:
    """One ubatch's inputs. Tokens are in stream-major order: T/S of each stream."""

    tokens: Tensor  # [T] i32
    positions: Tensor  # [T] i32
    out_ids: Tensor  # [O] i32: which tokens' logits are wanted
    kv: KVView
    flash_attn: bool
