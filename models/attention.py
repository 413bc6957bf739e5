"""Attention over the KV cache, fused or step by step: every architecture's.

Letters in shapes: D head size of q and k, Dv of v, H heads, Hk K/V heads, T tokens, S streams,
N cells in view.
"""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.models.batch import UBatch
from ggmlpy.tensor import Tensor
from ggmlpy.types import F32


def attend(q: Tensor, k: Tensor, v: Tensor, ubatch: UBatch, layer: int, scale: float) -> Tensor:
    """softmax(scale q k^T + mask) v, after writing k and v to the cache.

    q [D, H, T], k [D, Hk, T], v [Dv, Hk, T]  ->  [Dv*H, T]
    """
    D, H, T, _ = q.ne
    S = ubatch.kv.n_stream
    k, v = ubatch.kv.store(layer, k, v)  # [D, N, Hk, S], [Dv, N, Hk, S]
    q = ops.reshape_4d(q, D, H, T // S, S)  # [D, H, T/S, S]
    q = ops.permute(q, 0, 2, 1, 3)  # [D, T/S, H, S]
    if ubatch.flash_attn:
        out = ops.flash_attn_ext(q, k, v, ubatch.kv.mask, scale, 0.0, 0.0)  # [Dv, H, T/S, S]
    else:
        out = _attend_unfused(q, k, v, ubatch.kv.mask, scale)  # [Dv, H, T/S, S]
    return ops.reshape_2d(out, v.ne[0] * H, T)  # [Dv*H, T]


def _attend_unfused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The same as flash_attn_ext in three steps: every intermediate value can be looked at."""
    kq = ops.mul_mat(k, q)  # [N, T/S, H, S]
    kq = ops.soft_max_ext(kq, mask, scale, 0.0)  # [N, T/S, H, S]
    if v.type.is_quantized:
        v = ops.cast(v, F32)  # a quantised type cannot be transposed
    v = ops.cont(ops.transpose(v))  # [N, Dv, Hk, S]
    out = ops.mul_mat(v, kq)  # [Dv, T/S, H, S]
    return ops.cont(ops.permute(out, 0, 2, 1, 3))  # [Dv, H, T/S, S]
