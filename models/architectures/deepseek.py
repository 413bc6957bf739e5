"""DeepSeekMoE: dense layers first, then many small experts of which some are shared.

Dai et al., 2024. dots.llm1 (Huo et al., 2025) adds norms of the heads of q and k, and a selection
bias as in DeepSeek-V3.
"""

from __future__ import annotations

from ggmlpy.models.expert_decoder import SharedExpertDecoder
from ggmlpy.ops.rope import RopeMode


class DeepSeek(SharedExpertDecoder):
    """A deepseek model, the first version."""

    rope_mode = RopeMode.NORMAL
    normalise = False


class Dots1(SharedExpertDecoder):
    """A dots1 model."""

    qk_norm = "rms"
    gating = None
