"""The specifications of the tiny models with latent attention."""

from __future__ import annotations

from typing import Any

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import BIASES, EXPERTS, OUTPUT, YARN, spec

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
INDEXED: dict[str, Any] = {
    "attention.indexer.head_count": 64,
    "attention.indexer.key_length": 128,
    "attention.indexer.top_k": 256,
}
BY_HEAD: dict[str, Any] = {  # not absorbed
    "block_count": 3,
    "attention.head_count_kv": 4,
    "attention.kv_lora_rank": 36,
    "attention.key_length": 24,
    "attention.value_length": 20,
    "rope.dimension_count": 8,
}
LATENT_TENSORS = r".*\.attn_(q_a|k_b|v_b)\.weight|.*\.exp_probs_b\.bias"

LATENT_SPECS: dict[str, Seeded] = {
    "deepseek2": spec("deepseek2", LATENT_TENSORS, LATENT),
    "deepseek2-ocr": spec(
        "deepseek2-ocr",
        f"{BIASES}|" + r".*\.exp_probs_b\.bias",
        EXPERTS
        | {
            "block_count": 3,
            "attention.head_count_kv": 4,
            "leading_dense_block_count": 1,
            "expert_shared_count": 2,
            "expert_weights_scale": 1.5,
        },
    ),
    "deepseek2-yarn": spec(
        "deepseek2",
        r".*\.attn_q_a\.weight",
        EXPERTS
        | BY_HEAD
        | YARN
        | {
            "leading_dense_block_count": 1,
            "expert_shared_count": 1,
            "attention.q_lora_rank": 28,
            "rope.scaling.yarn_log_multiplier": 0.0707,
            "expert_gating_func": 1,
        },
    ),
    "deepseek32": spec("deepseek32", LATENT_TENSORS, LATENT | INDEXED, extra=INDEXER),
    "dots3note": spec(
        "dots3note",
        LATENT_TENSORS + r"|.*\.attn_(gate|k_norm)\.weight",
        LATENT
        | INDEXED
        | {
            "block_count": 5,
            "attention.sliding_window": 7,
            "attention.sliding_window_pattern": [False, True, True, False, True],
            "attention.key_length_swa": 36,
            "attention.value_length_swa": 28,
            "attention.kv_lora_rank_swa": 28,
            "attention.key_length_mla_swa": 20,
            "attention.value_length_mla_swa": 16,
            "rope.dimension_count_swa": 8,
            "rope.freq_base_swa": 1000.0,
            "attention.indexer.types": [True, False, False, True, False],
        },
        shapes={r".*\.attn_gate\.weight": (64, 4)},
        extra={name.replace("{i}", i): ne for i in "03" for name, ne in INDEXER.items()},
    ),
    "glm-dsa": spec(
        "glm-dsa",
        LATENT_TENSORS,
        {key: value for key, value in LATENT.items() if key != "expert_gating_func"} | INDEXED,
        extra=INDEXER,
    ),
    "minicpm3": spec(
        "minicpm3",
        r".*\.attn_q_a\.weight|rope_factors_(long|short)\.weight",
        BY_HEAD | {"attention.q_lora_rank": 28, "rope.scaling.original_context_length": 32},
    ),
    "mistral4": spec(
        "mistral4",
        LATENT_TENSORS,
        LATENT
        | YARN
        | {
            "attention.temperature_scale": 0.3,
            "attention.temperature_length": 12,
            "rope.scaling.yarn_log_multiplier": 0.1,
        },
    ),
    "plm": spec(
        "plm",
        r".*\.attn_output\.scale",
        BY_HEAD,
        without=OUTPUT,
        extra={"blk.{i}.attn_q.scale": (1,)},
    ),
}
