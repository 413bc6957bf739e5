"""The specifications of the tiny models that are much like llama: RMSNorm, rotation, a gate."""

from __future__ import annotations

from typing import Any

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import (
    BIASES,
    DEEP,
    EXPERTS,
    FACTORS,
    FUSED_UP,
    FUSED_UP_SHAPE,
    GATE,
    HEAD_NORMS,
    OUTPUT,
    POST_NORMS,
    QK_NORMS,
    SIX_HEADS,
    SIZED,
    SIZED_NORMS,
    YARN,
    spec,
)

FUSED = r".*\.attn_qkv\.(weight|bias)"
OUTPUT_BIAS = r".*\.attn_output\.bias"
FFN_SCALES = r".*\.ffn_(gate|up|down)\.scale"
ATTN_SCALES = r".*\.attn_(q|k|v|output)\.scale"
OVER_ALL = {r".*\.attn_q_norm\.weight": (72,), r".*\.attn_k_norm\.weight": (36,)}  # of SIX_HEADS
LONGROPE: dict[str, Any] = {
    "rope.dimension_count": 8,
    "rope.scaling.type": "longrope",
    "rope.scaling.attn_factor": 1.19,
}
LONGROPE_FACTORS = r"rope_factors_(long|short)\.weight"
SECTIONS = {"rope.dimension_sections": [3, 3, 2, 0]}
WINDOW: dict[str, Any] = {"attention.sliding_window": 7, "rope.freq_base_swa": 1000.0}
ONE_BASE: dict[str, Any] = {"attention.sliding_window": 7}  # llama.cpp reads no other

DENSE_SPECS: dict[str, Seeded] = {
    "apertus": spec(
        "apertus",
        "|".join((QK_NORMS, FACTORS, OUTPUT_BIAS)),
        SIZED,
        shapes=SIZED_NORMS,
        unprefixed={
            "xielu.alpha_n": [0.6, 0.3],
            "xielu.alpha_p": [1.2, 0.4],
            "xielu.beta": [0.5, 0.2],
            "xielu.eps": [-1e-6, -1e-6],
        },
    ),
    "arcee": spec("arcee", FACTORS),
    "baichuan-7b": spec("baichuan", keys=DEEP | {"block_count": 32}),
    "baichuan-13b": spec(
        "baichuan",
        keys=DEEP
        | {
            "block_count": 40,
            "embedding_length": 36,
            "attention.head_count": 3,
            "attention.head_count_kv": 3,
        },
    ),
    "bitnet": spec(
        "bitnet",
        "|".join((ATTN_SCALES, FFN_SCALES, r".*\.(attn|ffn)_sub_norm\.weight")),
        without=OUTPUT,
    ),
    "chatglm": spec(
        "chatglm",
        f"{FUSED}|{FUSED_UP}",
        {"rope.dimension_count": 8},
        without=f"{GATE}|{OUTPUT}",
        shapes=FUSED_UP_SHAPE,
    ),
    "cohere2": spec(
        "cohere2",
        f"{BIASES}|{FFN_SCALES}",
        ONE_BASE | {"block_count": 6, "logit_scale": 0.3},
        without=OUTPUT,
    ),
    "deci": spec(
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
    "deci-pruned": spec(
        "deci",
        f"{FACTORS}|{ATTN_SCALES}",
        {
            "block_count": 5,
            "attention.head_count": [4, 0, 4, 0, 4],
            "attention.head_count_kv": [2, 0, 0, 0, 1],
            "attention.key_length": 16,
            "attention.value_length": 16,
            "feed_forward_length": [88, 40, 56, 0, 72],
        },
        extra={"blk.2.attn_output.scale": (1,)},
    ),
    "ernie4_5": spec("ernie4_5", BIASES),
    "exaone": spec("exaone", FACTORS, without=OUTPUT),
    "exaone4": spec("exaone4", QK_NORMS, shapes=HEAD_NORMS),
    "exaone4-32b": spec(
        "exaone4",
        QK_NORMS,
        DEEP | YARN | {"block_count": 64, "attention.sliding_window": 7},
        without=OUTPUT,
        shapes={r".*\.attn_[qk]_norm\.weight": (8,)},
    ),
    "exaone4-full": spec("exaone4", f"{QK_NORMS}|{FACTORS}", YARN, shapes=HEAD_NORMS),
    "glm4": spec(
        "glm4",
        "|".join((BIASES, POST_NORMS, FUSED_UP)),
        SIZED | {"rope.dimension_count": 12},
        without=GATE,
        shapes=FUSED_UP_SHAPE,
    ),
    "glm4-vision": spec(
        "glm4",
        "|".join((FUSED, POST_NORMS, FUSED_UP)),
        {"rope.dimension_sections": [4, 2, 2, 0]},
        without=f"{GATE}|{OUTPUT}",
        shapes=FUSED_UP_SHAPE,
    ),
    "hunyuan-dense": spec(
        "hunyuan-dense",
        f"{QK_NORMS}|{BIASES}",
        SIZED | {"rope.scaling.alpha": 5.0},
        without=OUTPUT,
        shapes=SIZED_NORMS,
    ),
    "hunyuan_vl": spec("hunyuan_vl", QK_NORMS, SECTIONS, shapes=HEAD_NORMS),
    "internlm2": spec("internlm2", keys=SIX_HEADS | YARN),
    "llama": spec(
        "llama", BIASES + r"|rope_freqs\.weight|.*\.(attn_output|ffn_gate|ffn_up|ffn_down)\.bias"
    ),
    "llama-experts": spec("llama", keys=EXPERTS),
    "llama-scaled": spec(
        "llama",
        "|".join((ATTN_SCALES, FFN_SCALES)),
        SIZED | YARN | {"rope.freq_base": 5e5},
        without=OUTPUT,
    ),
    "maincoder": spec("maincoder", QK_NORMS, SIZED, without=OUTPUT, shapes=SIZED_NORMS),
    "muse-glimmer": spec(
        "muse-glimmer",
        "|".join((QK_NORMS, POST_NORMS, r".*\.attn_gate\.weight")),
        SIZED
        | WINDOW
        | {
            "block_count": 5,
            "rope.dimension_count": 12,
            "logit_scale": 0.5,
            "final_logit_softcapping": 3.0,
        },
        shapes=SIZED_NORMS | {r".*\.attn_gate\.weight": (64, 96)},
    ),
    "nanbeige": spec("nanbeige", FACTORS, {"num_loops": 3}),
    "nanbeige-once": spec("nanbeige", FFN_SCALES),
    "nanbeige-unnormed": spec(
        "nanbeige",
        FUSED,
        {"num_loops": 2, "skip_loop_final_norm": True},
        without=OUTPUT,
    ),
    "olmo2": spec("olmo2", f"{QK_NORMS}|{POST_NORMS}", SIX_HEADS, shapes=OVER_ALL),
    "olmo3": spec(
        "olmo2",
        f"{QK_NORMS}|{POST_NORMS}",
        SIX_HEADS | YARN | ONE_BASE | {"block_count": 5, "rope.scaling.attn_factor": 1.2},
        shapes=OVER_ALL,
    ),
    "openelm": spec(
        "openelm",
        r".*\.attn_qkv\.weight|" + QK_NORMS,
        {
            "block_count": 4,
            "attention.head_count": [2, 4, 6, 8],
            "attention.head_count_kv": [1, 2, 3, 2],
            "attention.key_length": 12,
            "attention.value_length": 12,
            "feed_forward_length": [24, 40, 56, 72],
        },
        without=OUTPUT,
        shapes={r".*\.attn_[qk]_norm\.weight": (12,)},
    ),
    "pangu-embedded": spec("pangu-embedded", f"{BIASES}|{OUTPUT_BIAS}", SIX_HEADS),
    "phi3": spec(
        "phi3",
        f"{FUSED}|{FUSED_UP}",
        {"rope.dimension_count": 12},
        without=f"{GATE}|{OUTPUT}",
        shapes=FUSED_UP_SHAPE,
    ),
    "phi3-long": spec(
        "phi3",
        "|".join((FUSED, FUSED_UP, LONGROPE_FACTORS)),
        LONGROPE | {"rope.scaling.original_context_length": 32},
        without=GATE,
        shapes=FUSED_UP_SHAPE,
    ),
    "phi3-short": spec(
        "phi3",
        "|".join((BIASES, FUSED_UP, LONGROPE_FACTORS)),
        LONGROPE | {"rope.scaling.original_context_length": 300},
        without=GATE,
        shapes=FUSED_UP_SHAPE,
    ),
    "plamo": spec("plamo", keys=SIX_HEADS),
    "plamo3": spec(
        "plamo3",
        "|".join((r".*\.attn_qkv\.weight", QK_NORMS, FUSED_UP)),
        SIZED | WINDOW | {"block_count": 9, "rope.scaling.factor": 3.0},
        without=f"{GATE}|{OUTPUT}",
        shapes=SIZED_NORMS | FUSED_UP_SHAPE,
    ),
    "plamo3-pattern": spec(
        "plamo3",
        "|".join((r".*\.attn_qkv\.weight", QK_NORMS, FUSED_UP)),
        WINDOW
        | YARN
        | {
            "block_count": 4,
            "attention.key_length": 24,
            "attention.value_length": 16,
            "attention.sliding_window_pattern": 3,
        },
        without=GATE,
        shapes=SIZED_NORMS | FUSED_UP_SHAPE,
    ),
    "qwen": spec(
        "qwen", FUSED, SIX_HEADS | {"attention.head_count_kv": 6, "feed_forward_length": 176}
    ),
    "qwen2": spec("qwen2", BIASES + r"|output\.bias", SIX_HEADS),
    "qwen2-tied": spec("qwen2", FUSED, without=OUTPUT),
    "qwen2vl": spec(
        "qwen2vl",
        BIASES,
        # llama.cpp does not read the epsilon of this one, and takes 0.
        SECTIONS | {"attention.layer_norm_rms_epsilon": 1e-12},
    ),
    "qwen3": spec("qwen3", f"{QK_NORMS}|{FFN_SCALES}", SIZED, shapes=SIZED_NORMS),
    "qwen3vl": spec(
        "qwen3vl",
        QK_NORMS,
        SIZED | {"rope.dimension_sections": [6, 3, 3, 0], "n_deepstack_layers": 3},
        without=OUTPUT,
        shapes=SIZED_NORMS,
    ),
    "refact": spec("refact", keys=SIX_HEADS | {"attention.head_count_kv": 1}, without=OUTPUT),
    "seed_oss": spec("seed_oss", BIASES, SIZED),
    "smollm3": spec("smollm3", keys={"block_count": 5}),
    "spark2_5": spec(
        "spark2_5",
        r".*\.attn_gate\.weight",
        SIZED
        | WINDOW
        | {
            "block_count": 4,
            "attention.head_count": [4, 6, 4, 2],
            "attention.head_count_kv": [2, 3, 1, 2],
            "attention.sliding_window_pattern": [True, False, True, False],
            "rope.dimension_count": 24,
            "rope.dimension_count_swa": 12,
        },
        shapes={
            rf"blk\.{i}\.attn_gate\.weight": (64, heads) for i, heads in enumerate((4, 6, 4, 2))
        },
        has_gelu=True,
    ),
    "talkie": spec("talkie", r".*\.ffn_down\.scale", SIZED | {"logit_scale": 0.4}),
    "xverse": spec("xverse", keys=SIX_HEADS),
}
