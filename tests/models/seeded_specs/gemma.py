"""The specifications of the tiny models of the Gemma family."""

from __future__ import annotations

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import (
    DEEP,
    EXPERTS,
    HEAD_NORMS,
    OUTPUT,
    POST_NORMS,
    QK_NORMS,
    SIZED,
    SIZED_NORMS,
    spec,
)

GEMMA_SPECS: dict[str, Seeded] = {
    "gemma": spec(
        "gemma",
        keys=SIZED | {"attention.head_count_kv": 1, "rope.freq_base": 5000.0},
        without=OUTPUT,
        has_gelu=True,
    ),
    "gemma2": spec(
        "gemma2",
        POST_NORMS,
        SIZED
        | {
            "block_count": 3,
            "attention.sliding_window": 7,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 7.0,
            "rope.scaling.factor": 4.0,
            "rope.freq_base_swa": 1000.0,
        },
        without=OUTPUT,
        has_gelu=True,
    ),
    "gemma2-27b": spec(
        "gemma2",
        POST_NORMS,
        DEEP | SIZED | {"block_count": 46, "attention.sliding_window": 7},
        without=OUTPUT,
        has_gelu=True,
    ),
    "gemma3": spec(
        "gemma3",
        f"{POST_NORMS}|{QK_NORMS}",
        SIZED
        | {
            "block_count": 7,
            "attention.sliding_window": 7,
            "rope.freq_base": 100_000.0,
            "rope.freq_base_swa": 1000.0,
            "rope.scaling.factor": 8.0,
            "final_logit_softcapping": 7.0,
        },
        shapes=SIZED_NORMS,
        has_gelu=True,
    ),
    "gemma3-27b": spec(
        "gemma3",
        f"{POST_NORMS}|{QK_NORMS}",
        DEEP | SIZED | {"block_count": 62, "attention.sliding_window": 7},
        without=OUTPUT,
        shapes=SIZED_NORMS,
        has_gelu=True,
    ),
    "gemma3-full": spec(
        "gemma3",
        f"{POST_NORMS}|{QK_NORMS}",
        without=OUTPUT,
        shapes=HEAD_NORMS,
        has_gelu=True,
    ),
    "gemma3n": spec(
        "gemma3n",
        POST_NORMS + r"|.*\.attn_v\.weight",
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
    "gemma4": spec(
        "gemma4",
        POST_NORMS
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
    "gemma4-experts": spec(
        "gemma4",
        POST_NORMS + r"|rope_freqs\.weight|blk\.[012]\.attn_v\.weight|.*\.ffn_gate_inp\.weight",
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
}
