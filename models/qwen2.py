"""Qwen2: llama with biases on q, k and v, and rope over pairs (i, i + D/2).

Also Qwen2.5. Yang et al., 2024.
"""

from __future__ import annotations

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks import FeedForward, Norm, Rope, SelfAttention
from ggmlpy.models.decoder import Decoder, PreNormLayer
from ggmlpy.models.hparams import attention_layers, read_hparams
from ggmlpy.ops.rope import RopeMode


class Qwen2(Decoder):
    """A qwen2-family model."""

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file, read_hparams(file))
        self.memory = (attention_layers(self.hparams),)
        self.layers = [self._layer(i) for i in range(self.hparams.n_layer)]

    def _layer(self, i: int) -> PreNormLayer:
        h, weights = self.hparams, self.weights
        return PreNormLayer(
            attn_norm=Norm.take(weights, f"blk.{i}.attn_norm", h.n_embd, h),
            mixer=SelfAttention.take(weights, i, h, Rope(h.rope, RopeMode.NEOX)),
            ffn_norm=Norm.take(weights, f"blk.{i}.ffn_norm", h.n_embd, h),
            ffn=FeedForward.take(weights, i, h, scaled=False),
        )
