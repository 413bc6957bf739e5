"""OpenELM: layers grow in heads and feed-forward size with their depth. Mehta et al., 2024.

q, k and v are one map; the heads of q and k are normed.
"""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder


class OpenELM(PreNormDecoder):
    """An openelm model."""

    qk_norm = "rms"
    qkv_scaled = False
