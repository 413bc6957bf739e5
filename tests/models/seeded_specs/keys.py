"""Keys and optional tensors that many of the tiny models have."""

from __future__ import annotations

from typing import Any

from tests.models.seeded import Seeded

BASE: dict[str, Any] = {
    "context_length": 256,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 88,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
}
SIX_HEADS: dict[str, Any] = {  # of 12 elements
    "embedding_length": 72,
    "attention.head_count": 6,
    "attention.head_count_kv": 3,
}
DEEP: dict[str, Any] = {  # for many layers
    "embedding_length": 32,
    "feed_forward_length": 24,
}
SIZED: dict[str, Any] = {  # heads of 24 elements, and not 64 / 4
    "attention.key_length": 24,
    "attention.value_length": 24,
}
SIZED_NORMS = {r".*\.attn_[qk]_norm\.weight": (24,)}
YARN: dict[str, Any] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}
BIASES = r".*\.attn_(q|k|v)\.bias"
FFN_BIASES = r".*\.ffn_(gate|up|down)\.bias"
FUSED_UP = r".*\.ffn_up\.weight"  # with the gate
FUSED_UP_SHAPE = {FUSED_UP: (64, 176)}
GATE, OUTPUT = r".*\.ffn_gate\.weight", r"output\.weight"  # which files of some do not have
EXPERTS: dict[str, Any] = {
    "expert_count": 5,
    "expert_used_count": 2,
    "expert_feed_forward_length": 40,
}
POST_NORMS = r".*\.post_(attention|ffw)_norm\.weight"
FACTORS = r"rope_freqs\.weight"
QK_NORMS, HEAD_NORMS = r".*\.attn_[qk]_norm\.weight", {r".*\.attn_[qk]_norm\.weight": (16,)}
SHARED_GATE = {r".*\.ffn_gate_inp_shexp\.weight": (64,)}


def spec(architecture: str, optional: str = "", keys: dict[str, Any] = {}, **rest: Any) -> Seeded:  # noqa: B006
    """A file with `keys` beside the common ones, and what else Seeded has."""
    return Seeded(architecture, BASE | keys, optional, **rest)
