"""Attention over the KV cache, shared by all architectures: fused (flash) or in separate ops.

Letters in shapes: D head size of q and k, Dv of v, H heads, Hk K/V heads, T tokens in S streams,
C cells of a stream of the cache; in separate ops N cells and n tokens of each of R sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.rotation import rotated
from ggmlpy.models.inputs import Gathered, GraphInputs, KVView


@dataclass(frozen=True, slots=True)
class Scores:
    """How the weights of cells follow from q k^T."""

    scale: float
    softcap: float = 0.0
    max_bias: float = 0.0  # ALiBi
    sinks: Tensor | None = None  # [H]
    relative: Tensor | None = None  # [H, n_buckets]: added by the bucket of the distance


def attend(
    q: Tensor, k: Tensor, v: Tensor, inputs: GraphInputs, layer: int, scores: Scores
) -> Tensor:
    """softmax(scale q k^T) v over the cells that each token sees, after writing k and v to the
    cache.

    q [D, H, T], k [D, Hk, T], v [Dv, Hk, T]  ->  [Dv*H, T]
    """
    kv = inputs.kv_of(layer)
    stored = kv.store(layer, k, v)
    return _attend(q, stored, (k.ne[1], v.ne[0]), kv, layer, scores)


def attend_stored(q: Tensor, inputs: GraphInputs, layer: int, scores: Scores) -> Tensor:
    """`attend` over what an earlier layer of this graph has written to slot `layer`.

    q [D, H, T]  ->  [Dv*H, T]
    """
    kv = inputs.kv_of(layer)
    k_rows, v_rows = stored = kv.stored[layer]
    Hk = k_rows.ne[0] // q.ne[0]
    return _attend(q, stored, (Hk, v_rows.ne[0] // Hk), kv, layer, scores)


def attend_source(q: Tensor, Hk: int, inputs: GraphInputs, slot: int, scores: Scores) -> Tensor:
    """`attend` over the Hk heads that an encoder stored of the source in `slot`.

    q [D, H, T]  ->  [Dv*H, T]
    """
    assert inputs.source is not None
    stored = inputs.source.held(slot)
    sizes = (Hk, stored[1].ne[0] // Hk)
    return _attend(q, stored, sizes, inputs.source, slot, scores)


def attend_latent(
    q: Tensor, k: Tensor, n_v: int, inputs: GraphInputs, layer: int, scores: Scores
) -> Tensor:
    """`attend` with one K/V head whose v is the first n_v elements of k.

    q [D, H, T], k [D, 1, T]  ->  [n_v*H, T]
    """
    kv = inputs.kv_of(layer)
    stored = kv.store(layer, k, None)
    return _attend(q, stored, (1, n_v), kv, layer, scores)


def _attend(
    q: Tensor,
    stored: tuple[Tensor, Tensor],
    sizes: tuple[int, int],
    kv: KVView,
    layer: int,
    scores: Scores,
) -> Tensor:
    """q [D, H, T] over the rows that are stored of K and V, where `sizes` is Hk, Dv: [Dv*H, T]"""
    k_rows, v_rows = stored
    Hk, Dv = sizes
    by_k, by_v = kv.rotations.get(layer, (None, None))
    q = rotated(q, by_k, "q_rotated")  # [D, H, T]
    if kv.gathered:
        out = _separate(q, k_rows, v_rows, kv.gathered, sizes, scores)
    else:
        k_cells = kv.heads(layer, k_rows, q.ne[0], Hk, "k")  # [D, C, Hk, streams]
        v_cells = kv.heads(layer, v_rows, Dv, Hk, "v")  # [Dv, C, Hk, streams]
        out = _fused(q, k_cells, v_cells, kv, scores).named("kqv_out")
    return rotated(out, by_v, "kqv_rotated")  # [Dv*H, T]


def _fused(q: Tensor, k: Tensor, v: Tensor, kv: KVView, scores: Scores) -> Tensor:
    """q [D, H, T], k [D, C, Hk, streams], v [Dv, C, Hk, streams] -> [Dv*H, T]"""
    D, H, T, _ = q.ne
    _, n, S, _ = kv.seen.ne
    if not q.contiguous:  # a part of q, k and v in one, without positions
        q = ops.cont(q).named("Qcur_cont")
    q = ops.permute(ops.reshape_4d(q, D, H, n, S), 0, 2, 1, 3).named("q")  # [D, T/S, H, S]
    out = ops.flash_attn_ext(
        q, k, v, kv.bias, scores.scale, scores.max_bias, scores.softcap,
        cells=kv.cells, seen=kv.seen,
    )  # fmt: skip
    ops.flash_attn_ext_add_sinks(out, scores.sinks)
    return ops.reshape_2d(out.named("__fattn__"), v.ne[0] * H, T)  # [Dv*H, T]


def _separate(
    q: Tensor,
    k_rows: Tensor,
    v_rows: Tensor,
    groups: Sequence[Gathered],
    sizes: tuple[int, int],
    scores: Scores,
) -> Tensor:
    """The same in separate ops, so that every intermediate value can be inspected.

    q [D, H, T], k_rows [D*Hk, cells], v_rows [Dv*Hk, cells], `sizes` Hk, Dv -> [Dv*H, T]
    """
    D, H, T, _ = q.ne
    if not q.contiguous:
        q = ops.cont(q).named("Qcur_cont")
    q_all = ops.reshape_2d(q, D * H, T).named("q_all")  # [D*H, T]
    total: Tensor | None = None
    for i, group in enumerate(groups):
        with scope(f"group_{i}" if len(groups) > 1 else ""):
            out = _group(q_all, k_rows, v_rows, group, (H, *sizes), scores)  # [Dv*H, n*R]
            total = out if total is None else ops.concat(total, out, 1)
    assert total is not None
    return total.named("kqv_out")


def _group(
    q_rows: Tensor,
    k_rows: Tensor,
    v_rows: Tensor,
    group: Gathered,
    sizes: tuple[int, int, int],
    scores: Scores,
) -> Tensor:
    """Of q_rows [D*H, T], k_rows [D*Hk, cells] and v_rows [Dv*Hk, cells] those of a group, where
    `sizes` is H, Hk, Dv: [Dv*H, n*R]"""
    H, Hk, Dv = sizes
    N, n, _, R = group.mask.ne
    k = _gather(k_rows, group.cells, (Hk, N, R), "k")  # [D, N, Hk, R]
    if v_rows is k_rows:
        v = ops.view_4d(k, Dv, N, Hk, R, k.nb[1], k.nb[2], k.nb[3], 0).named("v")  # [Dv, N, Hk, R]
    else:
        v = _gather(v_rows, group.cells, (Hk, N, R), "v")  # [Dv, N, Hk, R]
    q = _gather(q_rows, group.tokens, (H, n, R), "q")  # [D, n, H, R]
    kq = ops.mul_mat(k, q).named("kq")  # [N, n, H, R]
    scale = scores.scale
    if scores.relative is not None:
        kq = ops.add(kq, _relative_bias(scores.relative, group)).named("kq_biased")
    if scores.softcap:
        capped = ops.tanh(ops.scale(kq, scale / scores.softcap)).named("kq_tanh")
        kq, scale = ops.scale(capped, scores.softcap).named("kq_capped"), 1.0
    kq = ops.soft_max_ext(kq, group.mask, scale, scores.max_bias)  # [N, n, H, R]
    ops.soft_max_add_sinks(kq.named("kq_soft_max"), scores.sinks)
    v_t = ops.cont(ops.transpose(v)).named("v_cont")  # [N, Dv, Hk, R]
    out = ops.mul_mat(v_t, kq).named("kqv")  # [Dv, n, H, R]
    out = ops.cont(ops.permute(out, 0, 2, 1, 3))  # [Dv, H, n, R]
    return ops.reshape_2d(out, Dv * H, n * R)  # [Dv*H, n*R]


def _relative_bias(relative: Tensor, group: Gathered) -> Tensor:
    """relative [H, n_buckets] of the distance of each cell and token: [N, n, H, R]"""
    N, n, _, R = group.mask.ne
    assert group.buckets is not None
    bias = ops.get_rows(relative, group.buckets)  # [H, N*n*R]
    bias = ops.reshape_4d(bias, relative.ne[0], N, n, R)  # [H, N, n, R]
    return ops.cont(ops.permute(bias, 2, 0, 1, 3)).named("pos_bias")


def _gather(rows: Tensor, index: Tensor, ne: tuple[int, int, int], name: str) -> Tensor:
    """n rows of each of R sequences, of rows [D*H, cells] by an index [n*R]: [D, n, H, R], where
    `ne` is H, n, R."""
    gathered = ops.get_rows(rows, index).named(f"{name}_gathered")  # [D*H, n*R]
    heads = ops.reshape_4d(gathered, rows.ne[0] // ne[0], *ne).named(f"{name}_rows")  # [D, H, n, R]
    return ops.permute(heads, 0, 2, 1, 3).named(name)  # [D, n, H, R]
