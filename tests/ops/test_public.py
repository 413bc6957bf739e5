"""What users and other parts rely on: names, documentation, operators' table, equality."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from ggmlpy import ops
from ggmlpy.graph.op import OPS, Op
from ggmlpy.graph.tensor import FUNCTIONS

# ggml's argument order, where a slip would still pass the shape rules of square inputs.
SIGNATURES = {
    "mul_mat": "a b",
    "mul_mat_id": "as_ b ids",
    "set_rows": "a b c",
    "cpy": "a b",
    "soft_max_ext": "a mask scale max_bias",
    "flash_attn_ext": "q k v mask scale max_bias logit_softcap cells seen",
    "rope_ext": "a b c n_dims mode n_ctx_orig freq_base freq_scale ext_factor attn_factor "
    "beta_fast beta_slow",
    "rope_multi": "a b c n_dims sections mode n_ctx_orig freq_base freq_scale ext_factor "
    "attn_factor beta_fast beta_slow",
    "view_3d": "a ne0 ne1 ne2 nb1 nb2 offset",
    "view_4d": "a ne0 ne1 ne2 ne3 nb1 nb2 nb3 offset",
    "permute": "a axis0 axis1 axis2 axis3",
    "group_norm": "a n_groups eps",
    "swiglu_oai": "a b alpha limit",
    "xielu": "a alpha_n alpha_p beta eps",
    "pad_ext": "a lp0 rp0 lp1 rp1 lp2 rp2 lp3 rp3",
    "gated_linear_attn": "k v q g state scale spans",
    "ssm_scan": "s x dt A B C ids K spans",
    "rwkv_wkv6": "k v r tf td state spans",
    "rwkv_wkv7": "r w k v a b state spans",
    "gated_delta_net": "q k v g beta state K spans",
    "lightning_indexer": "q k weights mask",
    "dsv4_hc_comb": "mixes scale base eps n_iter",
    "dsv4_hc_pre_gated": "x gate scale",
    "dsv4_hc_post": "x residual post comb",
    "pool_2d": "a op k0 k1 s0 s1 p0 p1",
    "im2col": "a b s0 s1 p0 p1 d0 d1 is_2D dst_type",
    "im2col_back": "a b ne s0 s1 p0 p1 d0 d1 is_2D",
    "im2col_3d": "a b IC s0 s1 s2 p0 p1 p2 d0 d1 d2 dst_type",
    "col2im_1d": "a s0 oc p0",
    "conv_1d": "a b s0 p0 d0",
    "conv_2d_direct": "a b s0 s1 p0 p1 d0 d1",
    "conv_3d_direct": "a b s0 s1 s2 p0 p1 p2 d0 d1 d2 n_channels n_batch n_channels_out",
    "conv_transpose_1d": "a b s0 p0 d0",
    "conv_transpose_2d_p0": "a b stride",
    "pool_1d": "a op k0 s0 p0",
    "pool_2d_back": "a af op k0 k1 s0 s1 p0 p1",
    "acc": "a b nb1 nb2 nb3 offset",
    "set": "a b nb1 nb2 nb3 offset",
    "set_2d": "a b nb1 offset",
    "solve_tri": "a b left lower uni",
    "win_unpart": "a w0 h0 w",
    "interpolate": "a ne0 ne1 ne2 ne3 mode",
    "timestep_embedding": "timesteps dim max_period",
    "add_rel_pos": "a pw ph",
}


@pytest.mark.parametrize("name", ops.__all__)
def test_each_function_is_documented_and_filed(name: str) -> None:
    function = getattr(ops, name)
    assert callable(function)
    assert function.__name__ == name
    assert f"`ggml_{name}" in (function.__doc__ or "")
    assert FUNCTIONS[name] is function


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_in_the_order_of_ggml(name: str) -> None:
    assert " ".join(inspect.signature(getattr(ops, name)).parameters) == SIGNATURES[name]


@pytest.mark.parametrize("name", OPS)
def test_each_op_is_documented_data(name: str) -> None:
    cls: type[Op] = OPS[name]
    assert cls.name == name
    assert cls.__doc__ is not None
    assert len(cls.__doc__) > 15
    assert dataclasses.is_dataclass(cls)
    values = [1] * len(dataclasses.fields(cls))
    one, other = cls(*values), cls(*values)
    assert one == other
    assert hash(one) == hash(other)
    assert one.params().keys() == {f.name for f in dataclasses.fields(cls)}


def test_different_ops_are_different() -> None:
    made = [cls(*[1] * len(dataclasses.fields(cls))) for cls in OPS.values()]  # type: ignore[arg-type]
    assert len(set(made)) == len(OPS)
