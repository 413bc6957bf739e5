"""Seed-OSS: qwen2 whose norm of the feed-forward block has another name. ByteDance, 2025."""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder


class SeedOss(PreNormDecoder):
    """A seed_oss model."""

    ffn_norm_name = "post_attention_norm"
