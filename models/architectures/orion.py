"""Orion: llama with LayerNorm. OrionStar, 2024."""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder


class Orion(PreNormDecoder):
    """An orion model."""

    norms = "layer"
