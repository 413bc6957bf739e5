"""The specifications of the tiny models with delta nets."""

from __future__ import annotations

from typing import Any

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import EXPERTS, SHARED_GATE, spec
from tests.models.seeded_specs.latent import LATENT

DELTA: dict[str, Any] = {
    "attention.key_length": 24,
    "attention.value_length": 24,
    "rope.dimension_count": 12,
    "ssm.conv_kernel": 3,
    "ssm.inner_size": 120,
    "ssm.state_size": 20,
    "ssm.time_step_rank": 6,
    "ssm.group_count": 2,
}
DELTA_EXPERTS = EXPERTS | {"expert_shared_feed_forward_length": 24}
DELTA_SECTIONS = {"rope.dimension_sections": [2, 2, 2, 0]}
KIMI: dict[str, Any] = LATENT | {
    "block_count": 5,
    "attention.head_count_kv": [0, 0, 1, 0, 1],
    "kda.head_dim": 20,
    "ssm.conv_kernel": 3,
    "expert_shared_count": 1,
    "expert_weights_norm": False,
}
KIMI_TENSORS = r".*\.attn_(k_b|v_b)\.weight|.*\.exp_probs_b\.bias"
K3_TENSORS = KIMI_TENSORS + r"|.*\.ssm_(f_b|g)\.weight|.*\.ssm_a"
PLAIN_A = {r".*\.ssm_a": (4,)}
SITU = {"activation.situ_beta": 1.5, "activation.situ_linear_beta": 2.0}
KPOOL_INDEXER = {
    f"blk.{i}.indexer{name}": ne
    for i in (2, 4)
    for name, ne in (
        (".k_norm.weight", (128,)),
        (".k_norm.bias", (128,)),
        (".proj.weight", (64, 64)),
        (".attn_k.weight", (64, 128)),
        (".attn_q_b.weight", (24, 64 * 128)),
        ("_compressor_gate.weight", (64, 128)),
        ("_compressor_ape.weight", (128, 4)),
    )
}
BLOCK_INDEXER = {
    "blk.2.indexer.q_proj.weight": (64, 2 * 16),
    "blk.2.indexer.k_proj.weight": (64, 16),
    "blk.2.indexer.q_norm.weight": (16,),
    "blk.2.indexer.k_norm.weight": (16,),
}
HEAD_GATE = {r".*\.attn_gate\.weight": (64, 4)}

DELTA_NET_SPECS: dict[str, Seeded] = {
    "bailingmoe3": spec(
        "bailingmoe3",
        KIMI_TENSORS + r"|.*\.attn_(q_a|gate)\.weight",
        KIMI
        | {
            "kda.gate_lower_bound": -4.0,
            "expert_shared_feed_forward_length": 24,
            "expert_group_count": 2,
            "expert_group_used_count": 1,
            "expert_count": 6,
            "expert_weights_norm": True,
            "swiglu_clamp_exp": [0.0, 1.0, 0.0, 0.7, 2.0],
            "swiglu_clamp_shexp": [0.3, 0.5, 1.0, 0.0, 0.7],
        },
        shapes=HEAD_GATE,
    ),
    "bailingmoe3-vision": spec(
        "bailingmoe3",
        KIMI_TENSORS + r"|.*\.attn_(q_a|gate)\.weight",
        KIMI | {"kda.gate_lower_bound": -5.0, "rope.dimension_sections": [1, 2, 1, 0]},
        shapes=HEAD_GATE,
    ),
    "glm5-next": spec(
        "glm5-next",
        KIMI_TENSORS + r"|.*\.attn_q_a\.weight|.*\.ssm_[fg]_b\.weight|.*\.ssm_a",
        KIMI
        | {
            "attention.key_length": 32,
            "rope.dimension_count": 0,
            "kda.gate_lower_bound": -5.0,
            "hyper_connection.count": 4,
            "hyper_connection.sinkhorn_iterations": 3,
            "hyper_connection.epsilon": 1e-6,
            "attention.indexer.head_count": 64,
            "attention.indexer.key_length": 128,
            "attention.indexer.top_k": 256,
            "attention.indexer.kpool": 4,
            "swiglu_clamp_exp": [0.0, 1.0, 0.0, 0.7, 2.0],
            "swiglu_clamp_shexp": [0.3, 0.5, 1.0, 0.0, 0.7],
        },
        shapes=PLAIN_A,
        extra=KPOOL_INDEXER,
    ),
    "kimi-k3": spec(
        "kimi-k3",
        K3_TENSORS + r"|.*\.attn_(q_a|gate)\.weight|.*\.ffn_routed_norm\.weight",
        KIMI
        | SITU
        | {
            "kda.gate_lower_bound": -5.0,
            "attn_res.block_size": 2,
            "expert_latent_length": 28,
            "expert_weights_norm": True,
        },
        shapes={r".*\.attn_gate\.weight": (64, 80)} | PLAIN_A,
    ),
    "kimi-k3-plain": spec(
        "kimi-k3",
        K3_TENSORS,
        KIMI | SITU | {"activation.situ_linear_beta": 0.0, "attn_res.block_size": 0},
        shapes=PLAIN_A,
    ),
    "kimi-linear": spec(
        "kimi-linear",
        KIMI_TENSORS + r"|.*\.ssm_[fg]_b\.weight|blk\.2\.attn_output\.scale",
        KIMI,
    ),
    "kimi-linear-fused": spec(
        "kimi-linear",
        KIMI_TENSORS + r"|.*\.ssm_[fg]_b\.weight|blk\.[013]\.attn_qkv\.weight",
        KIMI | {"expert_gating_func": 1},
    ),
    "qwen35": spec(
        "qwen35",
        r".*\.(attn_qkv|attn_gate|ssm_alpha|ssm_beta|ssm_out|attn_output|ffn_up)\.scale",
        DELTA | DELTA_SECTIONS | {"block_count": 6},
    ),
    "qwen35moe": spec(
        "qwen35moe",
        r".*\.ffn_gate_inp_shexp\.weight|.*\.ffn_(up_exps|down_shexp)\.scale",
        DELTA
        | DELTA_EXPERTS
        | DELTA_SECTIONS
        | {"block_count": 5, "full_attention_interval": 2, "ssm.group_count": 3},
        shapes=SHARED_GATE,
    ),
    "qwen3next": spec(
        "qwen3next",
        r".*\.ffn_gate_inp_shexp\.weight|.*\.(attn_output|ffn_gate_exps)\.scale",
        DELTA
        | DELTA_EXPERTS
        | {
            "block_count": 4,
            "attention.recurrent_layers": [True, False, True, True],
            "rope.dimension_count": 24,
        },
        shapes=SHARED_GATE,
    ),
    "qwen3next-older": spec(
        "qwen3next",
        r".*\.ffn_gate_inp_shexp\.weight|.*\.ssm_in\.weight",
        DELTA | DELTA_EXPERTS | {"block_count": 4},
        shapes=SHARED_GATE,
    ),
    "qwen4exp": spec(
        "qwen4exp",
        r".*\.ffn_gate_inp_shexp\.weight|.*\.(attn_qkv|ssm_out|attn_output|ffn_up_exps)\.scale"
        r"|per_layer_token_embd\.weight",
        DELTA
        | DELTA_EXPERTS
        | DELTA_SECTIONS
        | {
            "block_count": 5,
            "full_attention_interval": 3,
            "hyper_connection.count": 3,
            "hyper_connection.low_rank": 8,
            "attention.indexer.head_count": 2,
            "attention.indexer.key_length": 16,
            "attention.indexer.top_k": 256,
            "attention.compress_ratios": [0, 0, 4, 0, 0],
            "ple.layers": [1],
            "ple.ngram_size": 3,
            "ple.heads_per_ngram": 2,
            "ple.conv_kernel": 4,
            "ple.eos_token_id": 59,
            "ple.layer_multipliers": [7, 2**40 + 3, 2**63 + 5],
            "ple.head_offsets": [0, 50, 100, 160],
            "ple.head_vocab_sizes": [50, 50, 60, 41],
            "embedding_length_per_layer_input": 16,
        },
        types={
            f"ple.{key}": "u64" for key in ("layer_multipliers", "head_offsets", "head_vocab_sizes")
        },
        shapes=SHARED_GATE | {r"per_layer_token_embd\.weight": (16, 203)},
        extra=BLOCK_INDEXER,
    ),
}
