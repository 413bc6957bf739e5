"""Ops: documentation, shape rule and numpy reference of each, one file per family.

In: tensors and parameters. Out: nodes, whose shapes are checked; values, from `reference`.

`ops.<name>` is ggml's function of that name without the context, with the same argument order.
"""

from __future__ import annotations

from ggmlpy.graph import tensor
from ggmlpy.ops.attention import flash_attn_ext, flash_attn_ext_add_sinks
from ggmlpy.ops.conv_transpose import conv_transpose_1d, conv_transpose_2d_p0
from ggmlpy.ops.convolution import (
    conv_1d,
    conv_1d_dw,
    conv_1d_dw_ph,
    conv_1d_ph,
    conv_2d,
    conv_2d_direct,
    conv_2d_dw,
    conv_2d_dw_direct,
    conv_2d_s1_ph,
    conv_2d_sk_p0,
    conv_3d,
    conv_3d_direct,
)
from ggmlpy.ops.copy import cast, cont, cont_1d, cont_2d, cont_3d, cont_4d, cpy, dup
from ggmlpy.ops.elementwise import (
    add,
    add1,
    add_id,
    clamp,
    cos,
    div,
    log,
    mul,
    scale,
    scale_bias,
    sin,
    sqr,
    sqrt,
    sub,
)
from ggmlpy.ops.glu import (
    geglu,
    geglu_erf,
    geglu_erf_split,
    geglu_erf_swapped,
    geglu_quick,
    geglu_quick_split,
    geglu_quick_swapped,
    geglu_split,
    geglu_swapped,
    reglu,
    reglu_split,
    reglu_swapped,
    swiglu,
    swiglu_clamp,
    swiglu_oai,
    swiglu_split,
    swiglu_swapped,
)
from ggmlpy.ops.hyper_connections import (
    dsv4_hc_comb,
    dsv4_hc_post,
    dsv4_hc_pre,
    dsv4_hc_pre_gated,
)
from ggmlpy.ops.im2col import col2im_1d, im2col, im2col_3d, im2col_back
from ggmlpy.ops.indexer import lightning_indexer
from ggmlpy.ops.linear_attention import gated_delta_net, rwkv_wkv6, rwkv_wkv7
from ggmlpy.ops.matmul import mul_mat, mul_mat_id, out_prod
from ggmlpy.ops.norm import group_norm, l2_norm, norm, rms_norm
from ggmlpy.ops.pool import pool_1d, pool_2d, pool_2d_back
from ggmlpy.ops.recurrent import gated_linear_attn, ssm_conv
from ggmlpy.ops.reduce import argmax, count_equal, cumsum, mean, sum, sum_rows
from ggmlpy.ops.regions import acc, set, set_1d, set_2d
from ggmlpy.ops.resize import interpolate, timestep_embedding, upscale
from ggmlpy.ops.rope import rope, rope_ext, rope_multi
from ggmlpy.ops.rows import get_rows, set_rows
from ggmlpy.ops.scan import ssm_scan
from ggmlpy.ops.shape import (
    arange,
    concat,
    fill,
    pad,
    pad_circular,
    pad_ext,
    pad_ext_circular,
    pad_reflect_1d,
    repeat,
    repeat_4d,
    repeat_back,
    roll,
)
from ggmlpy.ops.softmax import (
    diag_mask_inf,
    diag_mask_zero,
    soft_max,
    soft_max_add_sinks,
    soft_max_ext,
)
from ggmlpy.ops.sort import argsort, argsort_top_k, top_k
from ggmlpy.ops.triangular import diag, solve_tri, tri
from ggmlpy.ops.unary import (
    abs,
    ceil,
    elu,
    exp,
    expm1,
    floor,
    gelu,
    gelu_erf,
    gelu_quick,
    hardsigmoid,
    hardswish,
    leaky_relu,
    neg,
    relu,
    round,
    sgn,
    sigmoid,
    silu,
    softplus,
    step,
    tanh,
    trunc,
    xielu,
)
from ggmlpy.ops.views import (
    permute,
    reshape,
    reshape_1d,
    reshape_2d,
    reshape_3d,
    reshape_4d,
    transpose,
    view_1d,
    view_2d,
    view_3d,
    view_4d,
)
from ggmlpy.ops.windows import add_rel_pos, get_rel_pos, win_part, win_unpart

# Every public function, by family.
__all__ = [  # noqa: RUF022
    # views
    "view_1d",
    "view_2d",
    "view_3d",
    "view_4d",
    "reshape",
    "reshape_1d",
    "reshape_2d",
    "reshape_3d",
    "reshape_4d",
    "permute",
    "transpose",
    # copies
    "dup",
    "cont",
    "cont_1d",
    "cont_2d",
    "cont_3d",
    "cont_4d",
    "cast",
    "cpy",
    # elementwise
    "add",
    "add1",
    "add_id",
    "sub",
    "mul",
    "div",
    "sqr",
    "sqrt",
    "log",
    "sin",
    "cos",
    "scale",
    "scale_bias",
    "clamp",
    # unary
    "abs",
    "sgn",
    "neg",
    "step",
    "tanh",
    "elu",
    "relu",
    "leaky_relu",
    "sigmoid",
    "gelu",
    "gelu_quick",
    "gelu_erf",
    "silu",
    "hardswish",
    "hardsigmoid",
    "exp",
    "expm1",
    "softplus",
    "xielu",
    "floor",
    "ceil",
    "round",
    "trunc",
    # gated
    "reglu",
    "reglu_swapped",
    "reglu_split",
    "geglu",
    "geglu_swapped",
    "geglu_split",
    "swiglu",
    "swiglu_swapped",
    "swiglu_split",
    "geglu_erf",
    "geglu_erf_swapped",
    "geglu_erf_split",
    "geglu_quick",
    "geglu_quick_swapped",
    "geglu_quick_split",
    "swiglu_oai",
    "swiglu_clamp",
    # normalisations
    "norm",
    "rms_norm",
    "l2_norm",
    "group_norm",
    # products
    "mul_mat",
    "mul_mat_id",
    "out_prod",
    "solve_tri",
    # rows
    "get_rows",
    "set_rows",
    # positions and attention
    "rope",
    "rope_ext",
    "rope_multi",
    "soft_max",
    "soft_max_ext",
    "soft_max_add_sinks",
    "diag_mask_inf",
    "diag_mask_zero",
    "flash_attn_ext",
    "flash_attn_ext_add_sinks",
    # shapes
    "concat",
    "repeat",
    "repeat_4d",
    "repeat_back",
    "pad",
    "pad_ext",
    "pad_circular",
    "pad_ext_circular",
    "pad_reflect_1d",
    "roll",
    "fill",
    "arange",
    "diag",
    "tri",
    "acc",
    "set",
    "set_1d",
    "set_2d",
    # images
    "upscale",
    "interpolate",
    "timestep_embedding",
    "win_part",
    "win_unpart",
    "get_rel_pos",
    "add_rel_pos",
    # reductions and orders
    "sum",
    "sum_rows",
    "mean",
    "argmax",
    "cumsum",
    "count_equal",
    "argsort",
    "top_k",
    "argsort_top_k",
    # recurrent layers and pooling
    "ssm_conv",
    "gated_linear_attn",
    "ssm_scan",
    "rwkv_wkv6",
    "rwkv_wkv7",
    "gated_delta_net",
    "lightning_indexer",
    "dsv4_hc_comb",
    "dsv4_hc_pre",
    "dsv4_hc_pre_gated",
    "dsv4_hc_post",
    "pool_1d",
    "pool_2d",
    "pool_2d_back",
    # convolutions
    "im2col",
    "im2col_back",
    "im2col_3d",
    "col2im_1d",
    "conv_1d",
    "conv_1d_ph",
    "conv_1d_dw",
    "conv_1d_dw_ph",
    "conv_2d",
    "conv_2d_sk_p0",
    "conv_2d_s1_ph",
    "conv_2d_direct",
    "conv_2d_dw",
    "conv_2d_dw_direct",
    "conv_3d",
    "conv_3d_direct",
    "conv_transpose_1d",
    "conv_transpose_2d_p0",
]

tensor.FUNCTIONS.update({name: globals()[name] for name in __all__})
