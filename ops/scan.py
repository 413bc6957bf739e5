"""The selective scan of Mamba: a state that decays, takes in, and is read, token by token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32, I32
from ggmlpy.ops import activations
from ggmlpy.ops.rows import check_ids
from ggmlpy.ops.spans import Scan


def require_snapshots(K: int) -> None:
    require(1 <= K < 1 << 31, f"K is {K}: it must be 1 to {(1 << 31) - 1}, the kept states")


@op("ssm_scan")
@dataclass(frozen=True, slots=True)
class SsmScan(Scan):
    """The selective scan: for each sequence, head h and row r of the head's state

        d            = softplus(dt[h, t])
        state[:, r] *= exp(d * A[:, h])
        state[:, r] += d * x[r, h, t] * B[:, h // (H / G), t]
        y[r, h, t]   = sum_i state[i, r] * C[i, h // (H / G), t]         after every token t

    s [N, D, H, M] states, of which ids [S] i32 selects the first of each sequence (ids may repeat);
    x [D, H, T, S], dt [H, T, S], A [N, H] (Mamba-1) or [1, H] (Mamba-2: a decay for each head),
    B and C [N, G, T, S], all f32  ->  f32, one row: y [D, H, T, S], then K copies of the states
    [N, D, H, S], copy j as it was j tokens before the last; copies of before the first token are 0.

    With spans (see ops/spans.py) S is 1 but for ids and states, and sequences have any numbers of
    tokens. Raises ShapeError for other shapes and types, unless rows are contiguous, and unless G
    divides H; IndexOutOfRange when run with an id outside 0 to M - 1.
    Source: Gu & Dao, "Mamba", 2023; Dao & Gu, "Transformers are SSMs", 2024.
    """

    K: int = 1
    room: int | None = None

    token_axes: ClassVar[Mapping[int, int]] = {1: 1, 2: 2, 4: 1, 5: 1}
    state_axes: ClassVar[Mapping[int, int]] = {6: 3}
    values: ClassVar[int] = 1

    def infer(
        self, s: Spec, x: Spec, dt: Spec, A: Spec, B: Spec, C: Spec, ids: Spec,
        spans: Spec | None = None,
    ) -> Spec:  # fmt: skip
        require_snapshots(self.K)
        for spec in (s, x, dt, A, B, C):
            require(spec.type is F32, "all sources but ids must be f32")
        for spec in (s, x, dt, A, B, C, ids):
            require(spec.rows_contiguous, "all sources must have contiguous rows")
        n_state, size, n_head, _ = s.ne
        _, _, n_tokens, n_seqs = x.ne
        require(x.ne[:2] == (size, n_head), f"x must be [{size}, {n_head}, n_tokens, n_seqs]")
        require(
            dt.ne == (n_head, n_tokens, n_seqs, 1),
            f"dt must be [{n_head}, {n_tokens}, {n_seqs}], one for each head and token",
        )
        require(
            A.ne[0] in (1, n_state) and A.ne[1:] == (n_head, 1, 1),
            f"A must be [{n_state}, {n_head}] or [1, {n_head}]",
        )
        n_group = B.ne[1]
        require(B.ne == C.ne, "B and C must have the same shape")
        require(
            B.ne == (n_state, n_group, n_tokens, n_seqs),
            f"B must be [{n_state}, n_group, {n_tokens}, {n_seqs}]",
        )
        require(
            n_head % n_group == 0,
            f"the {n_head} heads must be a multiple of the {n_group} groups of B and C",
        )
        if spans is not None:
            require(n_seqs == 1, f"x has {n_seqs} sequences: with spans it must have at most 3"
                    " dimensions")  # fmt: skip
            n_seqs = ids.ne[0]
            self.check_spans(spans, n_tokens, n_seqs)
        require(
            ids.type is I32 and ids.ne == (n_seqs, 1, 1, 1),
            f"ids must be i32 [{n_seqs}], one for each sequence",
        )
        n_kept = n_seqs * (n_state * size * n_head * self.K)
        if spans is not None:
            return Spec((n_kept + size * n_head * (self.room or 0),), F32)
        return Spec((size * n_head * n_tokens * n_seqs + n_kept,), F32)

    def reference(self, *sources: Array) -> Array:
        if self.room is not None:
            return self.by_spans(sources, lambda op, parts: op.reference(*parts))[None, None, None]
        s, x, dt, A, B, C, ids = sources
        check_ids(self.name, ids, len(s), "states")
        x, B, C = (t.astype(np.float64) for t in (x, B, C))
        per_group = x.shape[2] // B.shape[2]
        B, C = (np.repeat(t, per_group, axis=2) for t in (B, C))  # [S, T, H, N]
        d = activations.softplus(dt[0].astype(np.float64))  # [S, T, H]
        decay = np.exp(d[..., None] * A[0, 0].astype(np.float64))  # [S, T, H, N or 1]
        state = s.astype(np.float64)[ids[0, 0, 0]]  # [S, H, D, N]
        n_tokens = x.shape[1]
        y = np.empty_like(x)
        kept = np.zeros((self.K, *state.shape))
        for t in range(n_tokens):
            taken = (d[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None, :]
            state = state * decay[:, t, :, None, :] + taken
            y[:, t] = np.einsum("shdn,shn->shd", state, C[:, t])
            if n_tokens - 1 - t < self.K:
                kept[n_tokens - 1 - t] = state
        return np.concatenate([y.reshape(-1), kept.reshape(-1)])[None, None, None]


@checked
def ssm_scan(
    s: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, ids: Tensor, K: int = 1, *,
    spans: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`ggml_ssm_scan`; see SsmScan, also for `spans`."""
    if spans is None:
        return SsmScan(K).node(s, x, dt, A, B, C, ids)
    return SsmScan(K, int(x.ne[2])).node(s, x, dt, A, B, C, ids, spans)
