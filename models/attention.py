"""Attention over the KV cache, shared by all architectures: fused (flash) or in separate ops.

Letters in shapes: D head size of q and k, Dv of v, H heads, Hk K/V heads, T tokens in S streams,
C cells of a stream of the cache; in separate ops N cells and n tokens of each of R sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.inputs import Gathered, GraphInputs, KVView


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: GraphInputs,
    layer: int,
    scale: float,
    *,
    sinks: Tensor | None = None,
    softcap: float = 0.0,
    max_bias: float = 0.0,
) -> Tensor:
    """softmax(scale q k^T) v over the cells that each token sees, after writing k and v to the
    cache.

    q [D, H, T], k [D, Hk, T], v [Dv, Hk, T]  ->  [Dv*H, T]
    """
    kv = inputs.kv_of(layer)
    k_rows, v_rows = kv.store(layer, k, v)
    if kv.gathered:
        return _separate(q, k_rows, v_rows, kv.gathered, v.ne[1], scale)
    k_cells = kv.heads(layer, k_rows, k.ne[0], "k")  # [D, C, Hk, streams]
    v_cells = kv.heads(layer, v_rows, v.ne[0], "v")  # [Dv, C, Hk, streams]
    return _fused(q, k_cells, v_cells, kv, scale).named("kqv_out")


def _fused(q: Tensor, k: Tensor, v: Tensor, kv: KVView, scale: float) -> Tensor:
    """q [D, H, T], k [D, C, Hk, streams], v [Dv, C, Hk, streams] -> [Dv*H, T]"""
    D, H, T, _ = q.ne
    _, n, S, _ = kv.seen.ne
    q = ops.permute(ops.reshape_4d(q, D, H, n, S), 0, 2, 1, 3).named("q")  # [D, T/S, H, S]
    out = ops.flash_attn_ext(
        q, k, v, None, scale, 0.0, 0.0, cells=kv.cells, seen=kv.seen
    ).named("__fattn__")  # [Dv, H, T/S, S]  # fmt: skip
    return ops.reshape_2d(out, v.ne[0] * H, T)  # [Dv*H, T]


def _separate(
    q: Tensor, k_rows: Tensor, v_rows: Tensor, groups: Sequence[Gathered], Hk: int, scale: float
) -> Tensor:
    """The same in separate ops, so that every intermediate value can be inspected.

    q [D, H, T], k_rows [D*Hk, cells], v_rows [Dv*Hk, cells] -> [Dv*H, T]
    """
    D, H, T, _ = q.ne
    q_all = ops.reshape_2d(q, D * H, T).named("q_all")  # [D*H, T]
    total: Tensor | None = None
    for i, group in enumerate(groups):
        with scope(f"group_{i}" if len(groups) > 1 else ""):
            out = _group(q_all, k_rows, v_rows, group, (H, Hk), scale)  # [Dv*H, n*R]
        total = out if total is None else ops.concat(total, out, 1)
    assert total is not None
    return total.named("kqv_out")


def _group(
    q_rows: Tensor,
    k_rows: Tensor,
    v_rows: Tensor,
    group: Gathered,
    heads: tuple[int, int],
    scale: float,
) -> Tensor:
    """Of q_rows [D*H, T], k_rows [D*Hk, cells] and v_rows [Dv*Hk, cells] those of a group, where
    `heads` is H, Hk: [Dv*H, n*R]"""
    H, Hk = heads
    N, n, _, R = group.mask.ne
    k = _gather(k_rows, group.cells, (Hk, N, R), "k")  # [D, N, Hk, R]
    v = _gather(v_rows, group.cells, (Hk, N, R), "v")  # [Dv, N, Hk, R]
    q = _gather(q_rows, group.tokens, (H, n, R), "q")  # [D, n, H, R]
    kq = ops.mul_mat(k, q).named("kq")  # [N, n, H, R]
    kq = ops.soft_max_ext(kq, group.mask, scale, 0.0).named("kq_soft_max")  # [N, n, H, R]
    v_t = ops.cont(ops.transpose(v)).named("v_cont")  # [N, Dv, Hk, R]
    out = ops.mul_mat(v_t, kq).named("kqv")  # [Dv, n, H, R]
    out = ops.cont(ops.permute(out, 0, 2, 1, 3))  # [Dv, H, n, R]
    return ops.reshape_2d(out, v.ne[0] * H, n * R)  # [Dv*H, n*R]


def _gather(rows: Tensor, index: Tensor, ne: tuple[int, int, int], name: str) -> Tensor:
    """n rows of each of R sequences, of rows [D*H, cells] by an index [n*R]: [D, n, H, R], where
    `ne` is H, n, R."""
    gathered = ops.get_rows(rows, index).named(f"{name}_gathered")  # [D*H, n*R]
    heads = ops.reshape_4d(gathered, rows.ne[0] // ne[0], *ne).named(f"{name}_rows")  # [D, H, n, R]
    return ops.permute(heads, 0, 2, 1, 3).named(name)  # [D, n, H, R]
