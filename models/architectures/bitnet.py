"""BitNet b1.58: llama of ternary weights with scales, and norms before each block's last map.

Ma et al., 2024.
"""

from __future__ import annotations

from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.self_attention import SelfAttention
from ggmlpy.models.pre_norm import PreNormDecoder


class BitNet(PreNormDecoder):
    """A bitnet model."""

    ffn_scaled = True

    def mixer(self, i: int) -> SelfAttention:
        """With a norm of attention's result, which the file must have."""
        h, weights = self.hparams, self.weights
        weights.take(f"blk.{i}.attn_sub_norm.weight", h.layers[i].n_embd_out)
        return SelfAttention.take(weights, i, h, self.layer_rope(i), out_norm="rms")

    def ffn(self, i: int) -> FeedForward:
        """With a norm of the activation, which the file must have."""
        h, weights = self.hparams, self.weights
        weights.take(f"blk.{i}.ffn_sub_norm.weight", h.layers[i].n_ff)
        return FeedForward.take(weights, i, h, scaled=True)
