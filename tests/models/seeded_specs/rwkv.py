"""The specifications of the tiny models with RWKV's time mixing and lightning attention."""

from __future__ import annotations

from typing import Any

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import BIASES, EXPERTS, spec

RWKV6: dict[str, Any] = {
    "wkv.head_size": 16,
    "time_mix_extra_dim": 6,
    "time_decay_extra_dim": 10,
    "token_shift_count": 2,
    "block_count": 3,
    "attention.head_count": 0,
    "attention.head_count_kv": 0,
}
RWKV7: dict[str, Any] = {
    "embedding_length": 128,
    "wkv.head_size": 64,  # with less, llama.cpp reads beyond a head
    "attention.decay_lora_rank": 10,
    "attention.iclr_lora_rank": 6,
    "attention.value_residual_mix_lora_rank": 8,
    "attention.gate_lora_rank": 12,
    "token_shift_count": 2,
    "block_count": 3,
    "attention.head_count": 0,
    "attention.head_count_kv": 0,
}
NORM_BIASES = r".*norm(_2)?\.bias"
UNUSED = {f"blk.0.time_mix_v{i}.weight": ne for i, ne in enumerate(((128,), (128, 6), (6, 128)))}

RWKV_SPECS: dict[str, Seeded] = {
    "arwkv7": spec(
        "arwkv7",
        r".*\.time_mix_(ln|g1|g2)\.(weight|bias)",
        RWKV7 | {"token_shift_count": 1},
        extra=UNUSED,
    ),
    "arwkv7-plain": spec("arwkv7", keys=RWKV7 | {"token_shift_count": 1}, extra=UNUSED),
    "minimax-01": spec(
        "minimax-01",
        BIASES + r"|.*\.ffn_gate_exps\.weight|.*\.attn_(q|output)\.scale",
        EXPERTS
        | {
            "block_count": 5,
            "full_attention_interval": 2,
            "residual_scale": 1.7,
            "attention.head_count": 3,
            "attention.head_count_kv": 1,
            "attention.key_length": 24,
            "attention.value_length": 24,
            "rope.dimension_count": 8,
        },
    ),
    "rwkv6": spec(
        "rwkv6",
        NORM_BIASES + r"|.*\.time_mix_lerp_fused\.weight",
        RWKV6 | {"rescale_every_n_layers": 2},
    ),
    "rwkv6-older": spec("rwkv6", NORM_BIASES, RWKV6 | {"wkv.head_size": 32}),
    "rwkv6qwen2": spec(
        "rwkv6qwen2",
        r".*\.time_mix_lerp_fused\.weight|.*\.time_mix_(receptance|key|value)\.bias",
        RWKV6 | {"token_shift_count": 1, "attention.head_count_kv": 2},
    ),
    "rwkv7": spec("rwkv7", NORM_BIASES, RWKV7, extra=UNUSED),
}
