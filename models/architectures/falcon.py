"""Falcon: attention and feed-forward in parallel behind LayerNorm, few K/V heads.

Almazrouei et al., 2023. The larger models norm the input of each block apart.
"""

from __future__ import annotations

from ggmlpy.models.blocks.layers import ParallelLayer
from ggmlpy.models.pre_norm import PreNormDecoder


class Falcon(PreNormDecoder):
    """A falcon model."""

    norms = "layer"
    activation = "gelu"

    def layer(self, i: int) -> ParallelLayer:
        """The first norm is the feed-forward block's, the second, if any, the attention's."""
        norm, mixer, ffn = self.norm(i, "attn_norm"), self.mixer(i), self.ffn(i)
        if not self.weights.has(f"blk.{i}.attn_norm_2.weight"):
            return ParallelLayer(attn_norm=norm, mixer=mixer, ffn=ffn)
        own = self.norm(i, "attn_norm_2")
        return ParallelLayer(attn_norm=own, mixer=mixer, ffn=ffn, ffn_norm=norm)
