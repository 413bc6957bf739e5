"""Calls of rotations, softmax and attention that break a rule each; see broken_rules.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ggmlpy import ops
from ggmlpy.graph.count import Symbol
from ggmlpy.graph.tensor import Tensor, zeros
from tests.ops.values import f16, f32, i32, transposed

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


BROKEN_ATTENTION: list[tuple[Callable[[], Tensor], str]] = [
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
]
