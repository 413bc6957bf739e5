"""Rotary decoders with LayerNorm, biases, and a feed-forward block without a gate.

StarCoder2 (Lozhkov et al., 2024) and CodeShell (Xie et al., 2024) with GELU; Nemotron (Parmar et
al., 2024) and Jais 2 (2025) with squared ReLU.
"""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder


class StarCoder2(PreNormDecoder):
    """A starcoder2 or codeshell model."""

    norms = "layer"
    activation = "gelu"


class Nemotron(PreNormDecoder):
    """A nemotron or jais2 model."""

    norms = "layer"
    activation = "relu_sqr"
