"""Models that are llama, under names of their own.

XVERSE (2023); InternLM2 (Cai et al., 2024); ChatGLM (Zeng et al., 2024), with q, k and v in one map
with a bias, gate and up in another, and half of each head rotated.
"""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class Xverse(PreNormDecoder):
    """An xverse, internlm2 or chatglm model."""

    rope_mode = RopeMode.NORMAL
