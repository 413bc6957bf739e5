"""Arcee AFM: llama with a feed-forward block of squared ReLU, without a gate. Arcee AI, 2025."""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class Arcee(PreNormDecoder):
    """An arcee model."""

    rope_mode = RopeMode.NORMAL
    activation = "relu_sqr"
