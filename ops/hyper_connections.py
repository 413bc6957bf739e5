"""Hyper-connections: several residual streams for each token, mixed before and after a layer.

    C streams, E elements, T tokens; x [E, T] is what a layer reads or gives

Source: Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32
from ggmlpy.ops import activations


def _require_f32(*specs: Spec) -> None:
    require(all(spec.type is F32 for spec in specs), "all sources must be f32")


@op("dsv4_hc_comb")
@dataclass(frozen=True, slots=True)
class Dsv4HcComb(Op):
    """The matrices that mix C streams, near doubly stochastic by Sinkhorn's iteration.

        m[dst, src] = mixes[2 C + dst + C * src] * scale[2] + base[2 C + dst + C * src]
        m           = eps + softmax of m over dst
        m           = m / (eps + sum of m over src)
        then n_iter - 1 times: m / (eps + sum over dst), m / (eps + sum over src)

    mixes [(2 + C) * C, T], scale [3 or more], base [(2 + C) * C], all f32  ->  m [C, C, T], dst
    fastest. Raises ShapeError for other shapes and types, and unless n_iter is at least 1.
    """

    eps: float
    n_iter: int

    def infer(self, mixes: Spec, scale: Spec, base: Spec) -> Spec:
        _require_f32(mixes, scale, base)
        require(self.n_iter >= 1, f"n_iter is {self.n_iter}: it must be at least 1")
        length, n_tokens = mixes.ne[:2]
        n_streams = math.isqrt(length + 1) - 1
        require(
            n_streams >= 1 and (2 + n_streams) * n_streams == length,
            f"dimension 0 of mixes is {length}: it must be (2 + C) C for C streams",
        )
        require(mixes.ne[2:] == (1, 1), "mixes must have at most 2 dimensions")
        require(
            scale.ne[0] >= 3 and scale.ne[1:] == (1, 1, 1), "scale must be one row of 3 or more"
        )
        require(base.ne == (length, 1, 1, 1), f"base must be [{length}]")
        return Spec((n_streams, n_streams, n_tokens), F32)

    def reference(self, mixes: Array, scale: Array, base: Array) -> Array:
        x = mixes[0, 0].astype(np.float64)
        n_streams = math.isqrt(x.shape[1] + 1) - 1
        logits = x * np.float64(scale[0, 0, 0, 2]) + base[0, 0, 0].astype(np.float64)
        m = logits[:, 2 * n_streams :].reshape(-1, n_streams, n_streams)  # [T, src, dst]
        m = np.exp(m - m.max(axis=2, keepdims=True))
        m = m / m.sum(axis=2, keepdims=True) + self.eps
        m = m / (m.sum(axis=1, keepdims=True) + self.eps)
        for _ in range(self.n_iter - 1):
            m = m / (m.sum(axis=2, keepdims=True) + self.eps)
            m = m / (m.sum(axis=1, keepdims=True) + self.eps)
        y: Array = m[None]
        return y


@op("dsv4_hc_pre")
@dataclass(frozen=True, slots=True)
class Dsv4HcPre(Op):
    """What a layer reads: the weighted sum of the streams.

        y[i, t] = scale * sum_c x[i, c, t] * weights[c, t]
        gated:    scale * sum_c x[i, c, t] * sigmoid(weights[i, c, t])

    x [E, C, T], weights [C, T] or, gated, [E, C, T], all f32  ->  y [E, T]. Raises ShapeError for
    other shapes and types.
    """

    scale: float = 1.0
    gated: bool = False

    def infer(self, x: Spec, weights: Spec) -> Spec:
        _require_f32(x, weights)
        n, n_streams, n_tokens, rest = x.ne
        require(rest == 1, "x must have at most 3 dimensions")
        want = x.ne if self.gated else (n_streams, n_tokens, 1, 1)
        what = "weights, the gate," if self.gated else "weights"
        require(weights.ne == want, f"{what} must be {list(want)}")
        return Spec((n, n_tokens), F32)

    def reference(self, x: Array, weights: Array) -> Array:
        streams, w = x[0].astype(np.float64), weights.astype(np.float64)  # [T, C, E]
        w = activations.sigmoid(w[0]) if self.gated else w[0, 0][..., None]
        y: Array = self.scale * np.sum(streams * w, axis=1)
        return y[None, None]


@op("dsv4_hc_post")
@dataclass(frozen=True, slots=True)
class Dsv4HcPost(Op):
    """The streams after a layer: its result spread over them, and the streams mixed.

        y[i, dst, t] = x[i, t] * post[dst, t] + sum_src residual[i, src, t] * comb[dst, src, t]

    x [E, T], residual [E, C, T], post [C, T], comb [C, C, T], all f32  ->  y [E, C, T]. Without
    comb every stream keeps its own residual. Raises ShapeError for other shapes and types.
    """

    def infer(self, x: Spec, residual: Spec, post: Spec, comb: Spec | None = None) -> Spec:
        _require_f32(x, residual, post, *([comb] if comb else []))
        n, n_tokens = x.ne[:2]
        n_streams = residual.ne[1]
        require(x.ne[2:] == (1, 1), "x must have at most 2 dimensions")
        require(
            residual.ne == (n, n_streams, n_tokens, 1),
            f"residual must be [{n}, n_streams, {n_tokens}]",
        )
        require(post.ne == (n_streams, n_tokens, 1, 1), f"post must be [{n_streams}, {n_tokens}]")
        require(
            comb is None or comb.ne == (n_streams, n_streams, n_tokens, 1),
            f"comb must be [{n_streams}, {n_streams}, {n_tokens}]",
        )
        return Spec(residual.ne, F32)

    def reference(self, x: Array, residual: Array, post: Array, comb: Array | None = None) -> Array:
        streams = residual[0].astype(np.float64)  # [T, C, E]
        if comb is not None:
            streams = np.einsum("tsi,tsd->tdi", streams, comb[0].astype(np.float64))
        given = x[0, 0].astype(np.float64)[:, None, :] * post[0, 0].astype(np.float64)[..., None]
        y: Array = given + streams
        return y[None]


@checked
def dsv4_hc_comb(mixes: Tensor, scale: Tensor, base: Tensor, eps: float, n_iter: int) -> Tensor:
    """`ggml_dsv4_hc_comb`; see Dsv4HcComb."""
    return Dsv4HcComb(eps, n_iter).node(mixes, scale, base)


@checked
def dsv4_hc_pre(x: Tensor, weights: Tensor) -> Tensor:
    """`ggml_dsv4_hc_pre`; see Dsv4HcPre."""
    return Dsv4HcPre().node(x, weights)


@checked
def dsv4_hc_pre_gated(x: Tensor, gate: Tensor, scale: float) -> Tensor:
    """`ggml_dsv4_hc_pre_gated`; see Dsv4HcPre."""
    return Dsv4HcPre(scale=scale, gated=True).node(x, gate)


@checked
def dsv4_hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor | None) -> Tensor:
    """`ggml_dsv4_hc_post`; see Dsv4HcPost."""
    given = (x, residual, post)
    return Dsv4HcPost().node(*given) if comb is None else Dsv4HcPost().node(*given, comb)
