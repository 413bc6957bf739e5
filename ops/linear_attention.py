"""Linear attention whose state is a matrix for each head: RWKV's, and the gated delta rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32
from ggmlpy.ops.scan import require_snapshots


def _infer_wkv(state: Spec, first: Spec, *others: Spec) -> Spec:
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
    require(
        n_tokens % n_seq == 0,
        f"the {n_tokens} tokens must be a multiple of the {n_seq} sequences",
    )
    return Spec((size * n_head, n_tokens + size * n_seq), F32)


@op("rwkv_wkv6")
@dataclass(frozen=True, slots=True)
class RwkvWkv6(Op):
    """The time mixing of RWKV-6, for each head and sequence.

        y[j]        = sum_i r[i] * (state[i, j] + tf[i] * k[i] * v[j])
        state[i, j] = state[i, j] * td[i] + k[i] * v[j]                   after every token

    k, v, r, td [D, H, T], tf [D, H], state [D * D * H, S] (within a head: j fastest, then i), all
    f32; the T tokens are S sequences of T / S one after another  ->  y [D * H, T + D * S]: first
    the outputs, then the new states. Raises ShapeError for other shapes and types, and unless all
    sources are contiguous. Source: Peng et al., "Eagle and Finch", 2024.
    """

    def infer(self, k: Spec, v: Spec, r: Spec, tf: Spec, td: Spec, state: Spec) -> Spec:
        result = _infer_wkv(state, k, v, r, td)
        size, n_head = k.ne[:2]
        require(tf.type is F32 and tf.contiguous, "all sources must be f32 and contiguous")
        require(
            tf.ne in ((size, n_head, 1, 1), (size * n_head, 1, 1, 1)),
            f"tf must be [{size}, {n_head}]",
        )
        return result

    def reference(self, k: Array, v: Array, r: Array, tf: Array, td: Array, state: Array) -> Array:
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
class RwkvWkv7(Op):
    """The time mixing of RWKV-7, for each head and sequence.

        sa[i]       = sum_j state[i, j] * a[j]
        state[i, j] = state[i, j] * w[j] + v[i] * k[j] + sa[i] * b[j]
        y[i]        = sum_j state[i, j] * r[j]                            after every token

    r, w, k, v, a, b [D, H, T], state [D * D * H, S] (within a head: j fastest, then i), all f32;
    the T tokens are S sequences of T / S one after another  ->  y [D * H, T + D * S]: first the
    outputs, then the new states. Raises ShapeError for other shapes and types, and unless all
    sources are contiguous. Source: Peng et al., "RWKV-7 Goose", 2025.
    """

    def infer(self, r: Spec, w: Spec, k: Spec, v: Spec, a: Spec, b: Spec, state: Spec) -> Spec:
        return _infer_wkv(state, r, w, k, v, a, b)

    def reference(
        self, r: Array, w: Array, k: Array, v: Array, a: Array, b: Array, state: Array
    ) -> Array:
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
class GatedDeltaNet(Op):
    """The gated delta rule, for each head h and sequence; i along the key, j along the value.

        state[i, j] *= exp(g[h])            or exp(g[i, h]), a gate for each element of the key
        delta[j]     = beta[h] * (v[j] - sum_i state[i, j] * k[i])
        state[i, j] += k[i] * delta[j]
        y[j]         = sum_i state[i, j] * q[i] / sqrt(D)                 after every token

    q, k [D, Hk, T, Sk], v [D, H, T, S], g [1 or D, H, T, S], beta [1, H, T, S], state [D, D, H, S]
    (i fastest), all f32  ->  [D * H, T * S + K * D * S]: the outputs [D, H, T, S], then K copies of
    the states [D, D, H, S], copy m as it was m tokens before the last; copies of before the first
    token are 0. Head h of v has head h % Hk of q and k, sequence s of v sequence s // (S / Sk).

    Raises ShapeError for other shapes and types, unless rows of q, k and v are contiguous and
    g, beta and state contiguous, and unless H is a multiple of q's and k's heads, S of their
    sequences. Source: Yang et al., "Gated Delta Networks", 2024; the gate for each element: Kimi
    Team, "Kimi Linear", 2025.
    """

    K: int = 1

    def infer(self, q: Spec, k: Spec, v: Spec, g: Spec, beta: Spec, state: Spec) -> Spec:
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
        require(
            state.ne == (size, size, n_head, n_seqs),
            f"state must be [{size}, {size}, {n_head}, {n_seqs}]",
        )
        return Spec((size * n_head, n_tokens * n_seqs + self.K * size * n_seqs), F32)

    def reference(self, q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array) -> Array:
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
def rwkv_wkv6(k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor) -> Tensor:
    """`ggml_rwkv_wkv6`; see RwkvWkv6."""
    return RwkvWkv6().node(k, v, r, tf, td, state)


@checked
def rwkv_wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> Tensor:
    """`ggml_rwkv_wkv7`; see RwkvWkv7."""
    return RwkvWkv7().node(r, w, k, v, a, b, state)


@checked
def gated_delta_net(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, K: int = 1
) -> Tensor:
    """`ggml_gated_delta_net`; see GatedDeltaNet."""
    return GatedDeltaNet(K).node(q, k, v, g, beta, state)
