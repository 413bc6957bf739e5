"""The specifications of the tiny models with experts, and of their dense relatives."""

from __future__ import annotations

from typing import Any

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import (
    BIASES,
    EXPERTS,
    HEAD_NORMS,
    QK_NORMS,
    SHARED_GATE,
    spec,
)

GROUPS: dict[str, Any] = EXPERTS | {
    "expert_count": 6,
    "expert_group_count": 3,
    "expert_group_used_count": 2,
}
SHARED: dict[str, Any] = {
    "block_count": 3,
    "leading_dense_block_count": 1,
    "expert_shared_count": 2,
    "expert_weights_scale": 1.5,
    "expert_weights_norm": True,
}
SIGMOID = {"expert_gating_func": 2}
SCALES: dict[str, Any] = {
    "embedding_scale": 3.0,
    "residual_scale": 0.7,
    "attention.scale": 0.2,
    "logit_scale": 4.0,
}
WINDOW: dict[str, Any] = {"attention.sliding_window": 7, "rope.freq_base_swa": 1000.0}
ONE_BASE: dict[str, Any] = {"attention.sliding_window": 7}  # llama.cpp reads no other
YARN: dict[str, Any] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}
SECTIONS = {"rope.dimension_sections": [3, 3, 2, 0]}
FFN_BIASES = r".*\.(attn_output|ffn_gate|ffn_up|ffn_down)\.bias"
SELECTION = r"|.*\.exp_probs_b\.bias"
FUSED = r"|.*\.attn_qkv\.weight"
BLOCK_INDEXER = {
    f"blk.{i}.indexer.{name}.weight": ne
    for i in (1, 2)
    for name, ne in (
        ("q_proj", (64, 2 * 24)),
        ("k_proj", (64, 24)),
        ("q_norm", (24,)),
        ("k_norm", (24,)),
    )
}
ROUTER = r"|.*\.ffn_gate_inp\.weight"

EXPERT_SPECS: dict[str, Seeded] = {
    "afmoe": spec(
        "afmoe",
        QK_NORMS + SELECTION + r"|.*\.attn_gate\.weight",
        EXPERTS | SHARED | WINDOW | {"block_count": 5},
        shapes=HEAD_NORMS | {r".*\.attn_gate\.weight": (64, 64)},
    ),
    "arctic": spec("arctic", keys=EXPERTS),
    "bailingmoe": spec("bailingmoe", FUSED[1:], EXPERTS | SHARED),
    "bailingmoe2": spec(
        "bailingmoe2",
        QK_NORMS + FUSED + SELECTION,
        GROUPS
        | SHARED
        | SIGMOID
        | {"rope.dimension_count": 8, "expert_shared_feed_forward_length": 24},
        shapes=HEAD_NORMS,
    ),
    "cohere2moe": spec(
        "cohere2moe",
        r".*\.ffn_(up|gate|down)(_exps|_shexp)?\.scale",
        EXPERTS
        | SHARED
        | ONE_BASE
        | {"block_count": 6, "logit_scale": 0.25, "attention.layer_norm_rms_epsilon": 0.0},
    ),
    "cohere2moe-rms": spec(
        "cohere2moe",
        keys=EXPERTS
        | SHARED
        | {"attention.sliding_window": 7, "logit_scale": 0.25, "expert_shared_count": 0},
    ),
    "dbrx": spec("dbrx", FUSED[1:], EXPERTS | {"attention.clamp_kqv": 0.5}),
    "deepseek": spec("deepseek", BIASES, EXPERTS | SHARED | {"expert_weights_norm": False}),
    "dots1": spec(
        "dots1",
        QK_NORMS + SELECTION,
        EXPERTS | SHARED | SIGMOID | {"attention.head_count_kv": 4},
        shapes=HEAD_NORMS,
    ),
    "ernie4_5-moe": spec(
        "ernie4_5-moe",
        BIASES + SELECTION,
        EXPERTS
        | {
            "block_count": 3,
            "leading_dense_block_count": 1,
            "interleave_moe_layer_step": 1,
            "expert_shared_feed_forward_length": 24,
        },
    ),
    "exaone-moe": spec(
        "exaone-moe",
        QK_NORMS + SELECTION + r"|rope_freqs\.weight",
        EXPERTS | SHARED | SIGMOID | ONE_BASE | {"block_count": 5},
        shapes=HEAD_NORMS,
    ),
    "glm4moe": spec(
        "glm4moe",
        QK_NORMS + SELECTION + "|" + BIASES,
        GROUPS | SHARED | {"block_count": 4, "nextn_predict_layers": 1, "rope.dimension_count": 8},
        shapes=HEAD_NORMS,
        extra={"blk.3.attn_norm.weight": (64,)},
    ),
    "gpt-oss": spec(
        "gpt-oss",
        BIASES + r"|.*\.attn_output\.bias|.*\.ffn_gate_inp\.bias|.*_exps\.bias"
        r"|.*\.attn_sinks\.weight",
        EXPERTS | WINDOW | YARN | {"block_count": 4},
    ),
    "granite": spec("granite", FFN_BIASES, SCALES),
    "granite-experts": spec(
        "granite",
        FFN_BIASES + ROUTER,
        EXPERTS | SCALES | {"expert_shared_feed_forward_length": 24},
    ),
    "granite-unrotated": spec("granite", keys=SCALES | {"rope.scaling.finetuned": False}),
    "granite_swa": spec(
        "granite_swa",
        r".*\.attn_sinks\.weight|.*\.ffn_(gate_up_exps|up_shexp)\.weight" + ROUTER,
        EXPERTS
        | SCALES
        | {
            "block_count": 3,
            "attention.sliding_window": 7,
            "attention.sliding_window_pattern": [True, False, True],
            "attention.rope_pattern": [1, 0, 1],
            "expert_shared_feed_forward_length": 24,
        },
        without=r".*\.ffn_gate_(exps|shexp)\.weight",
        shapes={r".*\.ffn_up_shexp\.weight": (64, 48)},
    ),
    "granitemoe": spec(
        "granitemoe",
        FFN_BIASES + ROUTER,
        EXPERTS | SCALES | {"expert_shared_feed_forward_length": 24},
    ),
    "grok": spec(
        "grok",
        r".*\.ffn_(gate|up|down)\.weight|blk\.1\.layer_output_norm\.weight",
        EXPERTS | {"final_logit_softcapping": 3.0},
        has_gelu=True,
    ),
    "grok-1": spec(
        "grok",
        r".*\.layer_output_norm\.weight",
        EXPERTS
        | {
            "embedding_scale": 3.0,
            "attention.output_scale": 0.3,
            "attn_logit_softcapping": 2.0,
            "rope.scaling.factor": 4.0,
            "rope.scaling.yarn_ext_factor": 0.7,
        },
        has_gelu=True,
    ),
    "grovemoe": spec(
        "grovemoe",
        QK_NORMS + r"|.*\.ffn_gate_chexps\.weight",
        EXPERTS
        | {
            "expert_count": 6,
            "expert_used_count": 3,
            "experts_per_group": 2,
            "expert_group_scale": 0.3,
            "expert_chunk_feed_forward_length": 24,
        },
        shapes=HEAD_NORMS,
    ),
    "hunyuan-moe": spec(
        "hunyuan-moe",
        QK_NORMS,
        EXPERTS | {"expert_shared_feed_forward_length": 24},
        shapes=HEAD_NORMS,
    ),
    "hy_v3": spec(
        "hy_v3",
        QK_NORMS
        + r"|blk\.[12]\.ffn_gate_inp\.weight|.*\.exp_probs_b"
        + r"|.*\.ffn_(up|gate|down)(_exps|_shexp)?\.scale",
        EXPERTS | SHARED,
        shapes=HEAD_NORMS,
    ),
    "laguna": spec(
        "laguna",
        QK_NORMS + SELECTION + r"|.*\.attn_gate\.weight",
        EXPERTS
        | SHARED
        | WINDOW
        | YARN
        | {
            "block_count": 5,
            "attention.head_count": [4, 8, 8, 8, 4],
            "attention.key_length": 16,
            "attention.value_length": 16,
            "rope.dimension_count": 8,
            "rope.dimension_count_swa": 16,
        },
        shapes=HEAD_NORMS
        | {r"blk\.[04]\.attn_gate\.weight": (64, 4), r"blk\.[123]\.attn_gate\.weight": (64, 8)},
    ),
    "lfm2moe": spec(
        "lfm2moe",
        QK_NORMS + SELECTION,
        EXPERTS
        | SIGMOID
        | {
            "block_count": 4,
            "leading_dense_block_count": 1,
            "attention.head_count_kv": [0, 2, 0, 2],
            "shortconv.l_cache": 3,
        },
        shapes=HEAD_NORMS,
    ),
    "llada-moe": spec("llada-moe", QK_NORMS, EXPERTS, shapes=HEAD_NORMS),
    "llama4": spec(
        "llama4",
        r"rope_freqs\.weight",
        EXPERTS | {"block_count": 5, "expert_used_count": 1, "interleave_moe_layer_step": 2},
    ),
    "maple": spec(
        "maple",
        QK_NORMS,
        EXPERTS
        | WINDOW
        | {
            "block_count": 3,
            "attention.sliding_window_pattern": [True, False, True],
            "swiglu_clamp_exp": [0.2, 0.5, 0.0],
        },
        shapes=HEAD_NORMS,
    ),
    "mellum": spec(
        "mellum",
        QK_NORMS + r"|.*\.ffn_(up|gate|down)_exps\.scale",
        EXPERTS | ONE_BASE | YARN | {"block_count": 5},
        shapes=HEAD_NORMS,
    ),
    "mimo2": spec(
        "mimo2",
        r"blk\.[12]\.(ffn_gate_inp|attn_sinks)\.weight" + SELECTION,
        EXPERTS
        | WINDOW
        | {
            "block_count": 3,
            "attention.head_count_kv": [2, 1, 2],
            "attention.key_length": 24,
            "attention.value_length": 16,
            "attention.value_scale": 0.7,
            "attention.sliding_window_pattern": [False, True, True],
            "rope.dimension_count": 8,
        },
    ),
    "minicpm": spec("minicpm", FFN_BIASES + r"|rope_freqs\.weight"),
    "minicpm-experts": spec(
        "minicpm",
        ROUTER[1:],
        EXPERTS | {"embedding_scale": 3.0, "residual_scale": 0.7, "logit_scale": 4.0},
    ),
    "minimax-m2": spec(
        "minimax-m2",
        QK_NORMS + SELECTION,
        EXPERTS | SIGMOID | {"rope.dimension_count": 8},
        shapes={r".*\.attn_q_norm\.weight": (64,), r".*\.attn_k_norm\.weight": (32,)},
    ),
    "minimax-m3": spec(
        "minimax-m3",
        QK_NORMS + SELECTION,
        EXPERTS
        | SHARED
        | SIGMOID
        | {
            "rope.dimension_count": 8,
            "attention.indexer.head_count": 2,
            "attention.indexer.key_length": 24,
            "attention.indexer.top_k": 64,
            "attention.indexer.block_size": 4,
            "attention.indexer.local_blocks": 1,
        },
        shapes=HEAD_NORMS,
        extra=BLOCK_INDEXER,
    ),
    "mistral3": spec(
        "mistral3",
        FFN_BIASES + r"|rope_freqs\.weight|.*\.ffn_(up|gate|down)\.scale",
        YARN | {"attention.temperature_scale": 0.1},
    ),
    "mistral3-experts": spec(
        "mistral3",
        r".*\.ffn_(up|gate|down)_exps\.scale",
        EXPERTS
        | YARN
        | {"attention.temperature_scale": 0.3, "rope.scaling.yarn_log_multiplier": 0.7},
    ),
    "olmoe": spec(
        "olmoe",
        QK_NORMS,
        EXPERTS | {"attention.head_count_kv": 4},
        shapes={r".*\.attn_[qk]_norm\.weight": (64,)},
    ),
    "paddleocr": spec("paddleocr", r".*\.attn_output\.bias", SECTIONS),
    "phimoe": spec(
        "phimoe",
        BIASES + r"|.*norm\.bias|output\.bias|.*\.attn_output\.bias|rope_factors_.*\.weight",
        EXPERTS,
    ),
    "qwen2moe": spec(
        "qwen2moe",
        BIASES + r"|.*\.ffn_gate_inp_shexp\.weight",
        EXPERTS | {"expert_shared_feed_forward_length": 24},
        shapes=SHARED_GATE,
    ),
    "qwen3moe": spec(
        "qwen3moe",
        QK_NORMS + r"|.*\.ffn_(up|gate|down)_exps\.scale",
        EXPERTS | {"attention.key_length": 24, "attention.value_length": 24},
        shapes={r".*\.attn_[qk]_norm\.weight": (24,)},
    ),
    "qwen3vlmoe": spec("qwen3vlmoe", QK_NORMS, EXPERTS | SECTIONS, shapes=HEAD_NORMS),
    "rnd1": spec("rnd1", QK_NORMS, EXPERTS, shapes=HEAD_NORMS),
    "smallthinker": spec("smallthinker", keys=EXPERTS | SIGMOID | WINDOW | {"block_count": 5}),
    "step35": spec(
        "step35",
        QK_NORMS
        + SELECTION
        + r"|.*\.attn_gate\.weight|rope_freqs\.weight|blk\.[123]\.ffn_gate_inp\.weight",
        EXPERTS
        | WINDOW
        | {
            "block_count": 4,
            "attention.head_count": [4, 8, 8, 4],
            "attention.key_length": 16,
            "attention.value_length": 16,
            "attention.sliding_window_pattern": [False, True, True, False],
            "expert_shared_feed_forward_length": 24,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "swiglu_clamp_exp": [0.0, 0.2, 0.0, 0.3],
            "swiglu_clamp_shexp": [0.3, 0.0, 0.2, 0.3],
        },
        shapes=HEAD_NORMS
        | {r"blk\.[03]\.attn_gate\.weight": (64, 4), r"blk\.[12]\.attn_gate\.weight": (64, 8)},
    ),
}
