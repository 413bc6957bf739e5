"""Qwen2: llama with biases on q, k and v, and rope over pairs (i, i + D/2).

Also Qwen2.5. Yang et al., 2024.
"""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder


class Qwen2(PreNormDecoder):
    """A qwen2-family model."""
