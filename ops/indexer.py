"""The lightning indexer: cheap scores that select the cells a query attends to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32


@op("lightning_indexer")
@dataclass(frozen=True, slots=True)
class LightningIndexer(Op):
    """Scores of the cells for each token, from small heads with one key for all of them.

        dot[c, h, t, s] = sum_i q[i, h, t, s] * k[i, c, s]
        y[c, t, s]      = mask[c, t, s % M] + sum_h weights[h, t, s] * relu(dot[c, h, t, s])

    q [D, H, T, S] f32, k [D, 1, N, S] of a float or quantised type, weights [H, T, 1, S] f32,
    mask [N, T, 1, M] f16  ->  y [N, T, 1, S] f32. A cell whose mask is -inf gets -inf, whatever its
    key holds. Raises ShapeError for other shapes and types, unless rows are contiguous, and unless
    M divides S. Source: DeepSeek-AI, "DeepSeek-V3.2-Exp", 2025.
    """

    def infer(self, q: Spec, k: Spec, weights: Spec, mask: Spec) -> Spec:
        require(q.type is F32 and weights.type is F32, "q and weights must be f32")
        require(k.type.is_float or k.type.is_quantized, "k must be of a float or quantised type")
        require(mask.type is F16, "mask must be f16")
        for spec in (q, k, weights, mask):
            require(spec.rows_contiguous, "all sources must have contiguous rows")
        size, n_head, n_tokens, n_streams = q.ne
        n_kv = k.ne[2]
        require(
            k.ne == (size, 1, n_kv, n_streams),
            f"k must be [{size}, 1, n_kv, {n_streams}]",
        )
        require(
            weights.ne == (n_head, n_tokens, 1, n_streams),
            f"weights must be [{n_head}, {n_tokens}, 1, {n_streams}]",
        )
        require(
            mask.ne[:3] == (n_kv, n_tokens, 1) and n_streams % mask.ne[3] == 0,
            f"mask must be [{n_kv}, {n_tokens}, 1, M] where M divides {n_streams}",
        )
        return Spec((n_kv, n_tokens, 1, n_streams), F32)

    def reference(self, q: Array, k: Array, weights: Array, mask: Array) -> Array:
        keys, w = k[:, :, 0].astype(np.float64), weights[:, 0].astype(np.float64)  # [S, N, D]
        products = np.einsum("sthi,sci->sthc", q.astype(np.float64), keys)
        scores = np.einsum("sthc,sth->stc", np.maximum(products, 0), w)[:, None]
        bias = np.tile(mask.astype(np.float64), (len(q) // len(mask), 1, 1, 1))
        seen = ~np.isneginf(bias)
        return np.where(seen, np.where(seen, scores, 0) + bias, -np.inf)


@checked
def lightning_indexer(q: Tensor, k: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """`ggml_lightning_indexer`; see LightningIndexer."""
    return LightningIndexer().node(q, k, weights, mask)
