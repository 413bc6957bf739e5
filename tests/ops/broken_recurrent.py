"""Calls of recurrent layers, of hyper-connections and of the indexer that break a rule each; see
broken_rules.py."""

from __future__ import annotations

from collections.abc import Callable

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from tests.ops.values import f16, f32, i32, transposed


def linear(kvq: Tensor, g: Tensor, state: Tensor) -> Tensor:
    return ops.gated_linear_attn(kvq, kvq, kvq, g, state, 1.0)


def scan(K: int = 1, **given: Tensor) -> Tensor:
    """8 elements, heads 6 x 4, 3 states, 5 tokens, 2 sequences, 2 groups."""
    group = f32(8, 2, 5, 2)
    sources = {"s": f32(8, 4, 6, 3), "x": f32(4, 6, 5, 2), "dt": f32(6, 5, 2), "A": f32(1, 6)}
    return ops.ssm_scan(**{**sources, "B": group, "C": group, "ids": i32(2), **given}, K=K)


def wkv6(**given: Tensor) -> Tensor:
    token = f32(4, 2, 6)
    sources = {"k": token, "v": token, "r": token, "tf": f32(4, 2), "td": token}
    return ops.rwkv_wkv6(**{**sources, "state": f32(32, 2), **given})


def wkv7(token: Tensor) -> Tensor:
    return ops.rwkv_wkv7(token, token, token, token, token, token, f32(32, 2))


def delta(K: int = 1, **given: Tensor) -> Tensor:
    """Heads 4 of size 8, 2 of keys; 5 tokens, 2 sequences."""
    key, one = f32(8, 2, 5, 2), f32(1, 4, 5, 2)
    sources = {"q": key, "k": key, "v": f32(8, 4, 5, 2), "g": one, "beta": one}
    return ops.gated_delta_net(**{**sources, "state": f32(8, 8, 4, 2), **given}, K=K)


def indexer(**given: Tensor) -> Tensor:
    sources = {"q": f32(8, 3, 5, 2), "k": f32(8, 1, 7, 2), "weights": f32(3, 5, 1, 2)}
    return ops.lightning_indexer(**{**sources, "mask": f16(7, 5), **given})


def hc_post(**given: Tensor) -> Tensor:
    sources = {"x": f32(8, 5), "residual": f32(8, 4, 5), "post": f32(4, 5)}
    return ops.dsv4_hc_post(**{**sources, "comb": f32(4, 4, 5), **given})


BROKEN_RECURRENT: list[tuple[Callable[[], Tensor], str]] = [
    (lambda: ops.ssm_conv(f16(9, 3), f32(4, 3)), "x and kernel must be f32"),
    (lambda: ops.ssm_conv(transposed(9, 3), f32(4, 3)), "x and kernel must have contiguous rows"),
    (lambda: ops.ssm_conv(f32(9, 3, 1, 2), f32(4, 3)), "x must have at most 3 dimensions"),
    (lambda: ops.ssm_conv(f32(9, 3), f32(4, 3, 2)), "kernel must have at most 2 dimensions"),
    (lambda: ops.ssm_conv(f32(9, 3), f32(4, 2)), "dimension 1 of x and kernel, 3 and 2, must be"),
    (
        lambda: ops.ssm_conv(f32(3, 3), f32(4, 3)),
        "x has 3 steps: it must have at least 4, the taps",
    ),
    (
        lambda: ops.ssm_conv(f32(2, 5), f32(4, 3), taps=i32(4, 2)),
        "dimension 0 of x, 2, must be dimension 1 of kernel, 3",
    ),
    (
        lambda: ops.ssm_conv(f32(3, 5), f32(4, 3), taps=i32(3, 2)),
        "dimension 0 of taps and kernel, 3 and 4, must be equal",
    ),
    (lambda: ops.ssm_conv(f32(3, 5), f32(4, 3), taps=f32(4, 2)), "taps must be i32"),
    (
        lambda: ops.ssm_conv(f32(3, 5, 2), f32(4, 3), taps=i32(4, 2)),
        "x must have at most 2 dimensions",
    ),
    (
        lambda: ops.ssm_conv(f32(3, 5), f32(4, 3), taps=i32(4, 2, 2)),
        "taps must have at most 2 dimensions",
    ),
    (
        lambda: linear(f32(4, 2, 6), f16(4, 2, 6), f32(32, 2)),
        "all sources must be f32 and contiguous",
    ),
    (
        lambda: linear(f32(4, 2, 6), f32(4, 2, 5), f32(32, 2)),
        "all sources of a token must have the same shape",
    ),
    (
        lambda: linear(f32(4, 2, 6, 2), f32(4, 2, 6, 2), f32(32, 2)),
        "sources must have at most 3 dimensions",
    ),
    (
        lambda: linear(f32(4, 2, 6), f32(4, 2, 6), f32(31, 2)),
        "state must be [32, n_seq]",
    ),
    (
        lambda: linear(f32(4, 2, 6), f32(4, 2, 6), f32(32, 4)),
        "the 6 tokens must be a multiple of the 4 sequences",
    ),
    *(
        (lambda given=given: scan(**given), message)
        for given, message in (
            ({"K": 0}, "K is 0: it must be 1 to 2147483647"),
            ({"B": f16(8, 2, 5, 2)}, "all sources but ids must be f32"),
            ({"x": transposed(4, 6)}, "all sources must have contiguous rows"),
            ({"x": f32(4, 5, 5, 2)}, "x must be [4, 6, n_tokens, n_seqs]"),
            ({"dt": f32(6, 4, 2)}, "dt must be [6, 5, 2], one for each head and token"),
            ({"A": f32(7, 6)}, "A must be [8, 6] or [1, 6]"),
            ({"C": f32(8, 3, 5, 2)}, "B and C must have the same shape"),
            ({"B": f32(8, 2, 4, 2), "C": f32(8, 2, 4, 2)}, "B must be [8, n_group, 5, 2]"),
            ({"B": f32(8, 4, 5, 2), "C": f32(8, 4, 5, 2)}, "the 6 heads must be a multiple of the"),
            ({"ids": i32(3)}, "ids must be i32 [2], one for each sequence"),
            ({"spans": i32(2, 2)}, "x has 2 sequences: with spans it must have at most 3"),
        )
    ),
    (lambda: wkv6(tf=f32(4, 3)), "tf must be [4, 2]"),
    (lambda: wkv6(spans=i32(2, 3)), "spans must be i32 [2, 2] with contiguous rows"),
    (lambda: wkv6(r=f32(4, 2, 5)), "all sources of a token must have the same shape"),
    (lambda: wkv6(state=f32(31, 2)), "state must be [32, n_seq]"),
    (lambda: wkv6(state=f32(32, 4)), "the 6 tokens must be a multiple of the 4 sequences"),
    (lambda: wkv6(k=f16(4, 2, 6)), "all sources must be f32 and contiguous"),
    (lambda: wkv6(tf=f16(4, 2)), "all sources must be f32 and contiguous"),
    (lambda: wkv6(k=f32(4, 2, 6, 2)), "sources must have at most 3 dimensions"),
    (lambda: wkv7(f16(4, 2, 6)), "all sources must be f32 and contiguous"),
    *(
        (lambda given=given: delta(**given), message)
        for given, message in (
            ({"K": 0}, "K is 0: it must be 1 to 2147483647"),
            ({"v": f16(8, 4, 5, 2)}, "all sources must be f32"),
            ({"q": transposed(8, 2)}, "q, k and v must have contiguous rows"),
            ({"state": transposed(8, 8)}, "g, beta and state must be contiguous"),
            ({"k": f32(8, 2, 4, 2)}, "k must be [8, n_head, 5, n_seqs]"),
            ({"q": f32(8, 3, 5, 2)}, "heads and sequences of q, 3 and 2, must divide v's"),
            ({"g": f32(2, 4, 5, 2)}, "g must be v's shape with dimension 0 of 1 or 8"),
            ({"beta": f32(8, 4, 5, 2)}, "beta must be v's shape with dimension 0 of 1"),
            ({"state": f32(8, 8, 4)}, "state must be [8, 8, 4, 2]"),
            ({"spans": i32(2, 2)}, "v has 2 sequences: with spans it must have at most 3"),
        )
    ),
    (lambda: indexer(q=f16(8, 3, 5, 2)), "q and weights must be f32"),
    (lambda: indexer(k=i32(8, 1, 7, 2)), "k must be of a float or quantised type"),
    (lambda: indexer(mask=f32(7, 5)), "mask must be f16"),
    (lambda: indexer(mask=transposed(7, 5, type="f16")), "all sources must have contiguous rows"),
    (lambda: indexer(k=f32(8, 2, 7, 2)), "k must be [8, 1, n_kv, 2]"),
    (lambda: indexer(weights=f32(3, 4, 1, 2)), "weights must be [3, 5, 1, 2]"),
    (lambda: indexer(mask=f16(7, 5, 1, 3)), "mask must be [7, 5, 1, M] where M divides 2"),
    (
        lambda: ops.dsv4_hc_comb(f32(23, 5), f32(3), f32(23), 0.1, 1),
        "dimension 0 of mixes is 23: it must be (2 + C) C for C streams",
    ),
    (lambda: ops.dsv4_hc_comb(f32(24, 5, 2), f32(3), f32(24), 0.1, 1), "mixes must have at most 2"),
    (lambda: ops.dsv4_hc_comb(f32(24, 5), f32(2), f32(24), 0.1, 1), "scale must be one row of 3"),
    (lambda: ops.dsv4_hc_comb(f32(24, 5), f32(3), f32(23), 0.1, 1), "base must be [24]"),
    (lambda: ops.dsv4_hc_comb(f32(24, 5), f32(3), f32(24), 0.1, 0), "n_iter is 0: it must be at"),
    (lambda: ops.dsv4_hc_pre(f32(8, 4, 5), f32(4, 6)), "weights must be [4, 5, 1, 1]"),
    (lambda: ops.dsv4_hc_pre(f32(8, 4, 5, 2), f32(4, 5)), "x must have at most 3 dimensions"),
    (lambda: ops.dsv4_hc_pre(f32(8, 4, 5), f16(4, 5)), "all sources must be f32"),
    (lambda: ops.dsv4_hc_pre_gated(f32(8, 4, 5), f32(4, 5), 1), "weights, the gate, must be [8, 4"),
    (lambda: hc_post(x=f32(8, 5, 2)), "x must have at most 2 dimensions"),
    (lambda: hc_post(residual=f32(7, 4, 5)), "residual must be [8, n_streams, 5]"),
    (lambda: hc_post(post=f32(5, 5)), "post must be [4, 5]"),
    (lambda: hc_post(comb=f32(4, 3, 5)), "comb must be [4, 4, 5]"),
]
