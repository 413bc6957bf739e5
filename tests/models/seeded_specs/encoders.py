"""The specifications of the tiny encoders."""

from __future__ import annotations

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import BIASES, FFN_BIASES, GATE, QK_NORMS, SIX_HEADS, spec

TYPED = {"tokenizer.ggml.token_type_count": 2}
TYPES = {r"token_types\.weight": (64, 2)}
TYPE_TENSOR = r"token_types\.weight"
NORM_BIASES = (
    r"(.*\.(attn_output|layer_output|attn_q|attn_k)_norm|.*attn_norm_2|token_embd_norm)\.bias"
)
OUTPUT_BIAS = r".*\.attn_output\.bias"
FUSED_WEIGHT = r".*\.attn_qkv\.weight"
LATER_NORMS = r"blk\.[1-9]\.attn_norm\.weight"
FUSED = r".*\.attn_qkv\.(weight|bias)"
UP = r".*\.ffn_up\.weight"
CLASSIFIER = r"cls\.(weight|bias)|cls\.output\.(weight|bias)"
POST_NORM = "|".join((TYPE_TENSOR, NORM_BIASES, OUTPUT_BIAS))
ENCODER = {"attention.causal": False}
MHA = ENCODER | {"attention.head_count_kv": 4}  # where llama.cpp allows no other number
ALL_NORMS = f"{QK_NORMS}|" + r".*\.attn_norm_2\.weight"
OVER_ALL = {r".*\.attn_[qk]_norm\.weight": (64,)}

RELATIVE = {
    "block_count": 3,
    "attention.head_count_kv": 4,
    "attention.key_length": 12,
    "attention.value_length": 12,
}

ENCODER_SPECS: dict[str, Seeded] = {
    "bert": spec(
        "bert",
        "|".join((POST_NORM, BIASES, FFN_BIASES, CLASSIFIER)),
        ENCODER,
        unprefixed=TYPED,
        shapes=TYPES,
        without=GATE,
        has_gelu=True,
    ),
    "nomic-bert": spec(
        "nomic-bert",
        "|".join((POST_NORM, FUSED)),
        ENCODER | {"rope.freq_base": 1000.0},
        unprefixed=TYPED,
        shapes=TYPES,
    ),
    "nomic-bert-moe": spec(
        "nomic-bert-moe",
        "|".join((POST_NORM, FUSED, FFN_BIASES)),
        ENCODER
        | {
            "block_count": 4,
            "moe_every_n_layers": 2,
            "expert_count": 5,
            "expert_used_count": 2,
        },
        unprefixed=TYPED,
        shapes=TYPES,
        without=GATE + r"|.*\.ffn_gate_exps\.weight",
        has_gelu=True,
    ),
    "jina-bert-v2": spec(
        "jina-bert-v2",
        "|".join((POST_NORM, BIASES, r".*\.ffn_(up|down)\.bias", ALL_NORMS)),
        MHA,
        unprefixed=TYPED,
        shapes=TYPES | OVER_ALL,
        has_gelu=True,
    ),
    "jina-bert-v2-fused": spec(
        "jina-bert-v2",
        "|".join((POST_NORM, BIASES, r".*\.ffn_(up|down)\.bias", r"cls\.(weight|bias)", UP)),
        ENCODER,
        unprefixed=TYPED,
        shapes=TYPES | {UP: (64, 176)},
        without=GATE,
        has_gelu=True,
    ),
    "jina-bert-v3": spec(
        "jina-bert-v3",
        "|".join((POST_NORM, FUSED, FFN_BIASES)),
        ENCODER,
        unprefixed=TYPED,
        shapes=TYPES,
        without=GATE,
        has_gelu=True,
    ),
    "modern-bert": spec(
        "modern-bert",
        f"{UP}|{FUSED_WEIGHT}|{LATER_NORMS}|" + r"cls(\.norm|\.output)?\.weight|cls\.output\.bias",
        MHA
        | {
            "block_count": 5,
            "attention.sliding_window": 12,
            "rope.freq_base": 9000.0,
            "rope.freq_base_swa": 500.0,
        },
        shapes={UP: (64, 176)},
        without=GATE,
        has_gelu=True,
    ),
    "modern-bert-silu": spec(
        "modern-bert",
        f"{UP}|{FUSED_WEIGHT}|{LATER_NORMS}",
        MHA | {"hidden_activation": "silu"},
        shapes={UP: (64, 176)},
        without=GATE,
    ),
    "neo-bert": spec(
        "neo-bert",
        f"{UP}|{FUSED_WEIGHT}|{CLASSIFIER}",
        ENCODER,
        shapes={UP: (64, 176)},
        without=GATE,
    ),
    "t5encoder": spec(
        "t5encoder",
        r"enc\.blk\.[01]\.attn_rel_b\.weight",
        RELATIVE | {"attention.relative_buckets_count": 8},
        without=r".*\.ffn_gate\.weight",
    ),
    "t5encoder-gated": spec(
        "t5encoder",
        r".*\.ffn_gate\.weight",
        RELATIVE | {"attention.relative_buckets_count": 32},
        has_gelu=True,
    ),
    "t5": spec(
        "t5",
        r"(enc|dec)\.blk\.[01]\.attn_rel_b\.weight",
        RELATIVE
        | {
            "attention.relative_buckets_count": 8,
            "decoder_block_count": 2,
            "decoder_start_token_id": 0,
        },
        without=r".*\.ffn_gate\.weight|output\.weight",
    ),
    "t5-gated": spec(
        "t5",
        r".*\.ffn_gate\.weight",
        RELATIVE | {"attention.relative_buckets_count": 32},
        extra={"dec.blk.{i}.cross_attn_rel_b.weight": (4, 32)},
        has_gelu=True,
    ),
    "eurobert": spec("eurobert", "", SIX_HEADS | {"attention.causal": False}),
    "gemma-embedding": spec(
        "gemma-embedding",
        QK_NORMS + r"|dense_[23]\.weight",
        {
            "block_count": 7,
            "attention.sliding_window": 12,
            "attention.key_length": 24,
            "attention.value_length": 24,
            "rope.freq_base": 9000.0,
            "rope.freq_base_swa": 500.0,
            "dense_2_feat_in": 64,
            "dense_2_feat_out": 96,
            "dense_3_feat_in": 96,
            "dense_3_feat_out": 64,
        },
        shapes={r".*\.attn_[qk]_norm\.weight": (24,)},
        has_gelu=True,
    ),
    "llama-embed": spec(
        "llama-embed",
        "|".join((BIASES, FFN_BIASES, r"rope_freqs\.weight")),
        SIX_HEADS | {"attention.causal": False},
        extra={"output.weight": (72, 72)},
    ),
}
