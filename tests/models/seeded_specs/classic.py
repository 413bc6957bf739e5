"""The specifications of the tiny models with LayerNorm and biases, of 2019 to 2024 for the most."""

from __future__ import annotations

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import BIASES, DEEP, FFN_BIASES, GATE, OUTPUT, SIX_HEADS, spec

NORM_BIASES = r"(.*\.(attn|ffn)_norm|.*attn_norm_2|token_embd_norm|output_norm)\.bias"
FUSED, FUSED_BIAS = r".*\.attn_qkv\.weight", r".*\.attn_qkv\.bias"
OUTPUT_BIAS = r".*\.attn_output\.bias"
ALL_FUSED = "|".join((NORM_BIASES, FUSED, FUSED_BIAS, OUTPUT_BIAS, FFN_BIASES))
ALL_APART = "|".join((NORM_BIASES, BIASES, OUTPUT_BIAS, FFN_BIASES))
BY_HEAD = {r".*\.attn_q_norm\.weight": (16, 4), r".*\.attn_k_norm\.weight": (16, 2)}
QK_NORMS = r".*\.attn_[qk]_norm\.weight"
PARTLY = {"rope.dimension_count": 8, "rope.freq_base": 1000.0}
N_LAYER_COMMAND_R_PLUS = 64

CLASSIC_SPECS: dict[str, Seeded] = {
    "bloom": spec(
        "bloom",
        ALL_FUSED,
        SIX_HEADS,
        without=f"{GATE}|{OUTPUT}",
        has_gelu=True,
    ),
    "chameleon": spec("chameleon", r".*\.attn_[qk]_norm\.bias", n_vocab=8196 + 72),
    "codeshell": spec("codeshell", ALL_FUSED, without=GATE, has_gelu=True),
    "command-r": spec("command-r", BIASES, {"logit_scale": 0.3}, without=OUTPUT),
    "command-r-plus": spec(
        "command-r",
        QK_NORMS,
        DEEP | {"block_count": N_LAYER_COMMAND_R_PLUS, "logit_scale": 0.3},
        without=OUTPUT,
        shapes={r".*\.attn_q_norm\.weight": (8, 4), r".*\.attn_k_norm\.weight": (8, 2)},
    ),
    "falcon": spec(
        "falcon",
        f"{NORM_BIASES}|{FUSED}",
        {"attention.head_count_kv": 1},
        without=f"{GATE}|{OUTPUT}",
        has_gelu=True,
    ),
    "falcon-40b": spec(
        "falcon",
        f"{NORM_BIASES}|{FUSED}|" + r".*\.attn_norm_2\.weight",
        SIX_HEADS,
        without=GATE,
        has_gelu=True,
    ),
    "gpt2": spec(
        "gpt2",
        ALL_FUSED,
        without=f"{GATE}|{OUTPUT}",
        has_gelu=True,
    ),
    "gptneox": spec(
        "gptneox", ALL_FUSED, PARTLY | {"use_parallel_residual": True}, without=GATE, has_gelu=True
    ),
    "gptneox-sequential": spec(
        "gptneox",
        ALL_FUSED,
        SIX_HEADS | {"use_parallel_residual": False},
        without=GATE,
        has_gelu=True,
    ),
    "jais": spec("jais", ALL_FUSED, SIX_HEADS | {"attention.max_alibi_bias": 8.0}),
    "jais2": spec(
        "jais2",
        ALL_APART,
        {"attention.key_length": 24, "attention.value_length": 24},
    ),
    "mpt": spec(
        "mpt",
        FUSED,
        SIX_HEADS | {"attention.clamp_kqv": 0.7, "attention.max_alibi_bias": 6.0},
        without=f"{GATE}|{OUTPUT}",
        has_gelu=True,
    ),
    "mpt-positions": spec(
        "mpt",
        ALL_FUSED + r"|position_embd\.weight",
        without=GATE,
        has_gelu=True,
    ),
    "nemotron": spec("nemotron", ALL_APART, PARTLY),
    "olmo": spec("olmo", keys=SIX_HEADS | {"attention.clamp_kqv": 0.7}),
    "orion": spec("orion", NORM_BIASES),
    "phi2": spec("phi2", ALL_APART + r"|output\.bias", PARTLY, without=GATE, has_gelu=True),
    "phi2-fused": spec("phi2", ALL_FUSED + r"|output\.bias", without=GATE, has_gelu=True),
    "stablelm": spec("stablelm", f"{NORM_BIASES}|{BIASES}|" + r".*\.ffn_norm\.weight", PARTLY),
    "stablelm-12b": spec("stablelm", f"{NORM_BIASES}|{QK_NORMS}", PARTLY, shapes=BY_HEAD),
    "starcoder": spec(
        "starcoder",
        ALL_FUSED,
        SIX_HEADS | {"attention.head_count_kv": 1},
        without=GATE,
        has_gelu=True,
    ),
    "starcoder2": spec("starcoder2", ALL_APART, without=f"{GATE}|{OUTPUT}", has_gelu=True),
}
