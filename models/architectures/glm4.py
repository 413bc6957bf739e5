"""GLM-4: norms before and after every block, gate and up in one map, partial rope. Zhipu, 2025."""

from __future__ import annotations

from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.hparams import has_mrope
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class Glm4(PreNormDecoder):
    """A glm4 model; files of GLM-4V have M-RoPE."""

    post_norms = ("post_attn_norm", "post_mlp_norm")

    def layer_rope(self, i: int) -> Rope | None:
        """As the file says."""
        mrope = has_mrope(self.hparams.keys)
        return self.rope(i, RopeMode.MROPE if mrope else RopeMode.NORMAL)
