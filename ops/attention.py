"""Attention in one op."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32
from ggmlpy.ops.softmax import (
    MaskedScores,
    alibi_slopes,
    check_mask,
    check_sinks,
    set_sinks,
)


@op("flash_attn_ext")
@dataclass(frozen=True, slots=True)
class FlashAttnExt(MaskedScores):
    """Softmax of q·k, times v, for each head.

        s[j] = scale * sum_d q[d, i, h, s] * k[d, j, h // G, s]              G = Hq / Hk
        s[j] = c * tanh(s[j] / c)                               with c = logit_softcap, unless 0
        s[j] = s[j] + slope(h) * mask[j, i, h % Hm, s % Sm]
        p[j] = exp(s[j] - m) / (sum_j exp(s[j] - m) + exp(sink(h) - m))
        y[d, h, i, s] = sum_j p[j] * v[d, j, h // G, s]

    q [D, n_q, Hq, S] f32, k [D, n_kv, Hk, S] and v [Dv, n_kv, Hk, S] f32, f16, bf16 or quantised,
    mask [n_kv, >= n_q, Hm, Sm] f16 contiguous, sinks [Hq] f32  ->  y [Dv, Hq, n_q, S] f32,
    contiguous, so that a reshape yields [Dv * Hq, n_q * S]. Keys are shared by division, masks by
    modulo. slope(h) is 1, or ALiBi's where max_bias is above 0, see alibi_slopes.

    Masked cells (mask -inf) have no effect, even if k or v is NaN there. A query for which all
    cells are masked gives exactly 0, with sinks or without. Raises ShapeError for other shapes and
    types, and unless rows of q, k and v are contiguous. Source: Dao et al., 2022.
    """

    scale: float
    max_bias: float
    logit_softcap: float
    has_mask: bool = False
    has_sinks: bool = False

    def source_names(self, n_srcs: int) -> tuple[str, ...]:
        return ("q", "k", "v", *self.optional_names())[:n_srcs]

    def infer(self, q: Spec, k: Spec, v: Spec, *given: Spec) -> Spec:
        mask, sinks = self.optional(given)
        require(q.type is F32, "q must be f32")
        for name, spec in (("k", k), ("v", v)):
            require(
                spec.type.is_float or spec.type.is_quantized,
                f"{name} must be of a float type or quantised",
            )
        require(
            q.rows_contiguous and k.rows_contiguous and v.rows_contiguous,
            "rows of q, k and v must be contiguous",
        )
        size, n_query, n_head, n_seq = q.ne
        require(k.ne[0] == size, f"head sizes of q and k, {size} and {k.ne[0]}, must be equal")
        require(k.ne[1:] == v.ne[1:], "k and v must have the same dimensions 1, 2 and 3")
        n_kv, n_head_kv = k.ne[1:3]
        require(
            n_head % n_head_kv == 0,
            f"the {n_head} heads of q must be a multiple of the {n_head_kv} of k and v",
        )
        require(k.ne[3] == n_seq, f"dimension 3 of q, {n_seq}, must be that of k, {k.ne[3]}")
        if mask is not None:
            require(mask.type is F16, "mask must be f16")
            check_mask(mask, n_kv, n_query, n_head, n_seq)
        if sinks is not None:
            check_sinks(sinks, n_head)
        self.check_bias()
        return Spec((v.ne[0], n_head, n_query, n_seq), F32)

    def reference(self, q: Array, k: Array, v: Array, *given: Array) -> Array:
        mask, sinks = self.optional(given)
        q, k, v = (t.astype(np.float64) for t in (q, k, v))
        n_seq, n_head, n_query, _ = q.shape
        n_shared = n_head // k.shape[1]
        slopes = alibi_slopes(n_head, self.max_bias)
        y = np.zeros((n_seq, n_query, n_head, v.shape[3]))
        for s, h, i in np.ndindex(n_seq, n_head, n_query):
            keys, values = k[s, h // n_shared], v[s, h // n_shared]
            bias = np.zeros(len(keys))
            if mask is not None:
                row = mask[s % mask.shape[0], h % mask.shape[1], i].astype(np.float64)
                bias = slopes[h] * row
            visible = ~np.isneginf(bias)
            sink = -np.inf if sinks is None else float(sinks[0, 0, 0, h])
            parts = keys[visible], values[visible], bias[visible]
            y[s, i, h] = self._attend(q[s, h, i], *parts, sink)
        return y

    def _attend(self, query: Array, keys: Array, values: Array, bias: Array, sink: float) -> Array:
        """The result of one query over its visible cells."""
        scores = self.scale * (keys @ query)
        if self.logit_softcap != 0:
            scores = self.logit_softcap * np.tanh(scores / self.logit_softcap)
        scores = scores + bias
        largest = np.maximum(scores.max(initial=-np.inf), sink)  # NaN if the sink is
        if np.isneginf(largest):
            return np.zeros(values.shape[1])
        weights = np.exp(scores - largest)
        attended: Array = weights @ values / (weights.sum() + np.exp(sink - largest))
        return attended


@checked
def flash_attn_ext(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    max_bias: float,
    logit_softcap: float,
) -> Tensor:
    """`ggml_flash_attn_ext`; see FlashAttnExt."""
    made = FlashAttnExt(scale, max_bias, logit_softcap, has_mask=mask is not None)
    return made.node(q, k, v) if mask is None else made.node(q, k, v, mask)


@checked
def flash_attn_ext_add_sinks(a: Tensor, sinks: Tensor | None) -> Tensor:
    """`ggml_flash_attn_ext_add_sinks`: sets the sinks of the node `a`, and returns `a`."""
    return set_sinks(a, sinks, FlashAttnExt)
