"""Linear attention whose state is a matrix for each head: RWKV's, and the gated delta rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32
from ggmlpy.ops.scan import require_snapshots
from ggmlpy.ops.spans import Scan


def infer_wkv(op: Scan, spans: Spec | None, state: Spec, first: Spec, *others: Spec) -> Spec:
    """The result's shape from sources [D, H, T] and the state [D * D * H, S]."""
    for spec in (first, *others, state):
        require(spec.type is F32 and spec.contiguous, "all sources must be f32 and contiguous")
    size, n_head, n_tokens, rest = first.ne
    require(rest == 1, "sources must have at most 3 dimensions")
    for spec in others:
        require(spec.ne == first.ne, "all sources of a token must have the same shape")
    n_seq = state.ne[1]
    length = size * size * n_head
    require(state.ne == (length, n_seq, 1, 1), f"state must be [{length}, n_seq]")
    if spans is not None:
        op.check_spans(spans, n_tokens, n_seq)
        return Spec((size * n_head, size * n_seq + (op.room or 0)), F32)
    require(
        n_tokens % n_seq == 0,
        f"the {n_tokens} tokens must be a multiple of the {n_seq} sequences",
    )
    return Spec((size * n_head, n_tokens + size * n_seq), F32)


@op("rwkv_wkv6")
@dataclass(frozen=True, slots=True)
class RwkvWkv6(Scan):
    """The time mixing of RWKV-6, for each head and sequence.

        y[j]        = sum_i r[i] * (state[i, j] + tf[i] * k[i] * v[j])
        state[i, j] = state[i, j] * td[i] + k[i] * v[j]                   after every token

    k, v, r, td [D, H, T], tf [D, H], state [D * D * H, S] (within a head: j fastest, then i), all
    f32; the T tokens are S sequences of T / S one after another  ->  y [D * H, T + D * S]: first
    the outputs, then the new states. With spans (see ops/spans.py) sequences have any numbers of
    tokens. Raises ShapeError for other shapes and types, and unless all sources are contiguous.
    Source: Peng et al., "Eagle and Finch", 2024.
    """

    room: int | None = None

    token_axes: ClassVar[Mapping[int, int]] = {0: 1, 1: 1, 2: 1, 4: 1}
    state_axes: ClassVar[Mapping[int, int]] = {5: 2}
    values: ClassVar[int] = 1

    def infer(
        self, k: Spec, v: Spec, r: Spec, tf: Spec, td: Spec, state: Spec, spans: Spec | None = None
    ) -> Spec:
        result = infer_wkv(self, spans, state, k, v, r, td)
        size, n_head = k.ne[:2]
        require(tf.type is F32 and tf.contiguous, "all sources must be f32 and contiguous")
        require(
            tf.ne in ((size, n_head, 1, 1), (size * n_head, 1, 1, 1)),
            f"tf must be [{size}, {n_head}]",
        )
        return result

    def reference(self, *sources: Array) -> Array:
        if self.room is not None:
            flat = self.by_spans(sources, lambda op, parts: op.reference(*parts))
            return flat.reshape(1, 1, -1, sources[0].shape[2] * sources[0].shape[3])
        k, v, r, tf, td, state = sources
        k, v, r, td = (t[0].astype(np.float64) for t in (k, v, r, td))  # [T, H, D]
        n_tokens, n_head, size = k.shape
        bonus = tf.astype(np.float64).reshape(n_head, size, 1)
        n_seq = state.shape[2]
        states = state.astype(np.float64).reshape(n_seq, n_head, size, size)  # [S, H, i, j]
        outputs = np.empty((n_tokens, n_head, size))
        for t in range(n_tokens):
            s = t // (n_tokens // n_seq)
            kv = k[t][:, :, None] * v[t][:, None, :]
            outputs[t] = np.einsum("hij,hi->hj", states[s] + bonus * kv, r[t])
            states[s] = states[s] * td[t][:, :, None] + kv
        flat = np.concatenate([outputs.reshape(-1), states.reshape(-1)])
        return flat.reshape(1, 1, -1, size * n_head)


@op("rwkv_wkv7")
@dataclass(frozen=True, slots=True)
class RwkvWkv7(Scan):
    """The time mixing of RWKV-7, for each head and sequence.

        sa[i]       = sum_j state[i, j] * a[j]
        state[i, j] = state[i, j] * w[j] + v[i] * k[j] + sa[i] * b[j]
        y[i]        = sum_j state[i, j] * r[j]                            after every token

    r, w, k, v, a, b [D, H, T], state [D * D * H, S] (within a head: j fastest, then i), all f32;
    the T tokens are S sequences of T / S one after another  ->  y [D * H, T + D * S]: first the
    outputs, then the new states. With spans (see ops/spans.py) sequences have any numbers of
    tokens. Raises ShapeError for other shapes and types, and unless all sources are contiguous.
    Source: Peng et al., "RWKV-7 Goose", 2025.
    """

    room: int | None = None

    token_axes: ClassVar[Mapping[int, int]] = dict.fromkeys(range(6), 1)
    state_axes: ClassVar[Mapping[int, int]] = {6: 2}
    values: ClassVar[int] = 3

    def infer(
        self, r: Spec, w: Spec, k: Spec, v: Spec, a: Spec, b: Spec, state: Spec,
        spans: Spec | None = None,
    ) -> Spec:  # fmt: skip
        return infer_wkv(self, spans, state, r, w, k, v, a, b)

    def reference(self, *sources: Array) -> Array:
        if self.room is not None:
            flat = self.by_spans(sources, lambda op, parts: op.reference(*parts))
            return flat.reshape(1, 1, -1, sources[0].shape[2] * sources[0].shape[3])
        r, w, k, v, a, b, state = sources
        r, w, k, v, a, b = (t[0].astype(np.float64) for t in (r, w, k, v, a, b))  # [T, H, D]
        n_tokens, n_head, size = r.shape
        n_seq = state.shape[2]
        states = state.astype(np.float64).reshape(n_seq, n_head, size, size)  # [S, H, i, j]
        outputs = np.empty((n_tokens, n_head, size))
        for t in range(n_tokens):
            s = t // (n_tokens // n_seq)
            sa = np.einsum("hij,hj->hi", states[s], a[t])
            taken = v[t][:, :, None] * k[t][:, None, :] + sa[:, :, None] * b[t][:, None, :]
            states[s] = states[s] * w[t][:, None, :] + taken
            outputs[t] = np.einsum("hij,hj->hi", states[s], r[t])
        flat = np.concatenate([outputs.reshape(-1), states.reshape(-1)])
        return flat.reshape(1, 1, -1, size * n_head)


@op("gated_delta_net")
@dataclass(frozen=True, slots=True)
class GatedDeltaNet(Scan):
    """The gated delta rule, for each head h and sequence; i along the key, j along the value.

        state[i, j] *= exp(g[h])            or exp(g[i, h]), a gate for each element of the key
        delta[j]     = beta[h] * (v[j] - sum_i state[i, j] * k[i])
        state[i, j] += k[i] * delta[j]
        y[j]         = sum_i state[i, j] * q[i] / sqrt(D)                 after every token

    q, k [D, Hk, T, Sk], v [D, H, T, S], g [1 or D, H, T, S], beta [1, H, T, S], state [D, D, H, S]
    (i fastest), all f32  ->  [D * H, T * S + K * D * S]: the outputs [D, H, T, S], then K copies of
    the states [D, D, H, S], copy m as it was m tokens before the last; copies of before the first
    token are 0. Head h of v has head h % Hk of q and k, sequence s of v sequence s // (S / Sk).

    With spans (see ops/spans.py) S is 1 but for the states, and sequences have any numbers of
    tokens. Raises ShapeError for other shapes and types, unless rows of q, k and v are contiguous,
    g, beta and state contiguous, and unless H is a multiple of q's and k's heads, S of their
    sequences. Source: Yang et al., "Gated Delta Networks", 2024; the gate for each element: Kimi
    Team, "Kimi Linear", 2025.
    """

    K: int = 1
    room: int | None = None

    token_axes: ClassVar[Mapping[int, int]] = dict.fromkeys(range(5), 1)
    state_axes: ClassVar[Mapping[int, int]] = {5: 0}
    values: ClassVar[int] = 2

    def infer(
        self, q: Spec, k: Spec, v: Spec, g: Spec, beta: Spec, state: Spec, spans: Spec | None = None
    ) -> Spec:
        require_snapshots(self.K)
        for spec in (q, k, v, g, beta, state):
            require(spec.type is F32, "all sources must be f32")
        require(
            q.rows_contiguous and k.rows_contiguous and v.rows_contiguous,
            "q, k and v must have contiguous rows",
        )
        require(
            g.contiguous and beta.contiguous and state.contiguous,
            "g, beta and state must be contiguous",
        )
        size, n_head, n_tokens, n_seqs = v.ne
        for name, spec in (("q", q), ("k", k)):
            require(
                spec.ne[0] == size and spec.ne[2] == n_tokens,
                f"{name} must be [{size}, n_head, {n_tokens}, n_seqs]",
            )
            require(
                n_head % spec.ne[1] == 0 and n_seqs % spec.ne[3] == 0,
                f"heads and sequences of {name}, {spec.ne[1]} and {spec.ne[3]}, must divide v's",
            )
        require(
            g.ne[0] in (1, size) and g.ne[1:] == v.ne[1:],
            f"g must be v's shape with dimension 0 of 1 or {size}",
        )
        require(beta.ne == (1, *v.ne[1:]), "beta must be v's shape with dimension 0 of 1")
        if spans is not None:
            require(n_seqs == 1, f"v has {n_seqs} sequences: with spans it must have at most 3"
                    " dimensions")  # fmt: skip
            n_seqs = state.ne[3]
            self.check_spans(spans, n_tokens, n_seqs)
        require(
            state.ne == (size, size, n_head, n_seqs),
            f"state must be [{size}, {size}, {n_head}, {n_seqs}]",
        )
        if spans is not None:
            return Spec((size * n_head, self.K * size * n_seqs + (self.room or 0)), F32)
        return Spec((size * n_head, n_tokens * n_seqs + self.K * size * n_seqs), F32)

    def reference(self, *sources: Array) -> Array:
        if self.room is not None:
            flat = self.by_spans(sources, lambda op, parts: op.reference(*parts))
            return flat.reshape(1, 1, -1, sources[2].shape[2] * sources[2].shape[3])
        q, k, v, g, beta, state = sources
        q, k, v, g, beta = (t.astype(np.float64) for t in (q, k, v, g, beta))  # [S, T, H, D]
        n_seqs, n_tokens, n_head, size = v.shape
        q, k = (
            np.tile(np.repeat(t, n_seqs // len(t), axis=0), (1, 1, n_head // t.shape[2], 1))
            for t in (q, k)
        )
        states = state.astype(np.float64)  # [S, H, j, i]
        outputs = np.empty(v.shape)
        kept = np.zeros((self.K, *states.shape))
        for t in range(n_tokens):
            states = states * np.exp(g[:, t, :, None, :])
            delta = beta[:, t] * (v[:, t] - np.einsum("shji,shi->shj", states, k[:, t]))
            states = states + delta[..., None] * k[:, t, :, None, :]
            outputs[:, t] = np.einsum("shji,shi->shj", states, q[:, t]) / np.sqrt(size)
            if n_tokens - 1 - t < self.K:
                kept[n_tokens - 1 - t] = states
        flat = np.concatenate([outputs.reshape(-1), kept.reshape(-1)])
        return flat.reshape(1, 1, -1, size * n_head)


@checked
def rwkv_wkv6(
    k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor, *,
    spans: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`ggml_rwkv_wkv6`; see RwkvWkv6, also for `spans`."""
    if spans is None:
        return RwkvWkv6().node(k, v, r, tf, td, state)
    return RwkvWkv6(int(k.ne[2])).node(k, v, r, tf, td, state, spans)


@checked
def rwkv_wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor, *,
    spans: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`ggml_rwkv_wkv7`; see RwkvWkv7, also for `spans`."""
    if spans is None:
        return RwkvWkv7().node(r, w, k, v, a, b, state)
    return RwkvWkv7(int(r.ne[2])).node(r, w, k, v, a, b, state, spans)


@checked
def gated_delta_net(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, K: int = 1, *,
    spans: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`ggml_gated_delta_net`; see GatedDeltaNet, also for `spans`."""
    if spans is None:
        return GatedDeltaNet(K).node(q, k, v, g, beta, state)
    return GatedDeltaNet(K, int(v.ne[2])).node(q, k, v, g, beta, state, spans)
