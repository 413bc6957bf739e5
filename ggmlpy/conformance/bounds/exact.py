"""Ops that move, compare or count: their results are exact."""

from __future__ import annotations

EXACT = frozenset({
    # copies and rows; a conversion rounds to the nearest, ties to even
    "dup", "cont", "cast", "cpy", "get_rows", "set_rows", "set", "get_rel_pos",
    # shapes
    "concat", "repeat", "pad", "pad_reflect_1d", "roll", "diag", "diag_mask_inf", "diag_mask_zero",
    "tri", "fill", "win_part", "win_unpart", "im2col", "im2col_3d",
    # functions of the caller, which every backend calls
    "map_custom1", "map_custom2", "map_custom3", "custom",
    # selections
    "argmax", "argsort", "top_k", "count_equal", "clamp", "abs", "sgn", "neg", "step", "relu",
    "floor", "ceil", "round", "trunc",
})  # fmt: skip
