"""Which tensors stay as they are: norms, vectors, and what is small or sensitive."""

from __future__ import annotations

from collections.abc import Sequence

_EXEMPT = ("position_embd.weight", "token_types.weight")
_EXEMPT_PARTS = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel",
    "per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight",
    "indexer.q_proj.weight", "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight",
    "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight",
    "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight",
    "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight", "attn_rel_b.weight", ".position_embd", "sam.pos_embd",
    "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger", "a.rvq.codebook",
    "mm.a.code_embd",
)  # fmt: skip
_EXEMPT_IN = {
    "glm5-next": (
        "hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate",
        "indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight",
        "ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight",
        "attn_v_b.weight",
    )
}  # fmt: skip


def is_exempt(name: str, ne: Sequence[int], architecture: str) -> bool:
    """Whether llama.cpp quantises no such tensor, whatever the file type."""
    if not name.endswith("weight") or all(n == 1 for n in ne[1:]) or name in _EXEMPT:
        return True
    return any(part in name for part in (*_EXEMPT_PARTS, *_EXEMPT_IN.get(architecture, ())))
