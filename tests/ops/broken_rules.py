"""Calls of ops that break a rule each, and what the message must say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ggmlpy.ops
from ggmlpy import ops
from ggmlpy.graph.count import Symbol
from ggmlpy.graph.tensor import Tensor, zeros
from tests.ops.values import blank

H = Symbol("H", 2).count
ROPE: dict[str, Any] = {
    "n_ctx_orig": 512,
    "freq_base": 1e4,
    "freq_scale": 1.0,
    "ext_factor": 0.0,
    "attn_factor": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


def f32(*ne: int) -> Tensor:
    return blank("f32", *ne)


def f16(*ne: int) -> Tensor:
    return blank("f16", *ne)


def i32(*ne: int) -> Tensor:
    return blank("i32", *ne)


def transposed(*ne: int, type: str = "f32") -> Tensor:
    """Rows that are not contiguous; ne as given."""
    return ops.transpose(blank(type, ne[1], ne[0], *ne[2:]))


def rope(x: Tensor, pos: Tensor, c: Tensor | None, n_dims: int, mode: int, **p: Any) -> Tensor:
    sections = p.pop("sections", (0, 0, 0, 0))
    return ops.rope_multi(x, pos, c, n_dims, sections, mode, **{**ROPE, **p})


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: float = 0) -> Tensor:
    return ops.flash_attn_ext(q, k, v, mask, 1.0, bias, 0)


def flash_listed(
    k: Tensor, cells: Tensor | None, seen: Tensor | None, mask: Tensor | None = None
) -> Tensor:
    """2 sequences of 3 queries of 4 heads over lists."""
    q = f32(8, 3, 4, 2)
    return ops.flash_attn_ext(q, k, k, mask, 1.0, 0.0, 0.0, cells=cells, seen=seen)


def flash_ok(mask: Tensor | None = None) -> Tensor:
    return flash(f32(8, 3, 4), f16(8, 5, 2), f16(8, 5, 2), mask)


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


BROKEN: list[tuple[Callable[[], Tensor], str]] = [
    # views
    (lambda: ops.view_2d(f32(8), 2, 2, 6, 0), "view: x is f32 [8]: nb1 is 6: it must be a multi"),
    (lambda: ops.view_2d(f32(8), 2, 2, -8, 8), "nb1 is -8"),
    (lambda: ops.view_1d(f32(8), 2, 2), "offset is 2: it must be a multiple of f32's 4 bytes"),
    (lambda: ops.view_1d(f32(8), 2, -4), "offset is -4"),
    (lambda: ops.view_4d(f32(8), 1, 2**20, 2**20, 2**20, 0, 0, 0, 0), "it must have at most 2^59"),
    (lambda: ops.view_1d(f32(8), 9, 0), "the view ends at byte 36 and x at byte 32"),
    (lambda: ops.view_2d(f32(8, 4), 4, 4, 48, 0), "the view ends at byte 160 and x at byte 128"),
    (lambda: ops.view_1d(blank("q8_0", 64), 16, 0), "blocks of 32 elements, a row has 16"),
    (lambda: ops.view_1d(blank("q8_0", 64), 32, 32), "offset is 32: it must be a multiple of q8_0"),
    (lambda: ops.reshape_2d(f32(8), 3, 2), "ne [3, 2] has 6 elements and x has 8: they must be"),
    (
        lambda: ops.reshape_1d(transposed(4, 2), 8),
        "x must be contiguous (take ops.cont of it first)",
    ),
    (lambda: ops.reshape_2d(blank("q8_0", 64), 16, 4), "blocks of 32 elements, a row has 16"),
    (lambda: ops.reshape_2d(f32(8), 0, 8), "ne is [0, 8]"),
    (lambda: ops.permute(f32(8), 0, 1, 2, 2), "axes are [0, 1, 2, 2]: they must be 0, 1, 2 and 3"),
    (lambda: ops.permute(blank("q8_0", 32, 2), 1, 0, 2, 3), "dimension 0 of q8_0 must stay"),
    (lambda: ops.transpose(blank("q4_K", 256, 2)), "dimension 0 of q4_K must stay dimension 0"),
    # copies
    (lambda: ops.cont_2d(f32(8), 3, 3), "ne [3, 3] has 9 elements and x has 8"),
    (lambda: ops.cast(i32(8), "f16"), "there is no copy from i32 to f16"),
    (lambda: ops.cast(f32(256), "iq2_xs"), "there is no copy from f32 to iq2_xs"),
    (lambda: ops.cast(blank("q8_0", 32), "q4_0"), "there is no copy from q8_0 to q4_0"),
    (lambda: ops.cast(f32(33), "q8_0"), "blocks of 32 elements, a row has 33"),
    (lambda: ops.cpy(f32(8), f32(9)), "x has 8 elements and dst has 9: they must be equal"),
    # elementwise
    (lambda: ops.mul(i32(4), f32(4)), "mul: a is i32 [4], b is f32 [4]: a must be f32, f16 or"),
    (lambda: ops.mul(f32(4), i32(4)), "b must be f32, f16 or bf16"),
    (lambda: ops.mul(f32(4, 3), f32(4, 2)), "every dimension of a must be a multiple of b's"),
    (lambda: ops.add(f32(4), f32(8)), "every dimension of a must be a multiple of b's"),
    (lambda: ops.add(blank("iq2_xs", 256), f32(256)), "a type with a quantiser, iq2_xs has none"),
    (lambda: ops.add(blank("q8_0", 32), f16(32)), "b must be f32 where a is quantised"),
    (lambda: ops.add(blank("q8_0", 32), f32(5)), "every dimension of a must be a multiple of b's"),
    (lambda: ops.add1(f32(4), f32(2)), "b has 2 elements: it must have one"),
    (lambda: ops.add_id(f16(4, 2, 3), f32(4, 9), i32(2, 3)), "a and b must be f32"),
    (lambda: ops.add_id(f32(4, 2, 3), f32(4, 9), f32(2, 3)), "ids must be i32"),
    (lambda: ops.add_id(f32(4, 2, 3), f32(5, 9), i32(2, 3)), "first dimensions 4 and 5 must be"),
    (lambda: ops.add_id(f32(4, 2, 3, 2), f32(4, 9), i32(2, 3)), "a must have at most 3 dimen"),
    (lambda: ops.add_id(f32(4, 2, 3), f32(4, 9, 2), i32(2, 3)), "b must have at most 2 dimen"),
    (lambda: ops.add_id(f32(4, 2, 3), f32(4, 9), i32(3, 2)), "ids must be [2, 3]: one for each"),
    (lambda: ops.sqr(i32(4)), "x must be f32, f16 or bf16"),
    (lambda: ops.clamp(f32(4), 2, 1), "min 2 must not be above max 1"),
    (lambda: ops.silu(transposed(4, 3)), "silu: x is f32 [4, 3]: x must have contiguous rows"),
    # gated
    (lambda: ops.swiglu(blank("bf16", 4)), "swiglu: a is bf16 [4]: a must be f32 or f16"),
    (lambda: ops.swiglu(transposed(4, 3)), "a must have contiguous rows"),
    (lambda: ops.swiglu(f32(5)), "a's rows must split in halves, they have 5 columns"),
    (lambda: ops.swiglu_split(f32(4), f32(5)), "a and b must have the same shape and type"),
    (lambda: ops.swiglu_split(f32(4), f16(4)), "a and b must have the same shape and type"),
    (lambda: ops.swiglu_split(f32(4, 3), transposed(4, 3)), "b must have contiguous rows"),
    (
        lambda: ggmlpy.ops.glu.Swiglu(swapped=True).node(f32(4), f32(4)),
        "swapped is for one input: give a and b in the other order",
    ),
    # normalisations
    (lambda: ops.rms_norm(f16(4), 1e-5), "x must be f32 with contiguous rows"),
    (lambda: ops.norm(transposed(4, 3), 1e-5), "x must be f32 with contiguous rows"),
    (lambda: ops.l2_norm(transposed(4, 3), 1e-5), "x must be f32 with contiguous rows"),
    (lambda: ops.group_norm(transposed(4, 3), 1, 1e-5), "x must be f32 and contiguous"),
    (lambda: ops.group_norm(f32(4, 3, 6), 7, 1e-5), "n_groups is 7: it must be 1 to 6"),
    # products
    (
        lambda: ops.mul_mat(f16(14, 4), f32(4, 7)),
        "mul_mat: weight is f16 [14, 4], x is f32 [4, 7]: first dimensions 14 and 4 differ",
    ),
    (lambda: ops.mul_mat(i32(4, 3), f32(4)), "the weight must be quantised, f32, f16 or bf16"),
    (lambda: ops.mul_mat(transposed(4, 3), f32(4)), "the weight must have contiguous rows"),
    (lambda: ops.mul_mat(f32(4, 3), i32(4)), "x must be f32, f16 or bf16"),
    (
        lambda: ops.mul_mat(f32(4, 3, 2), f32(4, 1, 3)),
        "dimensions 2 and 3 of x [3, 1] must be multiples of the weight's [2, 1]",
    ),
    (lambda: ops.mul_mat_id(f32(4, 3, 5), f32(4, 1, 2), f32(2, 2)), "ids must be i32"),
    (
        lambda: ops.mul_mat_id(f32(4, 3, 5, 2), f32(4, 1, 2), i32(2, 2)),
        "the weight must have at most",
    ),
    (lambda: ops.mul_mat_id(f32(4, 3, 5), f32(4, 1, 2, 2), i32(2, 2)), "x must have at most 3 dim"),
    (lambda: ops.mul_mat_id(f32(4, 3, 5), f32(4, 1, 2), i32(2, 3)), "ids must be [2, 2]: a list"),
    (
        lambda: ops.mul_mat_id(f32(4, 3, 5), f32(4, 2, 2), i32(3, 2)),
        "dimension 1 of x, 2, must divide the 3 experts of a token",
    ),
    # rows
    (
        lambda: ops.get_rows(f32(4, 3), f32(2)),
        "get_rows: x is f32 [4, 3], ids is f32 [2]: ids must",
    ),
    (lambda: ops.get_rows(transposed(4, 3), i32(2)), "x must have contiguous rows"),
    (lambda: ops.get_rows(blank("i8", 4, 3), i32(2)), "x must be floats or i32"),
    (lambda: ops.get_rows(f32(4, 3, 2), i32(2)), "ids must be [2, 2, 1]: a list for every matrix"),
    (lambda: ops.set_rows(f32(4, 9), i32(4, 2), i32(2)), "x must be f32 or f16"),
    (lambda: ops.set_rows(f32(4, 9), f32(4, 2), f32(2)), "ids must be i64 or i32"),
    (lambda: ops.set_rows(blank("iq2_xs", 256, 9), f32(256, 2), i32(2)), "dst must be of a float"),
    (
        lambda: ops.set_rows(f32(4, 9), transposed(4, 2), i32(2)),
        "x and dst must have contiguous rows",
    ),
    (lambda: ops.set_rows(f32(5, 9), f32(4, 2), i32(2)), "dst must be [4, 9, 1, 1]: like x but"),
    (lambda: ops.set_rows(f32(4, 9), f32(4, 2), i32(3)), "ids must have 2 entries, one for each"),
    (
        lambda: ops.set_rows(f32(4, 9, 3), f32(4, 2, 3), i32(2, 2)),
        "dimensions 1 and 2 of ids must divide 3 and 1, its dimension 3 must be 1",
    ),
    # rope
    (lambda: rope(i32(8, 1, 3), i32(3), None, 8, 0), "x must be f32 or f16"),
    (lambda: rope(transposed(8, 2, 3), i32(3), None, 8, 0), "x must have contiguous rows"),
    (lambda: rope(f32(8, 1, 3), i32(3), None, 7, 0), "n_dims is 7: it must be even, 2 to 8"),
    (lambda: rope(f32(8, 1, 3), i32(3), None, 10, 0), "n_dims is 10: it must be even, 2 to 8"),
    (
        lambda: rope(f32(8, 1, 3), i32(12), None, 8, 24, sections=(2, 2, 0, 0)),
        "n_dims is 8: it must be half of 8 in mode VISION",
    ),
    (lambda: rope(f32(8, 1, 3), i32(4), None, 8, 0), "pos must be i32 [3]: 1 for each of 3 tokens"),
    (
        lambda: rope(f32(8, 1, 3), i32(3), None, 8, 8, sections=(2, 2, 0, 0)),
        "pos must be i32 [12]: 4 for each of 3 tokens",
    ),
    (lambda: rope(f32(8, 1, 3), i32(3), f16(4), 8, 0), "freq_factors must be f32 and contiguous"),
    (
        lambda: rope(f32(8, 1, 3), i32(3), f32(3), 8, 0),
        "freq_factors has 3 entries: it must have 4",
    ),
    (
        lambda: rope(f32(8, 1, 3), i32(3), None, 8, 0, sections=(2, 2, 0, 0)),
        "sections are [2, 2, 0, 0]: mode NORMAL has none",
    ),
    (
        lambda: rope(f32(8, 1, 3), i32(12), None, 8, 8),
        "sections are [0, 0, 0, 0]: mode MROPE needs one of the first three",
    ),
    (
        lambda: rope(f32(8, 1, 3), i32(12), None, 8, 8, sections=(4, -1, 0, 0)),
        "sections are [4, -1, 0, 0]: none may be below 0",
    ),
    (
        lambda: rope(f32(8, 1, 3), i32(3), None, 8, 0, n_ctx_orig=0, ext_factor=1.0),
        "ext_factor is 1: YaRN needs n_ctx_orig, beta_fast and beta_slow above 0",
    ),
    *(
        (
            lambda wrong=wrong: rope(f32(8, 1, 3), i32(3), None, 8, 0, ext_factor=1.0, **wrong),
            "YaRN needs freq_base above 1 and freq_scale above 0",
        )
        for wrong in (
            {"freq_base": 1.0},
            {"freq_base": math.nan},
            {"freq_scale": 0.0},
        )
    ),
    (lambda: rope(f32(8, 1, 3), i32(3), None, 8, 5), "mode is 5: it must be one of [0, 2, 8, 24,"),
    (lambda: rope(f32(8, 1, 3), i32(3), None, 8, 0, sections=(1,)), "there are 1 sections"),
    # softmax
    (lambda: ops.soft_max(f16(4)), "soft_max: x is f16 [4]: x must be f32 with contiguous"),
    (lambda: ops.soft_max_ext(f32(4), i32(4), 1, 0), "mask must be f16 or f32"),
    (lambda: ops.soft_max_ext(f32(4, 2), transposed(4, 2), 1, 0), "mask must be contiguous"),
    (lambda: ops.soft_max_ext(f32(4), f16(5), 1, 0), "dimension 0 of mask must be 4, one for each"),
    (
        lambda: ops.soft_max_ext(f32(4, 3), f16(4, 2), 1, 0),
        "dimension 1 of mask must be at least 3",
    ),
    (
        lambda: ops.soft_max_ext(f32(4, 3, 4), f16(4, 3, 3), 1, 0),
        "dimensions 2 and 3 of mask must divide 4 and 1",
    ),
    (lambda: ops.soft_max_ext(f32(4), None, 1, 8), "max_bias is 8: it must be 0, or above 0 with"),
    (lambda: ops.soft_max_ext(f32(4), f16(4), 1, -1), "max_bias is -1"),
    (
        lambda: ops.soft_max_ext(zeros("f32", (4, 3, H)), f16(4, 3), 1, 8),
        "there are H heads: with max_bias their number must be fixed",
    ),
    (lambda: ops.soft_max_add_sinks(ops.soft_max(f32(4, 3, 2)), f32(3)), "sinks must be f32 [2]"),
    (lambda: ops.soft_max_add_sinks(f32(4), f32(1)), "sinks are for a result of soft_max"),
    (
        lambda: ops.soft_max_add_sinks(
            ops.soft_max_add_sinks(ops.soft_max(f32(4)), f32(1)), f32(1)
        ),
        "has its sinks already",
    ),
    (lambda: ops.diag_mask_inf(f16(4), 0), "x must be f32"),
    (lambda: ops.diag_mask_inf(f32(4), -1), "n_past is -1: it must not be below 0"),
    # attention
    (lambda: flash(f16(8, 3, 4), f16(8, 5, 2), f16(8, 5, 2)), "q must be f32"),
    (lambda: flash(f32(8, 3, 4), i32(8, 5, 2), f16(8, 5, 2)), "k must be of a float type or quant"),
    (lambda: flash(f32(8, 3, 4), f16(8, 5, 2), i32(8, 5, 2)), "v must be of a float type or quant"),
    (
        lambda: flash(f32(8, 3, 4), f16(8, 5, 2), transposed(8, 5, 2, type="f16")),
        "rows of q, k and v must be contiguous",
    ),
    (lambda: flash(f32(8, 3, 4), f16(9, 5, 2), f16(8, 5, 2)), "head sizes of q and k, 8 and 9"),
    (lambda: flash(f32(8, 3, 4), f16(8, 5, 2), f16(8, 6, 2)), "k and v must have the same dimen"),
    (
        lambda: flash(f32(8, 3, 4), f16(8, 5, 3), f16(8, 5, 3)),
        "the 4 heads of q must be a multiple",
    ),
    (lambda: flash(f32(8, 3, 4, 2), f16(8, 5, 2), f16(8, 5, 2)), "dimension 3 of q, 2, must be"),
    (lambda: flash_ok(f32(5, 3)), "mask must be f16"),
    (lambda: flash_ok(f16(6, 3)), "dimension 0 of mask must be 5, one for each key"),
    (lambda: flash_ok(f16(5, 2)), "dimension 1 of mask must be at least 3, the queries"),
    (lambda: flash(f32(8, 3, 4), f16(8, 5, 2), f16(8, 5, 2), None, 8.0), "max_bias is 8"),
    (lambda: flash_listed(f16(8, 5, 2), i32(4, 2), None), "cells and seen must be given together"),
    (lambda: flash_listed(f16(8, 5, 2), f32(4, 2), i32(3, 3, 2)), "cells must be i32 [n_max, n_li"),
    (lambda: flash_listed(f16(8, 5, 2), i32(4, 2, 2), i32(3, 3, 2)), "cells must be i32 [n_max, "),
    (lambda: flash_listed(f16(8, 5, 2), i32(4, 2), i32(3, 2, 3)), "seen must be i32 [3, 3, 2]"),
    (
        lambda: flash_listed(f16(8, 5, 2, 2), i32(4, 2), i32(3, 3, 2)),
        "streams of k must follow each other",
    ),
    (
        lambda: flash_listed(f16(8, 5, 2), i32(4, 2), i32(3, 3, 2), f16(4, 2)),
        "dimension 1 of mask must be at least 3, the queries",
    ),
    (lambda: ops.flash_attn_ext_add_sinks(flash_ok(), f32(2)), "sinks must be f32 [4]"),
    (lambda: ops.flash_attn_ext_add_sinks(f32(8), f32(4)), "sinks are for a result of flash_attn"),
    # shapes
    (lambda: ops.concat(f32(4), f32(4), 4), "dim is 4: it must be 0 to 3"),
    (lambda: ops.concat(f32(4), f16(4), 0), "a and b must have the same type"),
    (lambda: ops.concat(blank("q8_0", 32), blank("q8_0", 32), 1), "a and b must not be quantised"),
    (lambda: ops.concat(f32(4, 2), f32(4, 3), 0), "a and b must be equal in every dimension but 0"),
    (lambda: ops.repeat_4d(blank("q8_0", 32), 64, 1, 1, 1), "x must not be quantised"),
    (lambda: ops.repeat_4d(f32(4), 6, 1, 1, 1), "every dimension of [6] must be a multiple of x's"),
    (lambda: ops.pad(f16(4), 1, 0, 0, 0), "x must be f32"),
    (lambda: ops.pad(f32(4), -1, 0, 0, 0), "paddings are [(0, -1), (0, 0), (0, 0), (0, 0)]"),
    (lambda: ops.arange(1, 1, 1), "from 1 to 1 by 1 is no value: there must be at least one"),
    (lambda: ops.arange(0, 1, 0), "from 0 to 1 by 0 is no value"),
    (lambda: ops.arange(0, math.inf, 1), "from 0 to inf by 1 is no value"),
    (lambda: ops.arange(0, math.nan, 1), "from 0 to nan by 1 is no value"),
    # reductions and orders
    (lambda: ops.sum(f16(4)), "x must be f32 with contiguous rows"),
    (lambda: ops.argmax(f32(4, 3, 2)), "x must have at most 2 dimensions"),
    (lambda: ops.argsort(f16(4), 0), "x must be f32 with contiguous rows"),
    (lambda: ops.argsort(f32(4), 2), "order is 2: it must be 0 (up) or 1 (down)"),
    (lambda: ops.top_k(f16(4), 2), "x must be f32 with contiguous rows"),
    (lambda: ops.top_k(f32(4), 5), "k is 5: it must be 1 to 4, the columns"),
    (lambda: ops.argsort_top_k(f32(4), 0), "k is 0: it must be 1 to 4, the columns"),
    # recurrent layers and pooling
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
    (lambda: ops.pool_2d(f16(4, 4), 0, 2, 2, 1, 1, 0, 0), "x must be f32 and contiguous"),
    (lambda: ops.pool_2d(f32(4, 4), 0, 2, 2, 1, 1, 0, 2), "window 2, step 1, padding 2 along dim"),
    (lambda: ops.pool_2d(f32(4, 4), 0, 5, 2, 1, 1, 0, 0), "dimension 0 with padding is 4: below"),
    (lambda: ops.pool_2d(f32(4, 4), 2, 2, 2, 1, 1, 0, 0), "op is 2: it must be 0 (largest) or 1"),
    (lambda: ops.pool_2d(f32(4, 4), 0, 2, 2, 1, 1, 0.5, 0), "paddings 0.5 and 0 must be whole"),
]
