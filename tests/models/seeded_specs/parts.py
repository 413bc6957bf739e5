"""The specifications of the tiny models whose layers loop, or that are parts of larger systems."""

from __future__ import annotations

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import BIASES, GATE, HEAD_NORMS, OUTPUT, QK_NORMS, spec

IMAGE_WEIGHTS = {
    "blk.{i}.vis_attn_qkv.weight": (64, 192),
    "blk.{i}.vis_attn_output.weight": (64, 64),
    "blk.{i}.vis_gate.weight": (64, 88),
    "blk.{i}.vis_down.weight": (88, 64),
    "blk.{i}.vis_up.weight": (64, 88),
}

PART_SPECS: dict[str, Seeded] = {
    "cogvlm": spec(
        "cogvlm",
        r".*\.attn_qkv\.weight|.*\.attn_output\.scale",
        {"attention.head_count_kv": 4, "rope.freq_base": 500.0},
        extra=IMAGE_WEIGHTS,
    ),
    "hrm_text": spec(
        "hrm_text",
        BIASES + r"|.*\.attn_gate\.weight|.*\.attn_(q|output)\.scale",
        {
            "block_count": 16,
            "hrm.layers_per_stack": 2,
            "hrm.h_cycles": 2,
            "hrm.l_cycles": 3,
            "embedding_scale": 2.5,
            "rope.dimension_count": 8,
        },
        shapes={r".*\.attn_gate\.weight": (64, 64)},
    ),
    "pockettts": spec(
        "pockettts",
        BIASES + r"|.*norm\.bias|.*\.attn_output\.scale",
        without=f"{GATE}|{OUTPUT}",
        has_gelu=True,
    ),
    "qwen3tts": spec(
        "qwen3tts",
        f"{BIASES}|{QK_NORMS}",
        {"rope.dimension_sections": [3, 3, 2, 0]},
        without=OUTPUT,
        shapes=HEAD_NORMS,
    ),
}
