"""GLM-4: norms before and after every block, gate and up in one map, partial rope. Zhipu, 2025."""

from __future__ import annotations

from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.blocks.layers import SequentialLayer
from ggmlpy.models.hparams import has_mrope
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class Glm4(PreNormDecoder):
    """A glm4 model; files of GLM-4V have M-RoPE."""

    def layer(self, i: int) -> SequentialLayer:
        """With norms of inputs and of results."""
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            attn_post_norm=self.norm(i, "post_attention_norm", node="post_attn_norm"),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=self.ffn(i),
            ffn_post_norm=self.norm(i, "post_ffw_norm", node="post_mlp_norm"),
        )

    def layer_rope(self, i: int) -> Rope | None:
        """As the file says."""
        mrope = has_mrope(self.hparams.keys)
        return self.rope(i, RopeMode.MROPE if mrope else RopeMode.NORMAL)
