"""SmolLM3: llama in which every fourth layer has no positions (NoPE). Hugging Face, 2025."""

from __future__ import annotations

from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class SmolLM3(PreNormDecoder):
    """A smollm3 model."""

    rope_mode = RopeMode.NORMAL

    def layer_rope(self, i: int) -> Rope | None:
        """None in every fourth layer."""
        return super().layer_rope(i) if (i + 1) % 4 else None
