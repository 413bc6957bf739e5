"""The text parts of Qwen2-VL (Wang et al., 2024) and Qwen3-VL (2025): qwen2 and qwen3 with M-RoPE.

Images come as embeddings from another model and are not supported.
"""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class Qwen2VL(PreNormDecoder):
    """A qwen2vl model: Qwen2-VL and Qwen2.5-VL."""

    rope_mode = RopeMode.MROPE
    output_biased = False


class Qwen3VL(PreNormDecoder):
    """A dense qwen3vl model."""

    rope_mode = RopeMode.IMROPE
    qk_norm = "rms"
