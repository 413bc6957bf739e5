"""Qwen with experts: Qwen1.5-MoE and Qwen2 (2024), Qwen3 (Yang et al., 2025), Qwen3-VL's text part.

Qwen2's shared expert is gated by a sigmoid of the token; Qwen3 has none, and norms the heads of q
and k.
"""

from __future__ import annotations

from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.ops.rope import RopeMode


class Qwen2MoE(ExpertDecoder):
    """A qwen2moe model."""

    normalise = False

    def n_ff_shared(self, i: int) -> int:
        """Of the size that the file says, or of a dense block."""
        h = self.hparams
        return h.keys.whole("expert_shared_feed_forward_length", 0) or h.layers[i].n_ff


class Qwen3MoE(ExpertDecoder):
    """A qwen3moe model."""

    qk_norm = "rms"
    experts_scaled = True


class Qwen3VLMoE(ExpertDecoder):
    """A qwen3vlmoe model, without the inputs of images."""

    qk_norm = "rms"
    rope_mode = RopeMode.IMROPE
