"""Every op of ggml's lists is here: enum ggml_op, ggml_unary_op and ggml_glu_op (libggml 0.25)."""

from __future__ import annotations

import pytest

from ggmlpy import ops
from ggmlpy.graph.op import OPS

# ggml's names in small letters.
_OPS = """
dup add add_id add1 acc sub mul div sqr sqrt log sin cos sum sum_rows cumsum mean argmax count_equal
repeat repeat_back concat silu_back norm rms_norm rms_norm_back group_norm l2_norm mul_mat
mul_mat_id out_prod scale set cpy cont reshape view permute transpose get_rows get_rows_back
set_rows diag diag_mask_inf diag_mask_zero soft_max soft_max_back rope rope_back clamp
conv_transpose_1d im2col im2col_back im2col_3d col2im_1d conv_2d conv_3d conv_2d_dw
conv_transpose_2d pool_1d pool_2d pool_2d_back upscale pad pad_reflect_1d roll arange
timestep_embedding argsort top_k leaky_relu tri fill flash_attn_ext flash_attn_back ssm_conv
ssm_scan win_part win_unpart get_rel_pos add_rel_pos rwkv_wkv6 gated_linear_attn rwkv_wkv7
solve_tri gated_delta_net lightning_indexer dsv4_hc_comb dsv4_hc_pre dsv4_hc_post map_custom1
map_custom2 map_custom3 custom cross_entropy_loss cross_entropy_loss_back opt_step_adamw
opt_step_sgd
"""
_UNARY = """
abs sgn neg step tanh elu relu sigmoid gelu gelu_quick silu hardswish hardsigmoid exp expm1 softplus
gelu_erf xielu floor ceil round trunc
"""
_GLU = "reglu geglu swiglu swiglu_oai geglu_erf geglu_quick swiglu_clamp"
GGML_OPS, UNARY, GLU = _OPS.split(), _UNARY.split(), _GLU.split()


@pytest.mark.parametrize("name", [*GGML_OPS, *UNARY, *GLU])
def test_there_is_such_an_op(name: str) -> None:
    assert name in OPS


def test_the_lists_are_whole() -> None:
    """101 ops with `none`, and those that stand for the lists of functions: unary and glu."""
    assert len(set(GGML_OPS)) == 101 - 3
    assert (len(UNARY), len(GLU)) == (22, 7)


def test_every_op_can_be_built_by_a_function() -> None:
    made_by = {"soft_max_back": "soft_max_ext_back", "conv_2d": "conv_2d_direct",
               "conv_2d_dw": "conv_2d_dw_direct", "conv_3d": "conv_3d_direct",
               "conv_transpose_2d": "conv_transpose_2d_p0", "rope_back": "rope_ext_back",
               "custom": "custom_4d", "view": "view_1d"}  # fmt: skip
    for name in [*GGML_OPS, *UNARY, *GLU]:
        assert made_by.get(name, name) in ops.__all__
