"""ERNIE 4.5: llama with optional biases. Baidu, 2025."""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class Ernie45(PreNormDecoder):
    """A dense ernie4_5 model."""

    rope_mode = RopeMode.NORMAL
    output_bias = False
