"""The specifications of the tiny models of the Gemma family."""

from __future__ import annotations

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import EXPERTS, spec

GEMMA_NORMS = r".*\.post_(attention|ffw)_norm\.weight"

GEMMA_SPECS: dict[str, Seeded] = {
    "gemma3n": spec(
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
    "gemma4": spec(
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
    "gemma4-experts": spec(
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
}
