"""The specifications of the tiny models with recurrent layers."""

from __future__ import annotations

from typing import Any

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import (
    BIASES,
    EXPERTS,
    FFN_BIASES,
    FUSED_UP,
    FUSED_UP_SHAPE,
    GATE,
    HEAD_NORMS,
    OUTPUT,
    QK_NORMS,
    spec,
)

MAMBA: dict[str, Any] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 6,
    "ssm.time_step_rank": 5,
}
MAMBA2: dict[str, Any] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 96,
    "ssm.state_size": 20,
    "ssm.time_step_rank": 6,
    "ssm.group_count": 2,
}
GRANITE: dict[str, Any] = MAMBA2 | {
    "block_count": 4,
    "attention.head_count_kv": [0, 2, 0, 1],
    "ssm.inner_size": 128,
    "ssm.time_step_rank": 8,
    "embedding_scale": 3.0,
    "residual_scale": 0.7,
    "attention.scale": 0.2,
    "logit_scale": 4.0,
}

RECURRENT_SPECS: dict[str, Seeded] = {
    "falcon-h1": spec(
        "falcon-h1",
        r".*\.ssm_conv1d\.bias|.*\.ssm_norm\.weight|.*\.ffn_(gate|up|down)\.bias",
        MAMBA2 | {"attention.head_count_kv": 1},
        renamed={r"(.*\.ffn_norm)\.weight": r"\1"},
    ),
    "granitehybrid": spec(
        "granitehybrid",
        "|".join(
            (BIASES, FFN_BIASES, r".*\.ssm_conv1d\.bias|.*\.ssm_norm\.weight|.*\.attn_output\.bias")
        ),
        GRANITE | {"rope.scaling.finetuned": True},
    ),
    "granitehybrid-experts": spec(
        "granitehybrid",
        r".*\.ssm_conv1d\.bias|.*\.ssm_norm\.weight|.*\.ffn_gate_inp\.weight",
        GRANITE
        | EXPERTS
        | {"rope.scaling.finetuned": False, "expert_shared_feed_forward_length": 24},
    ),
    "jamba": spec(
        "jamba",
        r".*\.ssm_conv1d\.bias|.*\.ssm_(dt|b|c)_norm\.weight|.*\.ssm_dt\.bias"
        r"|blk\.[13]\.ffn_gate_inp\.weight",
        MAMBA | EXPERTS | {"block_count": 4, "attention.head_count_kv": [0, 0, 2, 0]},
    ),
    "lfm2": spec(
        "lfm2",
        QK_NORMS,
        {
            "block_count": 5,
            "attention.head_count_kv": [0, 2, 0, 1, 0],
            "shortconv.l_cache": 3,
        },
        without=OUTPUT,
        shapes=HEAD_NORMS,
    ),
    "lfm2-windows": spec(
        "lfm2",
        QK_NORMS,
        {
            "block_count": 3,
            "attention.head_count_kv": [0, 0, 4],
            "attention.sliding_window": 7,
            "shortconv.l_cache": 4,
        },
        shapes=HEAD_NORMS,
    ),
    "mamba": spec("mamba", r".*\.ssm_conv1d\.bias|.*\.ssm_dt\.bias", MAMBA),
    "mamba2": spec("mamba2", r".*\.ssm_conv1d\.bias|.*\.ssm_norm\.weight", MAMBA2),
    "nemotron_h": spec(
        "nemotron_h",
        r".*\.ssm_conv1d\.bias|.*\.ssm_norm\.weight|.*\.attn_output\.bias",
        MAMBA2
        | {
            "block_count": 5,
            "attention.head_count": 4,
            "attention.head_count_kv": [0, 2, 0, 0, 1],
            "attention.key_length": 16,
            "attention.value_length": 16,
            "feed_forward_length": [0, 0, 88, 0, 0],
        },
    ),
    "nemotron_h-experts": spec(
        "nemotron_h_moe",
        r".*\.ssm_conv1d\.bias|.*\.ssm_norm\.weight|.*\.ffn_(gate_inp|latent_up|latent_down)\.weight"
        r"|.*\.exp_probs_b\.bias",
        MAMBA2
        | EXPERTS
        | {
            "block_count": 4,
            "attention.head_count": 4,
            "attention.head_count_kv": [0, 0, 2, 0],
            "attention.key_length": 16,
            "attention.value_length": 16,
            "feed_forward_length": [0, 88, 0, 88],
            "expert_shared_feed_forward_length": 24,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "moe_latent_size": 32,
        },
    ),
    "plamo2": spec(
        "plamo2",
        "|".join(
            (
                r".*\.ssm_(dt|b|c)_norm|.*\.post_(attention|ffw)_norm",
                r".*\.ssm_dt\.bias|.*\.attn_qkv\.weight",
                QK_NORMS,
                FUSED_UP,
            )
        ),
        MAMBA2
        | {
            "ssm.group_count": 0,
            "block_count": 4,
            "attention.head_count_kv": [0, 2, 0, 1],
            "attention.key_length": 24,
            "attention.value_length": 16,
        },
        without=f"{GATE}|{OUTPUT}",
        shapes={
            r".*\.attn_q_norm\.weight": (24, 4),
            r"blk\.1\.attn_k_norm\.weight": (24, 2),
            r"blk\.3\.attn_k_norm\.weight": (24, 1),
        }
        | FUSED_UP_SHAPE,
    ),
}
