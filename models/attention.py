"""Attention over the KV cache, shared by all architectures: fused (flash) or in separate ops.

Letters in shapes: D head size of q and k, Dv of v, H heads, Hk K/V heads, T tokens, N cells
(n_kv); for one segment Tg tokens in S streams.
"""

from __future__ import annotations

from collections.abc import Sequence

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32
from ggmlpy.models.inputs import GraphInputs, KVView, Segment


def attend(
    q: Tensor, k: Tensor, v: Tensor, inputs: GraphInputs, layer: int, scale: float
) -> Tensor:
    """softmax(scale q k^T + mask) v, after writing k and v to the cache.

    q [D, H, T], k [D, Hk, T], v [Dv, Hk, T]  ->  [Dv*H, T]
    """
    kv = inputs.kv_of(layer)
    k_rows, v_rows = kv.store(layer, k, v)
    attention = _fused if inputs.flash_attn else _unfused
    outs = []
    for i, segment in enumerate(kv.segments):
        with scope(f"segment_{i}" if len(kv.segments) > 1 else ""):
            k_cells = kv.heads(layer, k_rows, segment, k.ne[0], "k")  # [D, N, Hk, S]
            v_cells = kv.heads(layer, v_rows, segment, v.ne[0], "v")  # [Dv, N, Hk, S]
            q_part = _queries(q, kv, segment).named("q")  # [D, Tg/S, H, S]
            out = attention(q_part, k_cells, v_cells, segment.mask, scale)  # [Dv, H, Tg/S, S]
            out = ops.reshape_2d(out, v.ne[0] * q.ne[1], segment.n_tokens)  # [Dv*H, Tg]
        outs.append(out)
    return joined(outs, "kqv_out")  # [Dv*H, T]


def joined(parts: Sequence[Tensor], name: str) -> Tensor:
    """Parts [n, …] concatenated along dimension 1."""
    total = parts[0]
    for i, part in enumerate(parts[1:], 1):
        total = ops.concat(total, part, 1).named(f"{name}_to_{i}")
    return total.named(name)


def _queries(q: Tensor, kv: KVView, segment: Segment) -> Tensor:
    """The segment's queries [D, Tg/S, H, S] of q [D, H, T]."""
    D, H, _, _ = q.ne
    Tg, S = segment.n_tokens, segment.n_stream
    if len(kv.segments) > 1:
        start = segment.first_token * q.nb[2]
        q = ops.view_3d(q, D, H, Tg, q.nb[1], q.nb[2], start).named("q_rows")  # [D, H, Tg]
    q = ops.reshape_4d(q, D, H, Tg // S, S)  # [D, H, Tg/S, S]
    return ops.permute(q, 0, 2, 1, 3)  # [D, Tg/S, H, S]


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    out = ops.flash_attn_ext(q, k, v, mask, scale, 0.0, 0.0)  # [Dv, H, Tg/S, S]
    return out.named("__fattn__")


def _unfused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The same in separate ops, so that every intermediate value can be inspected."""
    kq = ops.mul_mat(k, q).named("kq")  # [N, Tg/S, H, S]
    kq = ops.soft_max_ext(kq, mask, scale, 0.0).named("kq_soft_max")  # [N, Tg/S, H, S]
    if v.type.is_quantized:
        v = ops.cast(v, F32)  # a quantised type cannot be transposed
    v = ops.cont(ops.transpose(v)).named("v_cont")  # [N, Dv, Hk, S]
    out = ops.mul_mat(v, kq).named("kqv")  # [Dv, Tg/S, H, S]
    return ops.cont(ops.permute(out, 0, 2, 1, 3))  # [Dv, H, Tg/S, S]
