"""GLM-4.5 and 4.6: dense layers first, then experts as DeepSeek-V3 has them; partial rope.

Zhipu, 2025. Layers behind the last, which predict further tokens, are not run.
"""

from __future__ import annotations

from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.expert_decoder import SharedExpertDecoder
from ggmlpy.models.hparams import has_mrope
from ggmlpy.ops.rope import RopeMode


class Glm4MoE(SharedExpertDecoder):
    """A glm4moe model; files of GLM-4.5V have M-RoPE."""

    ffn_norm_name = "post_attention_norm"
    qk_norm = "rms"
    output_bias = False
    gating = "sigmoid"
    gating_from_file = True

    def layer_rope(self, i: int) -> Rope | None:
        """As the file says."""
        mrope = has_mrope(self.hparams.keys)
        return self.rope(i, RopeMode.MROPE if mrope else RopeMode.NEOX)
