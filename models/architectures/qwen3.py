"""Qwen3: RMSNorm of every head of q and k before rope over pairs (i, i + D/2); SwiGLU.

Yang et al., 2025.
"""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder


class Qwen3(PreNormDecoder):
    """A dense qwen3 model."""

    qk_norm = "rms"
    ffn_scaled = True
