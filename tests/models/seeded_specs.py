"""The specifications of the tiny models: odd sizes, more than one period of every pattern."""

from __future__ import annotations

from typing import Any

from tests.models.seeded import Seeded
from tests.models.seeded_expert_specs import EXPERT_SPECS
from tests.models.seeded_keys import (
    BIASES,
    EXPERTS,
    HEAD_NORMS,
    QK_NORMS,
    SHARED_GATE,
)
from tests.models.seeded_keys import spec as _of

LATENT: dict[str, Any] = {
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": 24,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 40,
    "attention.value_length": 32,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 20,
    "rope.dimension_count": 8,
    "leading_dense_block_count": 1,
    "expert_shared_count": 2,
    "expert_weights_scale": 1.5,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
    **EXPERTS,
}
INDEXER = {
    "blk.{i}.indexer.k_norm.weight": (128,),
    "blk.{i}.indexer.k_norm.bias": (128,),
    "blk.{i}.indexer.proj.weight": (64, 64),
    "blk.{i}.indexer.attn_k.weight": (64, 128),
    "blk.{i}.indexer.attn_q_b.weight": (24, 64 * 128),
}
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
GEMMA_NORMS = r".*\.post_(attention|ffw)_norm\.weight"
LATENT_TENSORS = r".*\.attn_(q_a|k_b|v_b)\.weight|.*\.exp_probs_b\.bias"


SPECS: dict[str, Seeded] = EXPERT_SPECS | {
    "arcee": _of("arcee", r"rope_freqs\.weight", without=r".*\.ffn_gate\.weight"),
    "deci": _of(
        "deci",
        keys={
            "block_count": 4,
            "attention.head_count": [4, 6, 3, 8],
            "attention.head_count_kv": [2, 1, 3, 4],
            "attention.key_length": 16,
            "attention.value_length": 16,
            "feed_forward_length": [88, 40, 56, 72],
        },
    ),
    "deepseek2": _of("deepseek2", LATENT_TENSORS, LATENT),
    "deepseek32": _of(
        "deepseek32",
        LATENT_TENSORS,
        LATENT
        | {
            "attention.indexer.head_count": 64,
            "attention.indexer.key_length": 128,
            "attention.indexer.top_k": 256,
        },
        extra=INDEXER,
    ),
    "ernie4_5": _of("ernie4_5", BIASES),
    "exaone": _of("exaone"),
    "exaone4": _of("exaone4", QK_NORMS, shapes=HEAD_NORMS),
    "falcon-h1": _of(
        "falcon-h1",
        r".*\.ssm_conv1d\.bias|.*\.ssm_norm\.weight|.*\.ffn_(gate|up|down)\.bias",
        MAMBA2 | {"attention.head_count_kv": 1},
        renamed={r"(.*\.ffn_norm)\.weight": r"\1"},
    ),
    "gemma3n": _of(
        "gemma3n",
        GEMMA_NORMS + r"|.*\.attn_v\.weight",
        {
            "block_count": 22,
            "rope.freq_base_swa": 1000.0,
            "attention.sliding_window": 7,
            "attention.head_count": 2,
            "attention.head_count_kv": 1,
            "feed_forward_length": 40,
        },
        extra={
            f"blk.{i}.attn_{name}.weight": ne
            for i in (20, 21)
            for name, ne in (("k", (64, 32)), ("v", (64, 32)), ("k_norm", (32,)))
        },
        has_gelu=True,
    ),
    "gemma4": _of(
        "gemma4",
        GEMMA_NORMS
        + r"|rope_freqs\.weight|.*\.layer_output_scale\.weight|blk\.[0134]\.attn_v\.weight",
        {
            "block_count": 6,
            "attention.key_length": 24,
            "attention.value_length": 24,
            "attention.key_length_swa": 16,
            "attention.value_length_swa": 16,
            "rope.dimension_count": 24,
            "rope.dimension_count_swa": 16,
            "rope.freq_base_swa": 1000.0,
            "attention.sliding_window": 7,
            "attention.sliding_window_pattern": [True, False, True, False, True, False],
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 12,
            "feed_forward_length": [88, 40, 56, 72, 88, 40],
            "final_logit_softcapping": 3.0,
        },
        has_gelu=True,
    ),
    "gemma4-experts": _of(
        "gemma4",
        GEMMA_NORMS + r"|rope_freqs\.weight|blk\.[012]\.attn_v\.weight|.*\.ffn_gate_inp\.weight",
        {
            "block_count": 3,
            "attention.key_length_swa": 16,
            "attention.value_length_swa": 16,
            "attention.sliding_window": 7,
            "attention.sliding_window_pattern": [True, False, True],
            "embedding_length_per_layer_input": 0,
            **EXPERTS,
        },
        has_gelu=True,
    ),
    "jamba": _of(
        "jamba",
        r".*\.ssm_conv1d\.bias|.*\.ssm_(dt|b|c)_norm\.weight|.*\.ssm_dt\.bias"
        r"|blk\.[13]\.ffn_gate_inp\.weight",
        MAMBA | EXPERTS | {"block_count": 4, "attention.head_count_kv": [0, 0, 2, 0]},
    ),
    "llama": _of(
        "llama", BIASES + r"|rope_freqs\.weight|.*\.(attn_output|ffn_gate|ffn_up|ffn_down)\.bias"
    ),
    "llama-experts": _of("llama", keys=EXPERTS),
    "mamba": _of("mamba", r".*\.ssm_conv1d\.bias|.*\.ssm_dt\.bias", MAMBA),
    "mamba2": _of("mamba2", r".*\.ssm_conv1d\.bias|.*\.ssm_norm\.weight", MAMBA2),
    "nemotron_h": _of(
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
        without=r".*\.ffn_gate\.weight",
    ),
    "nemotron_h-experts": _of(
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
        without=r".*\.ffn_gate(_exps|_shexp)?\.weight",
    ),
    "qwen35": _of(
        "qwen35",
        r".*\.(attn_qkv|attn_gate|ssm_alpha|ssm_beta|ssm_out|attn_output|ffn_up)\.scale",
        DELTA | DELTA_SECTIONS | {"block_count": 6},
    ),
    "qwen35moe": _of(
        "qwen35moe",
        r".*\.ffn_gate_inp_shexp\.weight|.*\.ffn_(up_exps|down_shexp)\.scale",
        DELTA
        | DELTA_EXPERTS
        | DELTA_SECTIONS
        | {"block_count": 5, "full_attention_interval": 2, "ssm.group_count": 3},
        shapes=SHARED_GATE,
    ),
    "qwen3next": _of(
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
    "qwen3next-older": _of(
        "qwen3next",
        r".*\.ffn_gate_inp_shexp\.weight|.*\.ssm_in\.weight",
        DELTA | DELTA_EXPERTS | {"block_count": 4},
        shapes=SHARED_GATE,
    ),
    "seed_oss": _of("seed_oss", BIASES),
    "smollm3": _of("smollm3", keys={"block_count": 5}),
}
